"""Processes that stop: calls in flight are answered or continued (E6), no outcome is claimed that is not kept (D6)."""

from __future__ import annotations

import asyncio

import pytest

from forerun.client import AsyncSession, Call, Served, Status
from forerun.v1 import common_pb2, session_pb2, session_pb2_grpc
from tests.integration.cases.conftest import Play, Stage, policy, tool

RULES = policy(
    tool("get", "READ", reads=["o/{id}"], timeoutSeconds=200, speculate=True),
    tool("send", "WRITE", writes=["mail"], timeoutSeconds=200),
)


async def rolling_restart(s: Stage, name: str, grace_seconds: float) -> None:
    """An orderly stop, and the successor."""
    await s.platform.stop_service(name, grace_seconds)
    await s.platform.start_service(name)


# ---------------------------------------------------------------- E6


@pytest.mark.parametrize("name", ["orchestrator", "sandbox"])
def test_a_rolling_restart_under_load_fails_no_call_of_five_seconds(play: Play, name: str) -> None:
    async def scene(s: Stage) -> None:
        s.tools.seconds = 5.0
        stopping = False
        statuses: list[Status] = []

        async def agent(number: int) -> None:
            async with s.client.session("a") as session:
                step = 0
                while not stopping:
                    step += 1
                    calls = [Call("get", {"id": f"{number}.{step}"}), Call("send", {"id": f"{number}.{step}"})]
                    statuses.extend(result.status for result in await session.call_tools(calls))

        agents = [asyncio.ensure_future(agent(number)) for number in range(8)]
        for _ in range(3):
            await asyncio.sleep(7.3)
            await rolling_restart(s, name, 20.0)
        stopping = True
        await asyncio.gather(*agents)
        assert set(statuses) == {Status.OK} and len(statuses) > 40
        sent = [run.arguments["id"] for run in s.tools.of("send")]
        assert len(sent) == len(set(sent)), "nothing that may not be repeated ran twice"

    play(scene, RULES)


def test_a_call_of_a_minute_is_continued_under_the_next_owner(play: Play) -> None:
    async def scene(s: Stage) -> None:
        s.tools.seconds = 60.0
        async with s.client.session("a") as session:
            done = await session.call_tool("get", {"id": 1})
            asking = asyncio.ensure_future(session.call_tool("get", {"id": 2}))
            await asyncio.sleep(10.0)
            began = s.now()
            await rolling_restart(s, "orchestrator", 20.0)
            assert 5.0 < s.now() - began <= 20.0, "it waits for the call, and not for ever"
            result = await asking
            assert (result.ok, result.json()) == (True, {"asked": {"id": 2}})
            assert [run.cancelled for run in s.tools.runs] == [False, True, False]
            # What was answered before is not run again, whoever asks for it.
            epochs = {event.epoch for event in await s.journal(session)}
            assert epochs == {1, 2}
            assert done.ok and len(s.tools.runs) == 3

    play(scene, RULES)


# ---------------------------------------------------------------- D6


async def ask_again(s: Stage, session: AsyncSession) -> session_pb2.CallResult:
    """What the platform says of the first call when it is asked once more, by its key."""
    stub = session_pb2_grpc.SessionServiceStub(s.platform.channel())
    request = session_pb2.CallToolsRequest(hello=session_pb2.Hello(session=session.id, agent="a", resume=True))
    request.batch.turn = 1
    call = request.batch.calls.add(index=0)
    call.action.tool, call.action.arguments = "send", b'{"id":1}'
    return (await stub.CallTools(request, timeout=60.0)).results[0]


def test_an_outcome_during_an_outage_is_stored_or_owed_and_the_write_never_runs_twice(play: Play) -> None:
    async def scene(s: Stage) -> None:
        s.tools.seconds = 8.0
        async with s.client.session("a") as session:
            sending = asyncio.ensure_future(session.call_tools([Call("send", {"id": 1})]))
            await asyncio.sleep(2.0)
            s.platform.broker.go_down()
            await asyncio.sleep(20.0)
            assert s.tools.runs[0].ended is not None, "the tool has long finished"
            s.platform.broker.come_up()
            (result,) = await sending
            assert (result.status, result.served) == (Status.OK, Served.DIRECT)
            await asyncio.sleep(5.0)
            stored = [event.call_finished for event in await s.journal(session) if event.HasField("call_finished")]
            assert [one.status for one in stored] == [common_pb2.CALL_STATUS_OK], "the outcome was owed, and sent"
        assert len(s.tools.runs) == 1

    play(scene, RULES)


def test_stopping_during_an_outage_claims_nothing_that_is_not_stored(play: Play) -> None:
    async def scene(s: Stage) -> None:
        s.tools.seconds = 8.0
        session = s.client.session("a")
        await session.open()
        sending = asyncio.ensure_future(session.call_tools([Call("send", {"id": 1})]))
        await asyncio.sleep(2.0)
        s.platform.broker.go_down()
        await asyncio.sleep(10.0)
        await s.platform.stop_service("orchestrator", 10.0)
        s.platform.broker.come_up()
        await s.platform.start_service("orchestrator")
        (result,) = await sending
        again = await ask_again(s, session)
        stored = [event.call_finished for event in await s.journal(session) if event.HasField("call_finished")]
        # Either the outcome is stored and everybody hears it, or it is unknown to everybody who asks now.
        assert [one.status for one in stored] == [again.status]
        assert again.status in (common_pb2.CALL_STATUS_OK, common_pb2.CALL_STATUS_OUTCOME_UNKNOWN)
        assert result.status in (Status.OK, Status.OUTCOME_UNKNOWN)
        assert len(s.tools.runs) == 1
        await session.close()

    play(scene, RULES)
