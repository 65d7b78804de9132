"""What the predictor expects in a session reaches the model as drafts: a real predictor, the gateway, the toy pair."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest
import pytest_asyncio

from forerun.core.grammar.calls import call_text
from forerun.gateway.app import assemble
from forerun.gateway.expected import ExpectedCalls
from forerun.gateway.settings import GatewaySettings, ServedModelSettings
from forerun.predictor.app import build as build_predictor
from forerun.predictor.settings import PredictorSettings
from forerun.runtime.auth import token_digest
from forerun.runtime.bus_memory import MemoryBroker, MemoryBus
from forerun.runtime.chassis import make_chassis
from forerun.runtime.clock import SystemClock
from forerun.runtime.models.kserve import ServedModel
from forerun.runtime.models.port import Deadlines, Gathered, Message, ModelRequest
from tests.integration.predictor.test_service import Journal
from tests.integration.serving.conftest import Served

pytestmark = pytest.mark.asyncio(loop_scope="module")

USER = "liu_wong_7311"
TEXT: list[Any] = [{"role": "user", "content": "w3 w4 w5"}]
DEADLINES = Deadlines(first_token=60.0, between_tokens=60.0, total=120.0)


async def answered(model: ServedModel, **more: Any) -> str:
    found = Gathered()
    request = ModelRequest(messages=(Message("user", "w3 w4 w5"),), temperature=0.0, max_output_tokens=60, **more)
    async for event in model.generate(request, DEADLINES):
        found.add(event)
    return found.text


async def test_expected_texts_draft_from_the_first_token_on_and_change_nothing(toy: Served) -> None:
    """Seen at the model: passes, without the drafts of a history or of the draft model."""
    model = ServedModel("toy", toy.client, options={"history": False, "drafters": ["recall"], "depth": 7})
    accepted = 'forerun_draft_tokens_accepted_total{drafter="recall"}'

    async def counted(**more: Any) -> tuple[str, float]:
        before = await toy.metrics()
        text = await answered(model, **more)
        return text, (await toy.metrics())[accepted] - before[accepted]

    plain, without = await counted()
    drafted, right = await counted(expected=("w1 w1 w1 w1", plain))
    misled, wrong = await counted(expected=("w1 w2 w1 w2 w1 w2 w3",))
    assert plain == drafted == misled
    assert right >= without + 40
    assert wrong <= without + 5


@dataclass
class Stage:
    """A predictor that knows an agent, and the gateway that asks it."""

    predictor: str
    internal: Path
    tokens: Path
    served: Served

    def settings(self, **more: Any) -> GatewaySettings:
        given: dict[str, Any] = {
            "http_address": "127.0.0.1:0",
            "token_file": self.tokens,
            "internal_token_file": self.internal,
            "models": (ServedModelSettings(name="toy", addresses=(self.served.running.grpc_address,)),),
            "predictor_targets": (self.predictor,),
            "expected_seconds": 2.0,
        }
        return GatewaySettings(**(given | more))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(toy: Served, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    folder = tmp_path_factory.mktemp("expected")
    internal, tokens = folder / "internal", folder / "tokens.json"
    internal.write_text("i" * 48)
    internal.chmod(0o600)
    entry = {"sha256": token_digest("token-t"), "tenant": "t", "principal": "p", "scope": ""}
    tokens.write_text(json.dumps({"tokens": [entry]}))
    broker = MemoryBroker(SystemClock())
    settings = PredictorSettings(save_seconds=3_600, internal_token_file=internal)
    predictor = build_predictor(settings, bus=MemoryBus(broker, "predictor"))
    await predictor.start()
    journal = Journal(MemoryBus(broker, "owner"))
    await journal.listen()
    try:
        for number in range(30):
            await journal.whole(f"s{number}", f"liu_wong_{2000 + number}")
        await journal.begin("live", USER)
        (server,) = [part.component for part in predictor.parts if part.name == "server"]
        yield Stage(server.address, internal, tokens, toy)  # type: ignore[attr-defined]
    finally:
        assert await predictor.stop(10.0)
        await journal.bus.close(1.0)


async def test_the_expected_call_is_written_as_the_model_would(stage: Stage) -> None:
    chassis = make_chassis(stage.settings())
    expected = ExpectedCalls(chassis.network, [stage.predictor], 5.0)
    parameters = {"type": "object", "properties": {"user_id": {"type": "string"}}}
    tools = [{"type": "function", "function": {"name": "get_user", "parameters": parameters}}]
    try:
        found = await expected.of("t", "live", tools)
        assert found[0] == call_text("get_user", json.dumps({"user_id": USER}))
        assert found[0].startswith('<tool_call>\n{"name": "get_user", "arguments": {"user_id": "liu')
        for tenant, session in (("t", "unknown"), ("other", "live"), ("t", "")):
            assert await expected.of(tenant, session, tools) == ()
        assert await ExpectedCalls(chassis.network, [], 5.0).of("t", "live", tools) == ()
        both = ExpectedCalls(chassis.network, ["127.0.0.1:1", stage.predictor], 5.0)
        assert await both.of("t", "live", tools) == found, "a replica that is away hides no other"
    finally:
        await chassis.network.close()


@pytest.mark.parametrize("target", ["predictor", "silent", "nobody"])
async def test_an_answer_is_the_same_with_and_without_a_predictor(stage: Stage, target: str) -> None:
    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()  # until the caller has gone
        writer.close()

    silent = await asyncio.start_server(listen, "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    address = {"predictor": stage.predictor, "silent": f"127.0.0.1:{port}", "nobody": "127.0.0.1:1"}[target]
    app, server = assemble(stage.settings(predictor_targets=(address,), expected_seconds=0.2))
    await app.start()
    loop = asyncio.get_running_loop()
    try:
        client = openai.AsyncOpenAI(base_url=f"http://{server.address}/v1", api_key="token-t", max_retries=0)
        async with client:

            async def content(**headers: str) -> str:
                answer = await client.chat.completions.create(
                    model="toy",
                    messages=TEXT,
                    max_tokens=30,
                    temperature=0,
                    extra_headers=headers,
                )
                return str(answer.choices[0].message.content)

            plain = await content()
            began = loop.time()
            assert await content(**{"x-forerun-session": "live"}) == plain
            assert loop.time() - began < 30
    finally:
        await app.stop(10.0)
        silent.close()
        await silent.wait_closed()
