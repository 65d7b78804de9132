"""Streams that carry one execution after the other, over sockets: a worker that stops is not held up by them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from forerun.orchestrator.lanes import Lanes
from forerun.runtime.errors import ErrorReason, Unavailable, never_started
from forerun.runtime.metrics import Metrics
from forerun.runtime.network_grpc import GrpcNetwork
from forerun.runtime.network_inbound import Inbound
from forerun.runtime.tracing import Tracing
from forerun.v1 import common_pb2, sandbox_pb2, sandbox_pb2_grpc
from tests.unit.orchestrator.test_lanes import Worker

SERVICE = sandbox_pb2.DESCRIPTOR.services_by_name["SandboxService"].full_name


def network() -> GrpcNetwork:
    return GrpcNetwork(Inbound(authenticator=None, metrics=Metrics("sandbox"), tracing=Tracing("test")))


async def execute(lanes: Lanes, name: str, seconds: int = 0) -> bytes:
    action = common_pb2.Action(tool=str(seconds))
    finished, _ = await lanes.execute(sandbox_pb2.ExecuteRequest(execution=name, action=action), 20.0)
    return finished.observation.content


async def test_a_worker_ends_what_runs_and_every_stream_without_work() -> None:
    worker, server, client = Worker(), network(), network()  # type: ignore[abstract]  # executions in turn only

    def register(to: Any) -> None:
        sandbox_pb2_grpc.add_SandboxServiceServicer_to_server(worker, to)

    handle = await server.serve("w", "127.0.0.1:0", [register], services=[SERVICE])
    lanes = Lanes(sandbox_pb2_grpc.SandboxServiceStub(client.channel(handle.address)))
    await asyncio.gather(*(execute(lanes, f"at once {number}", 1) for number in range(3)))
    assert await execute(lanes, "after them") == b"after them"
    assert (worker.streams, worker.open) == (3, 3)

    running = asyncio.ensure_future(execute(lanes, "running", 2))
    while "running" not in worker.ran:  # noqa: ASYNC110  (another task of this loop, over a socket)
        await asyncio.sleep(0.0)
    begun_at = asyncio.get_running_loop().time()
    worker.turns.refuse()
    stopping = asyncio.ensure_future(handle.stop(20.0))
    await asyncio.sleep(0.0)
    with pytest.raises(Unavailable) as refused:
        await execute(lanes, "too late")
    assert refused.value.reason is ErrorReason.SHUTTING_DOWN and never_started(refused.value)
    assert await running == b"running"
    await stopping
    assert asyncio.get_running_loop().time() - begun_at < 15.0  # not the whole grace
    assert worker.open == 0
    assert "too late" not in worker.ran
    await client.close()
    await server.close()
