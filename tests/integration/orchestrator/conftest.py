"""The whole platform in memory and virtual time, with a tool server that keeps its own log."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from forerun.cli.virtual import VirtualPlatform
from forerun.client import AsyncClient
from forerun.runtime.clock import Clock
from forerun.runtime.ids import Ids
from forerun.runtime.virtual import run_virtual

POLICY = """
policies:
  - name: test
    mode: MODE_EXACT
    alpha: 1
    lambdaPerSecond: 4
    minimumEvidence: 3
    tools:
      - {tool: get, effect: EFFECT_READ, reads: [{template: "o/{id}", scope: RESOURCE_SCOPE_SESSION}], speculate: true}
      - {tool: set, effect: EFFECT_WRITE, writes: [{template: "o/{id}", scope: RESOURCE_SCOPE_SESSION}]}
      - {tool: stock, effect: EFFECT_READ, reads: [{template: "s/{id}", scope: RESOURCE_SCOPE_SHARED}], speculate: true}
      - {tool: sell, effect: EFFECT_WRITE, writes: [{template: "s/{id}", scope: RESOURCE_SCOPE_SHARED}]}
      - {tool: big, effect: EFFECT_READ, reads: [{template: "big", scope: RESOURCE_SCOPE_SESSION}]}
      - {tool: hang, effect: EFFECT_READ, reads: [{template: "hang", scope: RESOURCE_SCOPE_SESSION}]}
      - {tool: send, effect: EFFECT_WRITE, writes: [{template: "mail", scope: RESOURCE_SCOPE_SESSION}]}
servers:
  - name: s
    tools:
"""
TOOLS = ("get", "set", "stock", "sell", "big", "hang", "send", "mystery")
SCHEMA = '{"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}'


def policy_text(extra: str = "") -> str:
    """The policy file, with tools that need an id."""
    lines = [
        f"      - {{name: {name}, inputSchema: '{SCHEMA}', http: {{method: POST, "
        f'url: "http://tools.test/{{session}}/{name}", jsonBody: true, idempotencyHeader: Idempotency-Key}}}}'
        for name in TOOLS
    ]
    return POLICY + "\n".join(lines) + "\n" + extra


@dataclass
class World:
    """The tools' side: values by resource, and the log of everything that was executed."""

    seconds: float = 1.0
    values: dict[str, int] = field(default_factory=dict)
    log: list[tuple[str, dict[str, Any], str]] = field(default_factory=list)
    cancelled: int = 0

    def app(self) -> Starlette:
        """The tool server."""
        return Starlette(routes=[Route("/{session}/{tool}", self._call, methods=["POST"])])

    def executions(self, tool: str) -> int:
        """How often a tool was executed."""
        return sum(name == tool for name, _, _ in self.log)

    async def _call(self, request: Request) -> Response:
        tool, arguments = request.path_params["tool"], await request.json()
        self.log.append((tool, arguments, request.headers.get("idempotency-key", "")))
        key = f"{tool in ('stock', 'sell')}/{arguments['id']}"
        before = self.values.get(key, 0)
        try:
            await asyncio.sleep(10_000.0 if tool == "hang" else self.seconds)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if tool in ("set", "sell", "mystery", "send"):
            before = self.values[key] = self.values.get(key, 0) + 1
        if tool == "big":
            return Response(b"x" * int(arguments["id"]), media_type="text/plain")
        return JSONResponse({"id": arguments["id"], "value": before, "next": arguments["id"] + 1})


@dataclass
class Stage:
    """What a test gets."""

    platform: VirtualPlatform
    client: AsyncClient
    world: World
    ids: Ids
    policy_file: Path

    @asynccontextmanager
    async def another_client(self) -> AsyncIterator[AsyncClient]:
        """A second client."""
        async with AsyncClient(channel=self.platform.channel(), ids=self.ids) as client:
            yield client


Play = Callable[[Stage], Awaitable[None]]


@pytest.fixture
def stage(tmp_path: Path) -> Callable[[Play], None]:
    """Runs a coroutine function on a started platform, in virtual time."""

    def run(play: Play, *, settings: dict[str, dict[str, Any]] | None = None) -> None:
        async def main(clock: Clock, ids: Ids) -> None:
            policy_file = tmp_path / "policy.yaml"
            policy_file.write_text(policy_text())
            world = World()
            platform = VirtualPlatform(
                directory=tmp_path,
                policy_file=policy_file,
                clock=clock,
                ids=ids,
                http=httpx.ASGITransport(app=world.app()),
                settings=settings or {},
            )
            await platform.start()
            try:
                async with AsyncClient(channel=platform.channel(), ids=ids) as client:
                    await play(Stage(platform, client, world, ids, policy_file))
            finally:
                await platform.stop()

        run_virtual(main, epoch=1_700_000_000.0, seed=1)

    return run


def value_of(content: bytes) -> int:
    """The value in an observation."""
    value: int = json.loads(content)["value"]
    return value
