"""Which worker a session has, and what is known of its tools."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc
import pytest

from forerun.core import limits
from forerun.core.outcomes import CallStatus
from forerun.core.session import Execute, ExecutionResult
from forerun.orchestrator.workers import Workers
from forerun.runtime.auth import Caller
from forerun.runtime.bus import Message
from forerun.runtime.clock import LoopClock
from forerun.runtime.errors import ErrorReason, ForerunError, ResourceExhausted, message_too_large
from forerun.runtime.ids import SeededIds
from forerun.runtime.memory_network import MemoryFabric, MemoryNetwork
from forerun.runtime.metrics import Metrics
from forerun.runtime.network import ServerHandle
from forerun.runtime.network_inbound import Inbound
from forerun.runtime.tracing import Tracing
from forerun.runtime.virtual import run_virtual
from forerun.v1 import common_pb2, sandbox_pb2
from tests.unit.session.driver import prepared

CALLER = Caller("t", "p", "c")


class Sandbox:
    """A worker with one tool, named after it, whose executions answer with its name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.asked = 0
        self.executed: list[str] = []
        self.expected: list[bool] = []
        self.versions: list[str] = []
        self.seconds = 0.0
        self.refusal: ForerunError | None = None
        self.refuses_after_it_ran = False

    async def execute(self, requests: Any, context: Any) -> AsyncIterator[sandbox_pb2.ExecuteInTurnResponse]:
        async for message in requests:
            if self.refusal is not None and not self.refuses_after_it_ran:
                raise self.refusal
            self.executed.append(message.request.execution)
            self.expected.append(message.request.expects_state)
            self.versions.append(message.request.action.tool_version)
            await asyncio.sleep(self.seconds)
            if self.refusal is not None:
                raise self.refusal
            observation = common_pb2.Observation(content=self.name.encode())
            finished = sandbox_pb2.ExecutionFinished(status=common_pb2.CALL_STATUS_OK, observation=observation)
            yield sandbox_pb2.ExecuteInTurnResponse(response=sandbox_pb2.ExecuteResponse(finished=finished))

    async def list_tools(self, request: Any, context: Any) -> sandbox_pb2.ListToolsResponse:
        self.asked += 1
        await asyncio.sleep(0.1)
        return sandbox_pb2.ListToolsResponse(tools=[sandbox_pb2.ToolDescription(name=f"tool-of-{self.name}")])

    def register(self, server: Any) -> None:
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "ListTools": grpc.unary_unary_rpc_method_handler(
                self.list_tools,
                request_deserializer=sandbox_pb2.ListToolsRequest.FromString,
                response_serializer=sandbox_pb2.ListToolsResponse.SerializeToString,
            ),
            "ExecuteInTurn": grpc.stream_stream_rpc_method_handler(
                self.execute,
                request_deserializer=sandbox_pb2.ExecuteInTurnRequest.FromString,
                response_serializer=sandbox_pb2.ExecuteInTurnResponse.SerializeToString,
            ),
        }
        name = sandbox_pb2.DESCRIPTOR.services_by_name["SandboxService"].full_name
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, handlers),))


def report(name: str, *, generation: int = 0, worker: str = "") -> Message:
    """What a worker broadcasts."""
    data = sandbox_pb2.LoadReport(
        worker=worker or name, address=f"{name}:1", speculative_free=1, tools_generation=generation
    )
    return Message(subject="loads", data=data.SerializeToString())


@dataclass
class Place:
    """Two workers and who sends calls to them."""

    fabric: MemoryFabric
    ids: SeededIds
    workers: Workers
    another: Callable[[], Workers]
    sandboxes: dict[str, Sandbox]
    handles: dict[str, ServerHandle]

    async def execute(
        self, tool: str, session: str, *, speculative: bool = False, ahead: bool = False
    ) -> ExecutionResult:
        call = Execute(
            execution=self.ids.uuid7(), prepared=prepared(tool, id=1), speculative=speculative, timeout_seconds=30.0,
            fork="", merge_on_success=False, idempotency_key="", ahead=ahead,
        )  # fmt: skip
        return await self.workers.execute(call, CALLER, session, "")


def placed(play: Callable[[Place, str, str], Awaitable[None]]) -> None:
    """Runs a test with a session, the name of its own worker, and the other one."""

    async def main(clock: LoopClock, ids: SeededIds) -> None:
        fabric = MemoryFabric()

        def network(source: str) -> MemoryNetwork:
            inbound = Inbound(authenticator=None, metrics=Metrics("sandbox"), tracing=Tracing("test"))
            return MemoryNetwork(fabric, inbound, source=source)

        sandboxes = {name: Sandbox(name) for name in ("one", "two")}
        handles = {
            name: await network(name).serve(name, f"{name}:1", [sandbox.register], services=[])
            for name, sandbox in sandboxes.items()
        }
        workers = Workers(network("o"), (), tools_changed=lambda: None)
        another = partial(Workers, network("o2"), (), tools_changed=lambda: None)
        place = Place(fabric, ids, workers, another, sandboxes, handles)
        for name in sandboxes:
            await workers.hear(report(name))
        session = ids.uuid7()
        await place.execute("get", session)
        own = workers.holder(session)
        await play(place, session, own)
        for handle in handles.values():
            await handle.stop(0.1)

    run_virtual(main)


def unreachable(place: Place, name: str) -> None:
    """A worker is away: its connections are broken, and it takes no new ones."""
    place.fabric.refuse(f"{name}:1")
    place.fabric.drop(f"{name}:1")


def test_reads_go_elsewhere_while_the_sessions_worker_does_not_answer() -> None:
    async def play(place: Place, session: str, own: str) -> None:
        (other,) = set(place.sandboxes) - {own}
        unreachable(place, own)
        first = await place.execute("get", session)
        # Nothing was sent: whatever it is, it may be asked again.
        assert (first.status, first.not_started) == (CallStatus.UNAVAILABLE, True)
        assert (await place.execute("get", session)).content == other.encode()
        assert list(await place.workers.tools(CALLER, session)) == [f"tool-of-{other}"]
        assert not place.workers.has_slot(session)
        # A write, and what is in the workspace, wait for the session's own.
        for tool in ("set", "look"):
            assert (await place.execute(tool, session)).not_started
        place.fabric.heal(f"{own}:1")
        await place.workers.hear(report(own))
        assert (await place.execute("get", session)).content == own.encode()
        assert place.workers.has_slot(session)

    placed(play)


async def silent(place: Place, name: str, seconds: float = 61.0) -> None:
    """A worker is away, and all others report."""
    unreachable(place, name)
    for _ in range(round(seconds)):
        await asyncio.sleep(1.0)
        for other in set(place.sandboxes) - {name}:
            await place.workers.hear(report(other))


def test_what_runs_before_it_is_asked_for_runs_in_the_version_that_was_meant() -> None:
    """A real call runs in whatever version there is; a result of another one would answer for what it is not."""

    async def play(place: Place, session: str, own: str) -> None:
        await place.execute("get", session)
        await place.execute("get", session, ahead=True)  # issued early, with the agent's own priority
        await place.execute("get", session, speculative=True, ahead=True)
        assert place.sandboxes[own].versions[-3:] == ["", "1", "1"]

    placed(play)


def test_a_workspace_is_not_made_anew_elsewhere() -> None:
    async def play(place: Place, session: str, own: str) -> None:
        (other,) = set(place.sandboxes) - {own}
        assert (await place.execute("look", session)).content == own.encode()
        await silent(place, own)
        lost = await place.execute("look", session)
        assert (lost.status, lost.not_started) == (CallStatus.REJECTED, True)
        assert lost.failure is not None and lost.failure.reason == "WORKSPACE_LOST"
        for tool in ("get", "set"):  # what does not use it goes on
            assert (await place.execute(tool, session)).content == other.encode()
        # Without a workspace there is nothing to be lost.
        assert (await place.execute("look", place.ids.uuid7())).content == other.encode()
        # While no worker at all is heard of, nothing is known to be lost.
        await asyncio.sleep(30.0)
        unknown = await place.execute("look", session)
        assert (unknown.status, unknown.not_started) == (CallStatus.UNAVAILABLE, True)
        place.fabric.heal(f"{own}:1")
        await place.workers.hear(report(own))
        assert (await place.execute("look", session)).content == own.encode()

    placed(play)


@pytest.mark.parametrize("certain", [True, False])
def test_another_owner_finds_the_workspace_where_it_is(certain: bool) -> None:
    async def play(place: Place, session: str, own: str) -> None:
        (other,) = set(place.sandboxes) - {own}
        address = place.workers.place(session)
        place.workers = place.another()
        await place.workers.hear(report(other))
        place.workers.restore(session, address, used=True, certain=certain)
        await place.execute("look", session)
        assert place.sandboxes[own].expected[-1:] == [certain]
        # One that nobody heard of has time to report.
        place.workers = place.another()
        await place.workers.hear(report(other))
        place.workers.restore(session, address, used=True, certain=certain)
        await silent(place, own, 20.0)
        assert (await place.execute("look", session)).not_started
        assert (await place.execute("get", session)).content == other.encode()
        await silent(place, own, 41.0)
        lost = await place.execute("look", session)
        assert lost.failure is not None and lost.failure.reason == "WORKSPACE_LOST"
        # Where the session has ended here, or was never in it, nothing is lost.
        place.workers.forget(session)
        assert (await place.execute("look", session)).content == other.encode()

    placed(play)


def test_a_worker_is_told_what_the_session_has_there() -> None:
    async def play(place: Place, session: str, own: str) -> None:
        for tool in ("set", "look", "look", "get"):
            await place.execute(tool, session)
        assert place.sandboxes[own].expected[-4:] == [False, False, True, False]

    placed(play)


def test_nothing_is_sent_to_a_worker_that_said_that_it_stops() -> None:
    async def play(place: Place, session: str, own: str) -> None:
        (other,) = set(place.sandboxes) - {own}
        sandbox = place.sandboxes[own]
        sandbox.seconds = 5.0
        running = asyncio.ensure_future(place.execute("set", session))
        await asyncio.sleep(0.1)
        stopping = asyncio.ensure_future(place.handles[own].stop(20.0))
        await asyncio.sleep(0.1)
        refused = await place.execute("set", session)
        assert refused.not_started and refused.failure is not None and refused.failure.reason == "SHUTTING_DOWN"
        place.fabric.refuse(f"{own}:1")  # its connection would break, and that says nothing of what was sent over it
        again = await place.execute("set", session)
        assert again.not_started and again.failure is not None and again.failure.reason == "SHUTTING_DOWN"
        assert (await place.execute("get", session)).content == other.encode()
        # What it began before, it ends.
        assert (await running).status is CallStatus.OK
        await stopping
        assert len(sandbox.executed) == 2
        # Its own last report changes nothing; that of its successor does.
        await place.workers.hear(report(own))
        assert (await place.execute("set", session)).not_started
        place.fabric.heal(f"{own}:1")
        await place.workers.hear(report(own, worker="successor"))
        refused = await place.execute("set", session)
        assert refused.failure is not None and refused.failure.reason == "PEER_UNAVAILABLE"  # it really was asked

    placed(play)


def test_what_is_refused_at_the_door_has_not_run_and_a_limit_on_the_way_back_says_nothing_of_that() -> None:
    async def play(place: Place, session: str, own: str) -> None:
        sandbox = place.sandboxes[own]
        for reason in (ErrorReason.NO_FREE_SLOT, ErrorReason.QUEUE_FULL):
            sandbox.refusal = ResourceExhausted(reason, "no room")
            refused = await place.execute("put", session)
            assert refused.not_started and not refused.may_continue
        sandbox.refusal, sandbox.refuses_after_it_ran = message_too_large(5_000_000, 4_194_304), True
        broken = await place.execute("put", session)
        assert not broken.not_started and broken.may_continue

    placed(play)


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


def test_no_more_workers_than_the_bound_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WORKERS", 2)

    async def main(clock: LoopClock, ids: SeededIds) -> None:
        inbound = Inbound(authenticator=None, metrics=Metrics("sandbox"), tracing=Tracing("test"))
        workers = Workers(MemoryNetwork(MemoryFabric(), inbound, source="o"), (), tools_changed=lambda: None)
        for name in ("one", "two", "three"):
            await workers.hear(report(name))
        held = set()
        for _ in range(50):
            session = ids.uuid7()
            workers.has_slot(session)
            held.add(workers.holder(session))
        assert held == {"one", "two"}
        # A place is free where one of them was not heard of for so long that it is given up.
        for _ in range(7):
            await asyncio.sleep(10.0)
            await workers.hear(report("two"))
        await workers.hear(report("three"))
        await workers.hear(report("four"))
        assert {workers.place(ids.uuid7()) for _ in range(50)} == {"two:1", "three:1"}

    run_virtual(main)
