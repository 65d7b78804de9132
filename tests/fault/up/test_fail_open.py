"""A real platform goes away and comes back while an agent works: the agent goes on, nothing is written twice."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from forerun.cli.up import Platform
from forerun.client import Answer, AsyncClient, AsyncSession, Call, Result, Served, Status
from tests.integration.up.processes import until_gone

POLICY = """
policies:
  - name: test
    mode: MODE_EXACT
    tools:
      - {tool: get, effect: EFFECT_READ, reads: [{template: "stock/{id}", scope: RESOURCE_SCOPE_SHARED}]}
      - {tool: add, effect: EFFECT_WRITE, writes: [{template: "stock/{id}", scope: RESOURCE_SCOPE_SHARED}]}
servers:
  - name: shop
    tools:
      - {name: get, http: {method: GET, url: "http://127.0.0.1:PORT/get/{id}"}}
      - {name: add, http: {method: POST, url: "http://127.0.0.1:PORT/add/{id}"}}
"""


@dataclass
class Shop:
    """A tool server that counts: `GET /get/ID` tells, `POST /add/ID` adds one."""

    port: int = 0
    seconds: float = 0.0
    stock: Counter[str] = field(default_factory=Counter)
    begun: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                _, name, item = line.split()[1].decode().split("/")
                length = 0
                while (header := (await reader.readline()).strip().lower()) != b"":
                    if header.startswith(b"content-length:"):
                        length = int(header.partition(b":")[2])
                await reader.readexactly(length)
                self.stock[item] += name == "add"
                self.begun.set()
                await asyncio.sleep(self.seconds)
                content = b"%d" % self.stock[item]
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(content) + content)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def direct(self, call: Call) -> Answer:
        """The agent's own way to it."""
        assert isinstance(call.arguments, dict)
        item = str(call.arguments["id"])
        self.stock[item] += call.name == "add"
        return Answer(b"%d" % self.stock[item], "text/plain")


async def until(condition: Callable[[], object], seconds: float = 40.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  (the condition lies in another process)
            await asyncio.sleep(0.02)


async def ask(session: AsyncSession, name: str, item: str, seconds: float = 20.0) -> Result:
    async with asyncio.timeout(seconds):
        (result,) = await session.call_tools([Call(name, {"id": item})])
    return result


@pytest.mark.timeout(240)
async def test_the_agent_goes_on_without_platform_and_without_broker(tmp_path: Path, unused_tcp_port: int) -> None:
    shop = Shop()
    server = await asyncio.start_server(shop.serve, "127.0.0.1", 0)
    shop.port = server.sockets[0].getsockname()[1]
    file, data = tmp_path / "policy.yaml", tmp_path / "data"
    file.write_text(POLICY.replace("PORT", str(shop.port)))
    platform = Platform(data, file, port=unused_tcp_port)
    await platform.start()
    try:
        client = AsyncClient(platform.address, platform.token, direct=shop.direct, direct_after_seconds=1.0)
        async with client, client.session("agent") as session, client.session("agent") as other:
            for one in (session, other):
                assert (await ask(one, "get", "a")).text == "0"
                assert (await ask(one, "get", "a")).served is Served.MEMO

            # Nobody is there: a bounded wait, then the agent's own way.
            await platform.stop()
            added = await ask(session, "add", "a", 5.0)
            assert (added.served, added.text, session.direct) == (Served.FALLBACK, "1", True)
            assert (await ask(session, "get", "a", 1.0)).text == "1"

            # Everybody is there again: what was written meanwhile is seen, in every session.
            platform = Platform(data, file, port=unused_tcp_port)
            await platform.start()
            await until(lambda: not session.direct and not other.direct)
            for one in (session, other):
                result = await ask(one, "get", "a")
                assert (result.text, result.served) == ("1", Served.DIRECT)
                await ask(one, "get", "a")  # the first one did not wait to hear what others have written
                assert (await ask(one, "get", "a")).served is Served.MEMO

            # The broker hangs: a write cannot be announced, so the platform does not start it, and the agent does.
            broker = platform.pid_of("broker")
            assert broker is not None
            os.kill(broker, signal.SIGSTOP)
            try:
                added = await ask(session, "add", "a")
                assert (added.served, added.text, shop.stock["a"]) == (Served.FALLBACK, "2", 2)
            finally:
                os.kill(broker, signal.SIGCONT)
            for one in (session, other):  # the first one is answered when the platform knows of the write
                result = await ask(one, "get", "a")
                assert result.text == "2"
            await until(lambda: not session.direct)

            # The worst moment: the write has begun, and its owner or its worker dies. It is never repeated.
            shop.seconds = 1.0
            for victim in ("orchestrator", "sandbox"):
                shop.begun.clear()
                asking = asyncio.ensure_future(ask(session, "add", victim, 90.0))
                await shop.begun.wait()
                platform.kill(victim)
                assert (await asking).status in (Status.OK, Status.OUTCOME_UNKNOWN)
                assert shop.stock[victim] == 1
                await platform.until_serving(40)
    finally:
        await platform.stop()
        server.close()
    await until_gone(data)
