"""Streams of executions on a real connection: what a request means that meets the end of its stream."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

from forerun.orchestrator.lanes import Lanes
from forerun.runtime.errors import ErrorReason, Unavailable, never_started
from forerun.runtime.metrics import Metrics
from forerun.runtime.network_grpc import GrpcNetwork
from forerun.runtime.network_inbound import Inbound
from forerun.runtime.tracing import Tracing
from forerun.sandbox.turns import Turns
from forerun.v1 import common_pb2, sandbox_pb2, sandbox_pb2_grpc

ROUNDS = 40


class Worker(sandbox_pb2_grpc.SandboxServiceServicer):
    """Runs everything at once, and can end the streams that wait as often as wanted."""

    def __init__(self) -> None:
        self._turns = Turns()
        self._waiting = asyncio.Event()
        self.ran: Counter[str] = Counter()

    async def ExecuteInTurn(  # noqa: N802
        self, request_iterator: AsyncIterator[sandbox_pb2.ExecuteInTurnRequest], context: Any
    ) -> AsyncIterator[sandbox_pb2.ExecuteInTurnResponse]:
        while True:
            asyncio.get_running_loop().call_soon(self._waiting.set)
            message = await self._turns.next(request_iterator)
            self._waiting.clear()
            if message is None:
                return
            self.ran[message.request.execution] += 1
            finished = sandbox_pb2.ExecutionFinished(status=common_pb2.CALL_STATUS_OK)
            yield sandbox_pb2.ExecuteInTurnResponse(response=sandbox_pb2.ExecuteResponse(finished=finished))

    async def end_streams(self) -> None:
        """Ends the streams that wait, once one does, as a worker does that stops."""
        await self._waiting.wait()
        ending, self._turns = self._turns, Turns()
        ending.refuse()


async def test_a_request_that_meets_the_end_of_its_stream_was_never_started() -> None:
    worker = Worker()  # type: ignore[abstract]  # executions in turn only
    inbound = Inbound(authenticator=None, metrics=Metrics("sandbox"), tracing=Tracing("test"))
    network = GrpcNetwork(inbound)

    def register(server: Any) -> None:
        sandbox_pb2_grpc.add_SandboxServiceServicer_to_server(worker, server)

    handle = await network.serve("worker", "127.0.0.1:0", [register], services=[])
    lanes = Lanes(sandbox_pb2_grpc.SandboxServiceStub(network.channel(handle.address)))
    refused = 0
    for number in range(ROUNDS):
        await lanes.execute(sandbox_pb2.ExecuteRequest(execution=f"before-{number}"), 10.0)
        await worker.end_streams()
        for _ in range(number % 8):  # the end is sent, on its way, heard by grpc, or known here
            await asyncio.sleep(0)
        name = f"during-{number}"
        try:
            await lanes.execute(sandbox_pb2.ExecuteRequest(execution=name), 10.0)
        except Unavailable as error:
            assert error.reason is ErrorReason.SHUTTING_DOWN and never_started(error)
            assert worker.ran[name] == 0
            refused += 1
        else:
            assert worker.ran[name] == 1
    assert refused
    await network.close()
    await handle.stop(0.5)
