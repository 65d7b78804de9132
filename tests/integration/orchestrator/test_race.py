"""A race through the services: a slow provider, an equivalent one, and what the tools themselves see of it."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from forerun.cli.virtual import VirtualPlatform
from forerun.client import AsyncClient, Status
from forerun.runtime.clock import Clock
from forerun.runtime.ids import Ids
from forerun.runtime.virtual import run_virtual

POLICY = """
policies:
  - name: test
    mode: MODE_EXACT
    tools:
      - tool: find
        effect: EFFECT_READ
        reads: [{template: "index", scope: RESOURCE_SCOPE_SESSION}]
        race: {afterQuantile: 0.9, mostExtra: 0.1}
servers:
  - name: s
    tools:
      - name: find
        inputSchema: '{"type": "object"}'
        http:
          method: POST
          url: "http://one.test/find"
          alternatives: ["http://two.test/find"]
          jsonBody: true
"""


class Providers:
    """Two hosts that answer the same; the first hangs for some questions."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.stopped_after: list[float] = []

    def app(self) -> Starlette:
        return Starlette(routes=[Route("/find", self._find, methods=["POST"])])

    async def _find(self, request: Request) -> Response:
        host, question = request.url.hostname or "", await request.json()
        self.asked[host] += 1
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            await asyncio.sleep(20.0 if host == "one.test" and question.get("slow") else 1.0)
        except asyncio.CancelledError:
            self.stopped_after.append(loop.time() - began)
            raise
        return JSONResponse({"found": question["q"]})


def test_a_straggler_is_answered_by_the_other_provider_and_stopped(tmp_path: Path) -> None:
    providers = Providers()
    policy_file = tmp_path / "policy.yaml"
    policy_file.write_text(POLICY)

    async def main(clock: Clock, ids: Ids) -> dict[str, Any]:
        platform = VirtualPlatform(
            directory=tmp_path,
            policy_file=policy_file,
            clock=clock,
            ids=ids,
            http=httpx.ASGITransport(app=providers.app()),
            settings={},
        )
        await platform.start()
        try:
            async with AsyncClient(channel=platform.channel(), ids=ids) as client, client.session("a") as session:
                for number in range(30):
                    await session.call_tool("find", {"q": number})
                began = clock.monotonic()
                result = await session.call_tool("find", {"q": 99, "slow": True})
                seconds = clock.monotonic() - began
                await asyncio.sleep(1.0)
        finally:
            await platform.stop()
        return {"result": result, "seconds": seconds, "totals": session.totals}

    seen = run_virtual(main, epoch=1_700_000_000.0, seed=1)
    assert seen["result"].status is Status.OK
    assert seen["result"].json() == {"found": 99}
    assert 1.9 < seen["seconds"] < 2.2, "a second until it is slower than most, a second at the other provider"
    assert providers.asked == {"one.test": 31, "two.test": 1}
    (stopped,) = providers.stopped_after
    assert stopped < seen["seconds"] + 0.1, "the loser is stopped down to the provider within 100 ms"
    assert (seen["totals"].races, seen["totals"].races_won_by_second, seen["totals"].calls) == (1, 1, 31)
