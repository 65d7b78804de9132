"""The kill switch on a real platform under load: within a second nothing is launched ahead, by the tools' own count."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from forerun.cli.up import Platform
from forerun.client import AsyncClient, Call, Served
from tests.integration.up.processes import until_gone

AGENTS = 6
TOOL_SECONDS = 0.02
THINKING_SECONDS = 0.06
WITHIN_SECONDS = 1.0


@dataclass
class Walk:
    """A tool whose answer names the next call, and its own log.

    Attributes:
        launches: When which execution has reached it.
        asked: When an agent asked for which call.
    """

    launches: list[tuple[float, str]] = field(default_factory=list)
    asked: dict[str, float] = field(default_factory=dict)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.readline():
                length = 0
                while (header := (await reader.readline()).strip().lower()) != b"":
                    if header.startswith(b"content-length:"):
                        length = int(header.partition(b":")[2])
                name = json.loads(await reader.readexactly(length))["id"]
                self.launches.append((time.monotonic(), name))
                await asyncio.sleep(TOOL_SECONDS)
                content = json.dumps({"next": hashlib.blake2b(name.encode(), digest_size=8).hexdigest()}).encode()
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(content) + content)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    def ahead(self, since: float) -> int:
        """Launches since then that no agent had asked for by the time."""
        return sum(at >= since and self.asked.get(name, at + 1.0) > at for at, name in self.launches)


async def agent(client: AsyncClient, walk: Walk, number: int, served: list[Served], mode: str | None = None) -> None:
    name = f"start-{number}"
    async with client.session("walker", mode=mode) as session:
        while True:
            await session.model_started()
            await asyncio.sleep(THINKING_SECONDS)
            walk.asked[name] = time.monotonic()
            (result,) = await session.call_tools([Call("walk", {"id": name})])
            served.append(result.served)
            name = result.raise_for_status().json()["next"]


def policy(port: int, *, off: bool) -> str:
    contract = {"tool": "walk", "effect": "EFFECT_READ", "speculate": True, "reads": [{"template": "walk"}]}
    rules: dict[str, Any] = {
        "name": "test", "mode": "MODE_EXACT", "alpha": 1, "lambdaPerSecond": 4, "minimumEvidence": 3, "auditShare": 0,
        "off": off, "budget": {"initialCredits": 20, "creditsPerCall": 1}, "tools": [contract],
    }  # fmt: skip
    schema = '{"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]}'
    http = {"method": "POST", "url": f"http://127.0.0.1:{port}/", "jsonBody": True}
    return json.dumps({"policies": [rules], "servers": [{"name": "s", "tools": [{"name": "walk", "inputSchema": schema, "http": http}]}]})  # fmt: skip  # noqa: E501


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  (the condition lies in other processes)
            await asyncio.sleep(0.02)


@pytest.mark.timeout(180)
async def test_nothing_runs_ahead_within_a_second(tmp_path: Path) -> None:
    walk, served = Walk(), list[Served]()
    server = await asyncio.start_server(walk.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    file = tmp_path / "policy.yaml"
    file.write_text(policy(port, off=False))
    async with (
        Platform(tmp_path / "data", file, port=0) as platform,
        AsyncClient(platform.address, platform.token) as client,
    ):
        agents = [asyncio.ensure_future(agent(client, walk, number, served)) for number in range(AGENTS)]
        try:
            for turn_off, turn_on in (
                (lambda: client.set_speculation(on=False), lambda: client.set_speculation(on=True)),
                (lambda: write(file, policy(port, off=True)), lambda: write(file, policy(port, off=False))),
            ):
                began_at = time.monotonic()
                await until(lambda began_at=began_at: walk.ahead(began_at) >= 3 * AGENTS)  # type: ignore[misc]
                await turn_off()
                quiet_at = time.monotonic() + WITHIN_SECONDS
                await asyncio.sleep(WITHIN_SECONDS)  # what is promised
                before = len(served)
                await until(lambda before=before: len(served) >= before + 5 * AGENTS)  # type: ignore[misc]
                assert walk.ahead(quiet_at) == 0
                assert set(served[before + AGENTS :]) == {Served.DIRECT}
                await turn_on()
            # The request's own word, for one session: from its beginning, while others run ahead.
            await until(lambda: served[-1] in (Served.READY, Served.JOINED))
            alone: list[Served] = []
            off = asyncio.ensure_future(agent(client, walk, AGENTS, alone, "off"))
            agents.append(off)
            await until(lambda: len(alone) >= 10)
            assert set(alone) == {Served.DIRECT}
        finally:
            for task in agents:
                task.cancel()
            done, _ = await asyncio.wait(agents)
    server.close()
    assert all(task.cancelled() for task in done)
    await until_gone(tmp_path / "data")


async def write(file: Path, text: str) -> None:
    """As an editor does: whole or not at all."""
    half = file.with_suffix(".new")
    half.write_text(text)
    half.replace(file)
