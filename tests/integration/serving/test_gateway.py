"""The OpenAI-compatible endpoint, used with the official client in front of the served toy pair."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx
import openai
import pytest
import pytest_asyncio

from forerun.gateway.app import assemble
from forerun.gateway.settings import GatewaySettings, ServedModelSettings
from forerun.runtime.auth import token_digest
from tests.integration.serving.conftest import Served

pytestmark = pytest.mark.asyncio(loop_scope="module")

MESSAGES: list[Any] = [{"role": "system", "content": "w1 w2"}, {"role": "user", "content": "w3 w4 w5"}]


@dataclass
class Door:
    served: Served
    base: str

    def client(self, token: str = "token-acme", **more: Any) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=self.base, api_key=token, max_retries=0, **more)

    async def create(self, **given: Any) -> Any:
        async with self.client() as client:
            return await client.chat.completions.create(model="toy", messages=MESSAGES, **given)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def door(toy: Served, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Door]:
    tokens = tmp_path_factory.mktemp("door") / "tokens.json"
    entries = [
        {"sha256": token_digest(f"token-{tenant}"), "tenant": tenant, "principal": "p", "scope": ""}
        for tenant in ("acme", "rival")
    ]
    tokens.write_text(json.dumps({"tokens": entries}))
    settings = GatewaySettings(
        http_address="127.0.0.1:0",
        token_file=tokens,
        max_body_bytes=100_000,
        models=(ServedModelSettings(name="toy", addresses=(toy.running.grpc_address,)),),
    )
    app, server = assemble(settings)
    await app.start()
    try:
        yield Door(toy, f"http://{server.address}/v1")
    finally:
        await app.stop(10.0)


async def test_it_offers_its_models(door: Door) -> None:
    async with door.client() as client:
        assert [one.id for one in (await client.models.list()).data] == ["toy"]


async def test_an_answer_is_the_same_whole_streamed_and_without_drafts(door: Door) -> None:
    given: Mapping[str, Any] = {"max_tokens": 60, "seed": 7, "temperature": 0.9, "frequency_penalty": 0.4}
    whole = await door.create(**given)
    plain = await door.create(**given, extra_body={"speculate": False})
    text, finish, usage = "", None, None
    async with door.client() as client:
        streamed: Any = await client.chat.completions.create(
            model="toy", messages=MESSAGES, stream=True, stream_options={"include_usage": True}, **given
        )
        async for chunk in streamed:
            usage = chunk.usage or usage
            for choice in chunk.choices:
                text += choice.delta.content or ""
                finish = choice.finish_reason or finish
    assert whole.choices[0].message.content == plain.choices[0].message.content == text
    assert whole.choices[0].finish_reason == finish == "length"
    assert whole.usage == plain.usage == usage
    assert whole.usage.completion_tokens == 60
    assert whole.usage.prompt_tokens == 7, "two roles and five words"
    assert len(text.split()) == 60


async def test_stop_texts_end_the_answer_before_them(door: Door) -> None:
    whole = (await door.create(max_tokens=60, temperature=0)).choices[0].message.content
    stop = whole.split()[20]
    short = (await door.create(max_tokens=60, temperature=0, stop=stop)).choices[0]
    assert short.message.content == whole[: whole.index(stop)]
    assert short.finish_reason == "stop"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"n": 2}, "n: "),
        ({"logprobs": True}, "logprobs"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"temperature": 5}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]}, "no tools"),
        ({"stop": ["", "a"]}, "stop strings"),
        ({"tool_choice": "required"}, "there are no tools"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "there are no tools"),
    ],
)
async def test_what_is_not_supported_is_refused_by_name(door: Door, given: dict[str, Any], words: str) -> None:
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError, match=words):
            await door.create(**given, stream=stream)


async def test_errors_have_the_statuses_that_clients_know(door: Door) -> None:
    async with door.client("wrong") as client:
        with pytest.raises(openai.AuthenticationError):
            await client.models.list()
    async with door.client() as client:
        with pytest.raises(openai.NotFoundError, match="offered: toy"):
            await client.chat.completions.create(model="other", messages=MESSAGES)
        long: list[Any] = [{"role": "user", "content": "w1 " * 40_000}]
        with pytest.raises(openai.BadRequestError, match="max_body_bytes"):
            await client.chat.completions.create(model="toy", messages=long)


async def test_outputs_of_one_tenant_draft_for_it_alone(door: Door) -> None:
    """Seen at the model: what the same request costs in passes, again and for somebody else."""

    async def passes(token: str) -> float:
        before = await door.served.metrics()
        async with door.client(token, default_headers={"x-forerun-agent": "a"}) as client:
            await client.chat.completions.create(
                model="toy", messages=MESSAGES, max_tokens=200, seed=99, temperature=1.0
            )
        after = await door.served.metrics()
        accepted = 'forerun_draft_tokens_accepted_total{drafter="recall"}'
        return after[accepted] - before[accepted]

    first, again, other = await passes("token-acme"), await passes("token-acme"), await passes("token-rival")
    assert again > first + 50
    assert other < first + 50


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_hangs_up_frees_the_slot(door: Door, stream: bool) -> None:
    async def live() -> float:
        return (await door.served.metrics())["forerun_decoding_slots_used"]

    body = {"model": "toy", "messages": MESSAGES, "max_tokens": 4_000, "stream": stream, "temperature": 0}
    body["speculate"] = False
    async with httpx.AsyncClient(headers={"authorization": "Bearer token-acme"}) as client:
        asking = asyncio.create_task(client.post(f"{door.base}/chat/completions", json=body, timeout=60))
        async with asyncio.timeout(20):
            while await live() == 0:  # noqa: ASYNC110  # the model is asked over HTTP each time
                await asyncio.sleep(0.01)
        asking.cancel()
        async with asyncio.timeout(10):
            while await live() > 0:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await asyncio.gather(asking, return_exceptions=True)
