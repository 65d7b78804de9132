"""A write that was cut off may still take effect: nothing that is known of its resource is served after that (K3).

And what a session stops it waits for, within a bound, before it says that it has ended (A2).
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.responses import JSONResponse, Response

from forerun.client import AsyncSession, Call, Served, Status
from forerun.core import limits
from forerun.v1 import session_pb2, session_pb2_grpc
from tests.integration.cases.conftest import Play, Run, Stage, Tools, policy, tool

LATE_SECONDS = 1.0

PRIVATE = policy(
    tool("get", "READ", reads=["o/{id}"], speculate=True),
    tool("set", "WRITE", writes=["o/{id}"], timeoutSeconds=3.0),
    tool("put", "WRITE", writes=["o/{id}"], idempotent=True, timeoutSeconds=3.0),
)
SHARED = policy(
    tool("get", "READ", reads=["o/{id}"], scope="SHARED", speculate=True),
    tool("set", "WRITE", writes=["o/{id}"], scope="SHARED", timeoutSeconds=3.0),
    tool("put", "WRITE", writes=["o/{id}"], scope="SHARED", idempotent=True, timeoutSeconds=3.0),
)


def late_tools() -> tuple[Tools, dict[int, str]]:
    """A server whose writes hang, and happen a second after their client has hung up."""
    values: dict[int, str] = {}

    async def get(run: Run) -> Any:
        value = values.get(run.arguments["id"], "before")
        await asyncio.sleep(0.25)
        return {"value": value}

    async def write(run: Run) -> Any:
        try:
            await asyncio.sleep(1e6)
        finally:
            asyncio.get_running_loop().call_later(LATE_SECONDS, values.__setitem__, run.arguments["id"], "after")

    return Tools(answers={"get": get, "set": write, "put": write}), values


async def cut_off(session: AsyncSession, write: str, how: str) -> Status:
    """Lets a write of o/7 begin, and end without an answer of its tool."""
    call = Call(write, {"id": 7})
    asking = asyncio.ensure_future(session.call_tools([call]))
    if how == "cancel":
        await asyncio.sleep(1.0)
        await session.cancel(call)
    return (await asking)[0].status


@pytest.mark.parametrize("how", ["timeout", "cancel"])
@pytest.mark.parametrize("write", ["set", "put"])
@pytest.mark.parametrize("rules", [PRIVATE, SHARED], ids=["private", "shared"])
def test_the_own_session_is_not_served_what_it_knew_before_the_late_effect(
    play: Play, rules: dict[str, Any], write: str, how: str
) -> None:
    async def scene(s: Stage) -> None:
        async with s.client.session("a") as session:
            status = await cut_off(session, write, how)
            assert status is not Status.OK
            early = await session.call_tool("get", {"id": 7})
            await s.ahead(session, ("get", b'{"id":7}'), ("get", b'{"id":8}'))
            await asyncio.sleep(2 * LATE_SECONDS)
            late = await session.call_tool("get", {"id": 7})
            again = await session.call_tool("get", {"id": 7})
            other = await session.call_tool("get", {"id": 8})
        assert early.json() == {"value": "before"}
        assert [late.json(), again.json()] == [{"value": "after"}] * 2
        assert (late.served, again.served, other.served) == (Served.DIRECT, Served.DIRECT, Served.READY)
        assert session.totals is not None and sum(session.totals.refused.values()) == 1

    play(scene, rules, tools=late_tools()[0])


def test_another_session_is_not_served_its_prefetch_nor_what_it_remembers(play: Play) -> None:
    async def scene(s: Stage) -> None:
        async with s.client.session("a") as writer, s.client.session("b") as reader:
            writing = asyncio.ensure_future(writer.call_tools([Call("set", {"id": 7})]))
            await asyncio.sleep(2.0)
            await s.ahead(reader, ("get", b'{"id":7}'))
            assert (await writing)[0].status is Status.OUTCOME_UNKNOWN
            between = await reader.call_tool("get", {"id": 7})
            remembered = await reader.call_tool("get", {"id": 7})
            await asyncio.sleep(2 * LATE_SECONDS)
            late = await reader.call_tool("get", {"id": 7})
        assert [between.json(), remembered.json(), late.json()] == [{"value": "before"}] * 2 + [{"value": "after"}]
        assert {between.served, remembered.served, late.served} == {Served.DIRECT}

    play(scene, SHARED, tools=late_tools()[0])


def test_a_shared_resource_is_trusted_again_after_the_longest_call(play: Play) -> None:
    async def scene(s: Stage) -> None:
        async with s.client.session("a") as writer:
            await writer.call_tools([Call("set", {"id": 7})])
        await asyncio.sleep(limits.UNSETTLED_SECONDS + limits.CLOCK_SKEW_SECONDS)
        async with s.client.session("b") as reader:
            served = [(await reader.call_tool("get", {"id": 7})).served for _ in range(3)]
        assert served == [Served.DIRECT, Served.DIRECT, Served.MEMO], "the first look at the marks is one too late"

    play(scene, SHARED, tools=late_tools()[0])


def test_the_next_owner_of_the_session_knows_what_may_still_happen(play: Play) -> None:
    async def scene(s: Stage) -> None:
        async with s.client.session("a") as session:
            await session.call_tools([Call("set", {"id": 7})])
            await s.platform.stop_service("orchestrator", 5.0)
            await s.platform.start_service("orchestrator")
            served = [(await session.call_tool("get", {"id": 7})).served for _ in range(3)]
            other = [(await session.call_tool("get", {"id": 8})).served for _ in range(2)]
            finished = [event.call_finished for event in await s.journal(session) if event.HasField("call_finished")]
        assert set(served) == {Served.DIRECT}
        assert other == [Served.DIRECT, Served.MEMO]
        assert [one.may_continue for one in finished if one.tool == "set"] == [True]

    play(scene, PRIVATE, tools=late_tools()[0])


def test_a_call_does_not_run_beside_a_write_of_its_message_that_an_owner_was_stopping_when_it_was_lost(
    play: Play,
) -> None:
    tools = Tools(seconds=60.0, stubborn_seconds=3.0, answers={"get": late_tools()[0].answers["get"]})

    async def scene(s: Stage) -> None:
        async with s.client.session("a") as session:
            calls = [Call("set", {"id": 7}), Call("get", {"id": 7})]
            asking = asyncio.ensure_future(session.call_tools(calls))
            await asyncio.sleep(1.0)
            await session.cancel(calls[0])
            await asyncio.sleep(0.1)
            await s.platform.stop_service("orchestrator", 0.0)
            await s.platform.start_service("orchestrator")
            first, second = await asking
        written, read = *s.tools.of("set"), *s.tools.of("get")
        assert (first.status, second.status) == (Status.OUTCOME_UNKNOWN, Status.OK)
        assert written.ended is not None and written.ended <= read.started

    play(scene, PRIVATE, tools=tools)


@pytest.mark.parametrize("write", ["set", "put"])
def test_a_write_that_was_under_way_when_its_owner_was_lost_may_still_happen(play: Play, write: str) -> None:
    async def scene(s: Stage) -> None:
        async with s.client.session("a") as session, s.client.session("b") as reader:
            writing = asyncio.ensure_future(session.call_tools([Call(write, {"id": 7})]))
            await asyncio.sleep(1.0)
            await s.platform.stop_service("orchestrator", 0.5)
            await s.platform.start_service("orchestrator")
            await writing
            early = await reader.call_tool("get", {"id": 7})
            await asyncio.sleep(2 * LATE_SECONDS)
            late = [await one.call_tool("get", {"id": 7}) for one in (session, reader, session, reader)]
        assert early.ok
        assert [one.json() for one in late] == [{"value": "after"}] * 4
        assert {one.served for one in late} == {Served.DIRECT}

    play(scene, SHARED, tools=late_tools()[0])


def test_accepted_is_no_end(play: Play) -> None:
    async def accepted(_: Run) -> Response:
        return JSONResponse({"job": 1}, 202)

    async def scene(s: Stage) -> None:
        async with s.client.session("a") as session:
            assert (await session.call_tool("set", {"id": 7})).ok
            served = [(await session.call_tool("get", {"id": 7})).served for _ in range(3)]
        assert set(served) == {Served.DIRECT}

    tools, _ = late_tools()
    tools.answers["set"] = accepted
    play(scene, PRIVATE, tools=tools)


# ---------------------------------------------------------------- A2


def test_a_session_ends_after_everything_that_it_stops(play: Play) -> None:
    counted: list[str] = []

    async def count(run: Run) -> Any:
        await asyncio.sleep(2.0)
        counted.append(run.tool)

    rules = policy(
        tool("look", "READ", reads=["x"], speculate=True), tool("count", "WRITE", writes=["y"]),
    )  # fmt: skip
    tools = Tools(answers={"look": count, "count": count}, stubborn_seconds=1.0)

    async def scene(s: Stage) -> None:
        session = s.client.session("a")
        async with session:
            await s.ahead(session, ("look", b"{}"))
            asking = asyncio.ensure_future(session.call_tools([Call("count", {})]))
            await asyncio.sleep(0.5)
            began = s.now()
        assert 0.9 < s.now() - began < 1.5
        assert s.tools.running.total() == 0, "nothing runs when the end is told"
        asking.cancel()
        await asyncio.sleep(3.0)
        assert (counted, len(s.tools.runs)) == ([], 2)

    play(scene, rules, tools=tools)


def test_a_client_is_told_of_tools_that_have_not_ended(play: Play, caplog: pytest.LogCaptureFixture) -> None:
    async def scene(s: Stage) -> None:
        async with s.client.session("a") as session:
            asking = asyncio.ensure_future(session.call_tools([Call("count", {})]))
            await asyncio.sleep(0.5)
        await asking
        assert session.totals is not None

    play(scene, policy(tool("count", "WRITE", writes=["y"])), tools=Tools(seconds=60.0, stubborn_seconds=30.0))
    assert "1 of its tools had not" in caplog.text


def test_what_does_not_settle_is_reported_and_not_waited_for(play: Play) -> None:
    async def scene(s: Stage) -> None:
        stub = session_pb2_grpc.SessionServiceStub(s.platform.channel())
        session = s.ids.uuid7()
        request = session_pb2.CallToolsRequest(hello=session_pb2.Hello(session=session, agent="a"))
        request.batch.turn = 1
        request.batch.calls.add(index=0).action.tool = "count"
        asking = asyncio.ensure_future(_called(stub, request))
        await asyncio.sleep(0.5)
        began = s.now()
        ended = await stub.EndSession(session_pb2.EndSessionRequest(session=session), timeout=30.0)
        assert ended.unsettled_executions == 1
        assert s.now() - began == pytest.approx(limits.CANCEL_SETTLE_SECONDS, abs=0.5)
        await asking

    async def _called(stub: Any, request: session_pb2.CallToolsRequest) -> None:
        with pytest.raises(Exception, match="goes on elsewhere"):
            await stub.CallTools(request, timeout=30.0)

    play(scene, policy(tool("count", "WRITE", writes=["y"])), tools=Tools(seconds=60.0, stubborn_seconds=30.0))
