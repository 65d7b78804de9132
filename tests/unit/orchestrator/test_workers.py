"""Which worker a session has, and what is known of its tools."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc

from forerun.orchestrator.workers import Workers
from forerun.runtime.auth import Caller
from forerun.runtime.bus import Message
from forerun.runtime.clock import LoopClock
from forerun.runtime.ids import SeededIds
from forerun.runtime.memory_network import MemoryFabric, MemoryNetwork
from forerun.runtime.metrics import Metrics
from forerun.runtime.network_inbound import Inbound
from forerun.runtime.tracing import Tracing
from forerun.runtime.virtual import run_virtual
from forerun.v1 import sandbox_pb2

CALLER = Caller("t", "p", "c")


class Sandbox:
    """A worker with one tool, named after it; only its list of tools is asked for."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.asked = 0

    async def list_tools(self, request: Any, context: Any) -> sandbox_pb2.ListToolsResponse:
        self.asked += 1
        await asyncio.sleep(0.1)
        return sandbox_pb2.ListToolsResponse(tools=[sandbox_pb2.ToolDescription(name=f"tool-of-{self.name}")])

    def register(self, server: Any) -> None:
        handler = grpc.unary_unary_rpc_method_handler(
            self.list_tools,
            request_deserializer=sandbox_pb2.ListToolsRequest.FromString,
            response_serializer=sandbox_pb2.ListToolsResponse.SerializeToString,
        )
        name = sandbox_pb2.DESCRIPTOR.services_by_name["SandboxService"].full_name
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, {"ListTools": handler}),))


def report(name: str, *, generation: int = 0) -> Message:
    """What a worker broadcasts."""
    data = sandbox_pb2.LoadReport(worker=name, address=f"{name}:1", speculative_free=1, tools_generation=generation)
    return Message(subject="loads", data=data.SerializeToString())


def test_tools_are_those_of_the_sessions_worker_and_asked_for_once() -> None:
    async def main(clock: LoopClock, ids: SeededIds) -> None:
        fabric = MemoryFabric()

        def network(source: str) -> MemoryNetwork:
            inbound = Inbound(authenticator=None, metrics=Metrics("sandbox"), tracing=Tracing("test"))
            return MemoryNetwork(fabric, inbound, source=source)

        sandboxes = {name: Sandbox(name) for name in ("one", "two")}
        handles = [
            await network(name).serve(name, f"{name}:1", [sandbox.register], services=[])
            for name, sandbox in sandboxes.items()
        ]
        changes: list[float] = []
        workers = Workers(network("o"), (), tools_changed=lambda: changes.append(clock.monotonic()))
        for name in sandboxes:
            await workers.hear(report(name))

        # Sessions of one caller on different workers have the tools of theirs; many that ask at once ask once.
        sessions = [ids.uuid7() for _ in range(20)]
        lists = await asyncio.gather(*(workers.tools(CALLER, session) for session in sessions))
        for session, tools in zip(sessions, lists, strict=True):
            holder = workers.holder(session)
            assert holder in sandboxes and list(tools) == [f"tool-of-{holder}"]
        assert {workers.holder(session) for session in sessions} == {"one", "two"}
        assert [sandbox.asked for sandbox in sandboxes.values()] == [1, 1]
        assert workers.holder("nobody asked for this one") == ""

        # Other tools of one worker are no news of the other one.
        await workers.hear(report("one", generation=1))
        assert len(changes) == 1
        await asyncio.gather(*(workers.tools(CALLER, session) for session in sessions))
        assert [sandbox.asked for sandbox in sandboxes.values()] == [2, 1]
        for handle in handles:
            await handle.stop(1.0)

    run_virtual(main)
