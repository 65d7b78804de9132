"""What goes on in the background of real services after an exception that nobody had foreseen."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import PlainTextResponse

from forerun.gateway.app import HttpServer
from forerun.runtime import subjects
from forerun.runtime.app import App, Part, run
from forerun.runtime.bus import Message
from forerun.runtime.bus_memory import MemoryBroker, MemoryBus
from forerun.runtime.bus_nats_pull import Pull
from forerun.runtime.clock import SystemClock
from forerun.runtime.metrics import Metrics
from forerun.runtime.tasks import Failure
from forerun.v1 import sandbox_pb2
from tests.integration.sandbox.test_service import running


class Stumbling(MemoryBus):
    """A bus with a fault: the first load report meets it."""

    def __init__(self, broker: MemoryBroker) -> None:
        super().__init__(broker, "sandbox")
        self.stumbled = 0

    async def notify(self, subject: str, data: bytes, **more: Any) -> None:
        if not self.stumbled:
            self.stumbled += 1
            raise RuntimeError("a fault of ours")
        await super().notify(subject, data, **more)


async def test_a_worker_reports_its_load_again_after_an_exception(tmp_path: Path) -> None:
    broker = MemoryBroker(SystemClock())
    heard: asyncio.Queue[sandbox_pb2.LoadReport] = asyncio.Queue()

    async def hear(message: Message) -> None:
        heard.put_nowait(sandbox_pb2.LoadReport.FromString(message.data))

    await MemoryBus(broker, "orchestrator").subscribe(subjects.loads(), hear, pending_messages=100)
    bus = Stumbling(broker)
    async with running(tmp_path, bus), asyncio.timeout(30):
        assert (await heard.get()).worker == "w1"
        assert bus.stumbled == 1


class Wire:
    """A connection that is always up; a request that it `stumbles` over meets a fault."""

    def __init__(self, stumbles: int) -> None:
        self.disconnected: list[Callable[[], None]] = []
        self.asked = asyncio.Event()
        self.requests = 0
        self.stumbles = stumbles

    def inbox(self) -> str:
        return "inbox"

    def route(self, subject: str, arrived: Callable[..., None]) -> int:
        return 1

    def unroute(self, sid: int) -> None:
        pass

    async def until_connected(self) -> None:
        pass

    def send(self, subject: str, data: bytes, header_block: bytes = b"", reply: str = "") -> None:
        self.requests += 1
        if self.requests == self.stumbles:
            raise RuntimeError("a fault of ours")
        self.asked.set()


class Source:
    """Makes a consumer, but for the time that fails as nobody had foreseen."""

    def __init__(self, stumbles: int) -> None:
        self.made = 0
        self.stumbles = stumbles

    async def ensure(self) -> str:
        self.made += 1
        if self.made == self.stumbles:
            raise RuntimeError("a fault of ours")
        return "consumer"


@pytest.mark.parametrize("place", ["consumer", "request"])
async def test_a_consumer_pulls_again_after_an_exception(place: str) -> None:
    wire, source = Wire(stumbles=2 * (place == "request")), Source(stumbles=2 * (place == "consumer"))
    pull = Pull(wire, "events", source, lambda *_: None, lambda: 1)  # type: ignore[arg-type]
    await pull.start()
    wire.asked.clear()
    wire.disconnected[0]()  # the connection broke
    async with asyncio.timeout(10):
        await wire.asked.wait()
    assert (source.made, pull.healthy) == (3, True)
    await pull.close()


async def tick_that_fails(_: object, counter: int) -> bool:
    raise RuntimeError("a fault of the server's")


async def tick_that_ends(_: object, counter: int) -> bool:
    return True


@pytest.mark.parametrize("tick", [tick_that_fails, tick_that_ends])
async def test_a_gateway_without_its_http_server_ends(
    tick: Callable[[object, int], Awaitable[bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forerun.gateway.app._Quiet.on_tick", tick)
    failed = Failure()
    server = HttpServer(PlainTextResponse("ok"), "127.0.0.1:0", failed)
    app = App(service="gateway", parts=[Part("http", server)], metrics=Metrics("gateway"), failed=failed)
    async with asyncio.timeout(20):
        assert await run(app, 5.0) == 1
    assert server._socket is not None and server._socket.fileno() == -1, "nobody is let wait at its door"


async def test_a_gateway_that_is_stopped_has_not_failed() -> None:
    failed = Failure()
    server = HttpServer(PlainTextResponse("ok"), "127.0.0.1:0", failed)
    await server.start()
    await server.stop(5.0)
    assert failed.error is None
