"""Model servers that are killed and come back under traffic, seen through the gateway with the official client."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from forerun.gateway.app import assemble
from forerun.gateway.settings import GatewaySettings, ServedModelSettings
from forerun.runtime.auth import token_digest
from forerun.serving.keeper import Keeper
from forerun.serving.profile import read_profile
from forerun.serving.render.repository import render
from forerun.serving.server import Installation, Options, Running, running
from tests.integration.serving.conftest import REPOSITORY
from tests.triton.test_serve import free_ports

pytestmark = pytest.mark.timeout(240)

TOKENS = 60


@dataclass
class ModelServer:
    """A real server with the toy pair at one address, which can be killed and started again."""

    installation: Installation
    folder: Path
    address: str
    starts: int = 0
    _running: Running | None = None
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def start(self) -> None:
        self.starts += 1
        repository = self.folder / f"repository-{self.starts}"
        repository.mkdir(parents=True)
        options = Options(stop_seconds=2.0, grpc_address=self.address)
        log = self.folder / f"log-{self.starts}"
        self._running = await self._stack.enter_async_context(running(self.installation, repository, log, options))
        await Keeper(self._running.client, repository).deploy(render(read_profile("toy"), (), base=REPOSITORY))

    async def kill(self) -> None:
        assert self._running is not None
        os.killpg(self._running.pid, signal.SIGKILL)
        await self._stack.aclose()

    async def close(self) -> None:
        await self._stack.aclose()

    async def serves(self) -> None:
        """Until a text is in the making there."""
        assert self._running is not None
        async with httpx.AsyncClient() as client, asyncio.timeout(60):
            while True:
                text = (await client.get(f"http://{self._running.metrics_address}/metrics")).text
                used = [one for one in text.splitlines() if one.startswith("forerun_decoding_slots_used ")]
                if any(float(one.split()[1]) > 0 for one in used):
                    return


@asynccontextmanager
async def gateway(folder: Path, servers: Sequence[ModelServer]) -> AsyncIterator[str]:
    """In front of servers that run; its address."""
    tokens = folder / "tokens.json"
    entry = {"sha256": token_digest("token"), "tenant": "t", "principal": "p", "scope": ""}
    tokens.write_text(json.dumps({"tokens": [entry]}))
    offered = ServedModelSettings(name="toy", addresses=tuple(one.address for one in servers))
    app, door = assemble(GatewaySettings(http_address="127.0.0.1:0", token_file=tokens, models=(offered,)))
    for one in servers:
        await one.start()
    await app.start()
    try:
        yield f"http://{door.address}/v1"
    finally:
        await app.stop(10.0)
        for one in servers:
            await one.close()


def client_of(base: str, agent: str = "a") -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=base, api_key="token", max_retries=0, default_headers={"x-forerun-agent": agent})


async def ask(client: openai.AsyncOpenAI, first: int, *, stream: bool = False, tokens: int = TOKENS) -> Any:
    messages: list[Any] = [{"role": "user", "content": f"w{first} w2 w3"}]
    return await client.chat.completions.create(
        model="toy", messages=messages, stream=stream, max_tokens=tokens, temperature=0.7, seed=first
    )


async def said(client: openai.AsyncOpenAI, first: int, *, stream: bool) -> str:
    answer = await ask(client, first, stream=stream)
    if not stream:
        return str(answer.choices[0].message.content)
    return "".join([choice.delta.content or "" async for chunk in answer for choice in chunk.choices])


async def test_a_server_that_is_killed_and_comes_back(installation: Installation, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    server = ModelServer(installation, tmp_path / "server", f"127.0.0.1:{port}")
    async with gateway(tmp_path, [server]) as base, client_of(base) as client:
        before = await said(client, 1, stream=False)

        chunks = aiter(await ask(client, 1, stream=True, tokens=4_000))
        await anext(chunks)
        await server.kill()
        with pytest.raises(openai.APIError) as broken:
            async for _ in chunks:
                pass
        assert (broken.value.code, broken.value.type) == ("MODEL_UNAVAILABLE", "server_error")

        while True:
            with pytest.raises(openai.InternalServerError) as away:
                await ask(client, 1)
            assert (away.value.status_code, away.value.code) == (503, "MODEL_UNAVAILABLE")
            if "retry-after" in away.value.response.headers:
                break
        assert 1 <= int(away.value.response.headers["retry-after"]) <= 2

        waiting = asyncio.create_task(said(client.with_options(max_retries=20), 1, stream=False))
        await server.start()
        assert await waiting == before, "who comes back when told to needs nobody's help"
        assert await said(client, 1, stream=True) == before


@dataclass
class Traffic:
    """Agents that ask without pause, and compare."""

    base: str
    expected: dict[int, str]
    answers: int = 0
    failures: list[openai.APIError] = field(default_factory=list)
    over: bool = False
    _fresh: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def run(self, agent: int) -> None:
        async with client_of(self.base, f"agent-{agent}") as client:
            turn = 0
            while not self.over:
                turn += 1
                first = 1 + (agent + turn) % len(self.expected)
                try:
                    assert await said(client, first, stream=turn % 2 == 0) == self.expected[first]
                except openai.APIError as error:
                    self.failures.append(error)
                    continue
                async with self._fresh:
                    self.answers += 1
                    self._fresh.notify_all()

    async def more(self, count: int) -> None:
        wanted = self.answers + count
        async with asyncio.timeout(60), self._fresh:
            await self._fresh.wait_for(lambda: self.answers >= wanted)


async def test_with_replicas_only_texts_that_had_begun_there_end_and_all_others_are_answered(
    installation: Installation, tmp_path: Path
) -> None:
    agents = 4
    addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
    servers = [ModelServer(installation, tmp_path / f"server-{n}", one) for n, one in enumerate(addresses)]
    async with gateway(tmp_path, servers) as base:
        async with client_of(base) as client:
            expected = {first: await said(client, first, stream=False) for first in range(1, 6)}
        traffic = Traffic(base, expected)
        async with asyncio.TaskGroup() as group:
            for agent in range(agents):
                group.create_task(traffic.run(agent))
            for victim in servers:
                await victim.serves()
                before = len(traffic.failures)
                await victim.kill()
                await traffic.more(20)
                assert len(traffic.failures) - before <= agents, "at most what each of them had under way there"
                await victim.start()
                await victim.serves()
                await traffic.more(10)
            traffic.over = True
    assert {error.code for error in traffic.failures} <= {"MODEL_UNAVAILABLE"}
