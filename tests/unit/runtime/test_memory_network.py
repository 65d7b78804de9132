"""Faults of the memory network, under virtual time."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
import pytest

from forerun.runtime.clock import LoopClock
from forerun.runtime.errors import DeadlineExceeded, ErrorReason, FailedPrecondition, Unavailable
from forerun.runtime.ids import SeededIds
from forerun.runtime.memory_network import MemoryFabric, MemoryNetwork
from forerun.runtime.metrics import Metrics
from forerun.runtime.network import rpc_errors
from forerun.runtime.network_inbound import Inbound
from forerun.runtime.tracing import Tracing
from forerun.runtime.virtual import run_virtual

TARGET = "server:1"


class Sleeper:
    cancelled = 0

    async def once(self, request: bytes, context: Any) -> bytes:
        try:
            await asyncio.sleep(float(request))
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return context.peer().encode()  # type: ignore[no-any-return]

    async def both(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for request in requests:
            yield request

    def register(self, server: Any) -> None:
        handlers: dict[str, Any] = {
            "Once": grpc.unary_unary_rpc_method_handler(self.once),
            "Both": grpc.stream_stream_rpc_method_handler(self.both),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t.S", handlers),))


class World:
    def __init__(self) -> None:
        self.fabric = MemoryFabric()
        self.sleeper = Sleeper()
        self.handle: Any = None

    def network(self, source: str) -> MemoryNetwork:
        inbound = Inbound(authenticator=None, metrics=Metrics("sandbox"), tracing=Tracing("test"))
        return MemoryNetwork(self.fabric, inbound, source=source)

    async def serve(self) -> None:
        self.handle = await self.network("server").serve("s", TARGET, [self.sleeper.register], services=[])

    def once(self, source: str = "a") -> Any:
        return self.network(source).channel(TARGET).unary_unary("/t.S/Once")

    def both(self, source: str = "a") -> Any:
        return self.network(source).channel(TARGET).stream_stream("/t.S/Both")


def in_world(main: Callable[[World], Awaitable[None]]) -> None:
    async def run(clock: LoopClock, ids: SeededIds) -> None:
        world = World()
        await world.serve()
        await main(world)

    run_virtual(run)


def now() -> float:
    return asyncio.get_running_loop().time()


async def unavailable(call: Awaitable[Any]) -> None:
    with pytest.raises(Unavailable) as raised, rpc_errors():
        await call
    assert raised.value.reason is ErrorReason.PEER_UNAVAILABLE


def test_the_server_sees_who_calls() -> None:
    async def main(world: World) -> None:
        assert await world.once("b")(b"0", timeout=1) == b"b"

    in_world(main)


def test_delays_apply_each_way_to_every_message() -> None:
    async def main(world: World) -> None:
        world.fabric.delay(TARGET, 0.25, source="a")
        assert await world.once("a")(b"1", timeout=10) == b"a"
        assert now() == pytest.approx(1.5)
        call = world.both("a")()
        for _ in range(3):
            await call.write(b"x")
        assert [await call.read() for _ in range(3)] == [b"x"] * 3
        assert now() == pytest.approx(2.0)
        assert await world.once("b")(b"0", timeout=10) == b"b"
        assert now() == pytest.approx(2.0)

    in_world(main)


def test_a_deadline_counts_the_way_and_stops_the_handler() -> None:
    async def main(world: World) -> None:
        world.fabric.delay(TARGET, 0.4)
        with pytest.raises(DeadlineExceeded), rpc_errors():
            await world.once()(b"0.5", timeout=1.0)
        assert now() == 1.0
        await asyncio.sleep(5)
        assert world.sleeper.cancelled == 0  # it had answered; the answer was on its way
        with pytest.raises(DeadlineExceeded), rpc_errors():
            await world.once()(b"9", timeout=1.0)
        await asyncio.sleep(0)
        assert world.sleeper.cancelled == 1

    in_world(main)


def test_a_deadline_that_passes_before_arrival_never_reaches_the_handler() -> None:
    async def main(world: World) -> None:
        world.fabric.delay(TARGET, 5.0)
        with pytest.raises(DeadlineExceeded), rpc_errors():
            await world.once()(b"9", timeout=1.0)
        await asyncio.sleep(20)
        assert world.sleeper.cancelled == 0

    in_world(main)


def test_refusing_one_caller_leaves_the_others_and_running_calls_alone() -> None:
    async def main(world: World) -> None:
        running = world.once("a")(b"3", timeout=10)
        await asyncio.sleep(1)
        world.fabric.refuse(TARGET, source="a")
        await unavailable(world.once("a")(b"0", timeout=1))
        assert await world.once("b")(b"0", timeout=1) == b"b"
        assert await running == b"a"
        world.fabric.heal(TARGET, source="a")
        assert await world.once("a")(b"0", timeout=1) == b"a"

    in_world(main)


def test_dropping_breaks_running_calls_at_both_ends() -> None:
    async def main(world: World) -> None:
        calls = [world.once(source)(b"100", timeout=1000) for source in ("a", "b")]
        await asyncio.sleep(1)
        world.fabric.drop(TARGET, source="a")
        await unavailable(calls[0])
        await asyncio.sleep(0)
        assert (world.sleeper.cancelled, calls[1].done()) == (1, False)
        world.fabric.drop(TARGET)
        await unavailable(calls[1])
        assert await world.once("a")(b"0", timeout=1) == b"a"

    in_world(main)


def test_a_server_that_stops_frees_its_address_and_returns() -> None:
    async def main(world: World) -> None:
        with pytest.raises(FailedPrecondition, match="taken"):
            await world.serve()
        await world.handle.stop(0)
        await unavailable(world.once()(b"0", timeout=1))
        channel = world.network("a").channel(TARGET)
        ready = asyncio.create_task(channel.channel_ready())
        await asyncio.sleep(1)
        assert not ready.done()
        await world.serve()
        await ready
        assert await world.once()(b"0", timeout=1) == b"a"

    in_world(main)


def test_a_call_that_nobody_holds_is_cancelled() -> None:
    async def main(world: World) -> None:
        call = world.once()(b"100", timeout=1000)
        await asyncio.sleep(1)
        del call
        await asyncio.sleep(1)
        assert world.sleeper.cancelled == 1

    in_world(main)
