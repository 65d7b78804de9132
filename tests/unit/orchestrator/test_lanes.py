"""Streams that carry one execution after the other: what is kept, what is used again, and what a broken one means."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from forerun.core import limits
from forerun.orchestrator.lanes import Lanes, ResultTooLargeError
from forerun.runtime.clock import LoopClock
from forerun.runtime.errors import DeadlineExceeded, ErrorReason, ResourceExhausted, Unavailable, never_started
from forerun.runtime.ids import SeededIds
from forerun.runtime.memory_network import MemoryFabric, MemoryNetwork
from forerun.runtime.metrics import Metrics
from forerun.runtime.network import ServerHandle
from forerun.runtime.network_inbound import Inbound
from forerun.runtime.tracing import Tracing, use_trace
from forerun.runtime.virtual import run_virtual
from forerun.sandbox.turns import Turns
from forerun.v1 import common_pb2, sandbox_pb2, sandbox_pb2_grpc

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Worker(sandbox_pb2_grpc.SandboxServiceServicer):
    """Runs tools named after what they do."""

    def __init__(self) -> None:
        self.turns = Turns()
        self.streams = 0
        self.open = 0
        self.ran: list[str] = []
        self.stopped: list[str] = []
        self.traces: list[str] = []

    async def ExecuteInTurn(  # noqa: N802
        self, request_iterator: AsyncIterator[sandbox_pb2.ExecuteInTurnRequest], context: Any
    ) -> AsyncIterator[sandbox_pb2.ExecuteInTurnResponse]:
        self.streams += 1
        self.open += 1
        try:
            while (message := await self.turns.next(request_iterator)) is not None:
                self.traces.append(message.traceparent)
                tool = message.request.action.tool
                if tool == "refused":
                    raise ResourceExhausted(ErrorReason.NO_FREE_SLOT, "no slot is free")
                self.ran.append(message.request.execution)
                if tool == "large":
                    for _ in range(3):
                        yield response(chunk=sandbox_pb2.ExecutionChunk(data=b"x" * 400))
                try:
                    await asyncio.sleep(float(tool) if tool.isdigit() else 0.0)
                except asyncio.CancelledError:
                    self.stopped.append(message.request.execution)
                    raise
                observation = common_pb2.Observation(content=message.request.execution.encode())
                yield response(finished=sandbox_pb2.ExecutionFinished(observation=observation))
        finally:
            self.open -= 1


def response(**step: Any) -> sandbox_pb2.ExecuteInTurnResponse:
    return sandbox_pb2.ExecuteInTurnResponse(response=sandbox_pb2.ExecuteResponse(**step))


class Place:
    def __init__(self, fabric: MemoryFabric, worker: Worker, handle: ServerHandle, lanes: Lanes) -> None:
        self.fabric, self.worker, self.handle, self.lanes = fabric, worker, handle, lanes
        self._count = 0

    async def execute(self, tool: str = "0", timeout: float = 30.0) -> str:
        self._count += 1
        request = sandbox_pb2.ExecuteRequest(execution=f"e{self._count}", action=common_pb2.Action(tool=tool))
        finished, chunks = await self.lanes.execute(request, timeout)
        return finished.observation.content.decode() + chunks.decode()

    async def stop(self) -> None:
        self.worker.turns.refuse()
        await self.handle.stop(20.0)


def placed(play: Callable[[Place], Awaitable[None]]) -> None:
    async def main(clock: LoopClock, ids: SeededIds) -> None:
        fabric, worker = MemoryFabric(), Worker()  # type: ignore[abstract]  # executions in turn only

        def network(source: str) -> MemoryNetwork:
            inbound = Inbound(authenticator=None, metrics=Metrics("sandbox"), tracing=Tracing("test"))
            return MemoryNetwork(fabric, inbound, source=source)

        def register(server: Any) -> None:
            sandbox_pb2_grpc.add_SandboxServiceServicer_to_server(worker, server)

        handle = await network("w").serve("w", "w:1", [register], services=[])
        client = network("o")
        lanes = Lanes(sandbox_pb2_grpc.SandboxServiceStub(client.channel("w:1")))
        await play(Place(fabric, worker, handle, lanes))
        await client.close()
        await handle.stop(0.1)
        assert worker.open == 0

    run_virtual(main)


def test_one_after_the_other_shares_a_stream_and_at_once_they_do_not() -> None:
    async def play(place: Place) -> None:
        assert [await place.execute() for _ in range(5)] == ["e1", "e2", "e3", "e4", "e5"]
        assert place.worker.streams == 1
        await asyncio.gather(*(place.execute("1") for _ in range(3)))
        assert place.worker.streams == 3
        await asyncio.gather(*(place.execute("1") for _ in range(3)))
        assert place.worker.streams == 3

    placed(play)


def test_each_has_the_trace_of_its_own_call() -> None:
    async def play(place: Place) -> None:
        use_trace(TRACE)
        await place.execute()
        use_trace(None)
        await place.execute()
        assert place.worker.traces == [TRACE, ""]

    placed(play)


def test_to_give_up_stops_the_tool_and_nothing_else_uses_that_stream() -> None:
    async def play(place: Place) -> None:
        running = asyncio.ensure_future(place.execute("9"))
        await asyncio.sleep(1.0)
        running.cancel()
        await asyncio.wait([running])
        with pytest.raises(DeadlineExceeded):
            await place.execute("9", timeout=2.0)
        await asyncio.sleep(0.1)
        assert place.worker.stopped == ["e1", "e2"]
        assert (await place.execute(), place.worker.streams) == ("e3", 3)

    placed(play)


def test_a_refusal_is_told_and_the_next_one_has_a_stream() -> None:
    async def play(place: Place) -> None:
        await place.execute()
        with pytest.raises(ResourceExhausted):
            await place.execute("refused")
        assert await place.execute() == "e3"
        assert place.worker.ran == ["e1", "e3"]

    placed(play)


def test_a_result_that_is_too_large_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play(place: Place) -> None:
        assert len(await place.execute("large")) == 1202
        monkeypatch.setattr(limits, "RESULT_BYTES", 1000)
        with pytest.raises(ResultTooLargeError):
            await place.execute("large")

    placed(play)


def test_a_worker_that_stops_ends_what_runs_and_is_not_held_up_by_streams_without_work() -> None:
    async def play(place: Place) -> None:
        await asyncio.gather(place.execute("1"), place.execute("1"))
        running = asyncio.ensure_future(place.execute("5"))
        await asyncio.sleep(0.5)
        begun_at = asyncio.get_running_loop().time()
        stopping = asyncio.ensure_future(place.stop())
        await asyncio.sleep(0.5)
        with pytest.raises(Unavailable) as refused:
            await place.execute()
        assert refused.value.reason is ErrorReason.SHUTTING_DOWN and never_started(refused.value)
        assert await running == "e3"
        await stopping
        assert asyncio.get_running_loop().time() - begun_at < 6.0
        assert place.worker.ran == ["e1", "e2", "e3"]

    placed(play)


def test_a_request_that_meets_the_end_of_its_stream_was_never_started() -> None:
    async def play(place: Place) -> None:
        place.fabric.delay("w:1", 0.2)
        await place.execute()
        asking = asyncio.ensure_future(place.execute())  # on its way while the worker ends the stream
        await asyncio.sleep(0.1)
        place.worker.turns.refuse()
        with pytest.raises(Unavailable) as refused:
            await asking
        assert never_started(refused.value)
        assert place.worker.ran == ["e1"]

    placed(play)


def test_a_worker_that_is_not_there_was_never_asked_and_one_that_broke_off_may_have_been() -> None:
    async def play(place: Place) -> None:
        await place.execute()
        place.fabric.drop("w:1")
        await asyncio.sleep(0.1)
        assert await place.execute() == "e2"  # the stream without work had ended: another one is opened
        running = asyncio.ensure_future(place.execute("5"))
        await asyncio.sleep(1.0)
        place.fabric.drop("w:1")
        place.fabric.refuse("w:1")
        with pytest.raises(Unavailable) as broken:
            await running
        assert not never_started(broken.value)
        with pytest.raises(Unavailable) as refused:
            await place.execute()
        assert never_started(refused.value)

    placed(play)


class _Stuck:
    """A stream whose peer takes nothing, as one that was frozen does once its buffers are full."""

    def __init__(self) -> None:
        self.cancelled = False

    async def write(self, _: object) -> None:
        await asyncio.Event().wait()

    def cancel(self) -> None:
        self.cancelled = True

    def add_done_callback(self, _: object) -> None:
        """It does not end by itself."""


def test_the_time_of_a_call_includes_its_sending() -> None:
    async def main(clock: LoopClock, ids: SeededIds) -> None:
        stream = _Stuck()
        stub: Any = SimpleNamespace(ExecuteInTurn=lambda: stream)
        with pytest.raises(DeadlineExceeded):
            await Lanes(stub).execute(sandbox_pb2.ExecuteRequest(), 3.0)
        assert stream.cancelled and asyncio.get_running_loop().time() < 4.0

    run_virtual(main)


def test_streams_grow_old_and_few_wait_without_work() -> None:
    async def play(place: Place) -> None:
        await place.execute()
        await asyncio.sleep(30.0)
        await place.execute()
        assert (place.worker.streams, place.worker.open) == (2, 1)
        await asyncio.gather(*(place.execute("1") for _ in range(100)))
        await asyncio.sleep(1.0)
        assert place.worker.open == 64

    placed(play)
