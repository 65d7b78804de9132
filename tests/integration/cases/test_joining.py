"""A real call joins what already runs ahead for it (K5)."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from starlette.responses import Response

from forerun.client import Call, Result, Served
from tests.integration.cases.conftest import Play, Run, Stage, Tools, policy, tool

GET = tool("get", "READ", reads=["o/{id}"], speculate=True)
PURSE = {"concurrentPerSession": 2, "creditsPerCall": 0, "initialCredits": 2}


def test_a_joined_call_is_answered_when_the_budget_is_used_up_meanwhile(play: Play) -> None:
    async def scene(s: Stage) -> None:
        async with s.client.session("a") as session:
            began = s.now()
            await s.ahead(session, ("get", b'{"id":1}'))
            await asyncio.sleep(1.0)
            asking = asyncio.ensure_future(session.call_tool("get", {"id": 1}))
            await asyncio.sleep(0.2)
            # The last credit goes to the second candidate; the third finds none, and no place either.
            await s.ahead(session, ("get", b'{"id":2}'), ("get", b'{"id":3}'), ("get", b'{"id":4}'))
            joined = await asking
            assert (joined.served, round(s.now() - began, 1)) == (Served.JOINED, 2.0)
            assert joined.json() == {"asked": {"id": 1}}
        assert Counter(run.arguments["id"] for run in s.tools.runs) == {1: 1, 2: 1}
        assert session.totals is not None
        refused = session.totals.refused
        assert sum(refused.get(name, 0) for name in ("no_credit", "bound")) == 2
        assert session.totals.outcomes == {"joined": 1, "cancelled": 1}

    play(scene, policy(GET, budget=PURSE))


def test_a_prefetch_whose_own_time_is_up_lives_on_for_the_call_that_joined(play: Play) -> None:
    async def scene(s: Stage) -> None:
        async with s.client.session("a") as session:
            began = s.now()
            await s.ahead(session, ("slow", b"{}"))
            await asyncio.sleep(1.0)
            result = await session.call_tool("slow", timeout_seconds=10.0)
            assert (result.served, round(s.now() - began, 1)) == (Served.JOINED, 2.0)
        assert len(s.tools.runs) == 1

    play(scene, policy(tool("slow", "READ", reads=["slow"], speculate=True, timeoutSeconds=1.2)))


@pytest.mark.parametrize("how", ["switch", "policy"])
def test_switching_speculation_off_does_not_reach_the_call_that_joined(play: Play, how: str) -> None:
    async def scene(s: Stage) -> None:
        s.tools.seconds = 10.0
        async with s.client.session("a") as session:
            began = s.now()
            await s.ahead(session, ("get", b'{"id":1}'), ("get", b'{"id":2}'))
            await asyncio.sleep(1.0)
            asking = asyncio.ensure_future(session.call_tool("get", {"id": 1}))
            await asyncio.sleep(0.2)
            if how == "switch":
                await s.client.set_speculation(on=False, reason="test")
            else:
                file = s.directory / "policy.yaml"
                file.write_text(file.read_text().replace("MODE_EXACT", "MODE_OFF"))
            await asyncio.sleep(2.0)
            assert [run.arguments["id"] for run in s.tools.runs if run.cancelled] == [2]
            result = await asking
            assert (result.ok, result.json()) == (True, {"asked": {"id": 1}})
            if how == "switch":
                assert (result.served, round(s.now() - began, 1)) == (Served.JOINED, 10.0)
                assert len(s.tools.runs) == 2

    play(scene, policy(GET))


async def kill_worker(s: Stage) -> None:
    """The worker is gone at once, with everything that it ran, and another one comes."""
    s.platform.fabric.refuse("sandbox:1")
    s.platform.fabric.drop("sandbox:1")
    await asyncio.sleep(1.0)
    s.platform.fabric.heal("sandbox:1")


@pytest.mark.parametrize("messages", [1, 10])
def test_when_the_leader_dies_ten_waiters_cost_one_new_execution(play: Play, messages: int) -> None:
    async def scene(s: Stage) -> None:
        async with s.client.session("a") as session:
            await s.ahead(session, ("get", b'{"id":1}'))
            await asyncio.sleep(1.0)
            ten = [[Call("get", {"id": 1}) for _ in range(10 // messages)] for _ in range(messages)]
            asking = asyncio.gather(*(session.call_tools(calls) for calls in ten))
            await asyncio.sleep(0.5)
            await kill_worker(s)
            results: list[Result] = [result for answers in await asking for result in answers]
        assert [result.json() for result in results] == [{"asked": {"id": 1}}] * 10
        assert [run.cancelled for run in s.tools.runs] == [True, False]

    play(scene, policy(GET))


@pytest.mark.parametrize("messages", [1, 10])
def test_ten_waiters_join_one_running_execution(play: Play, messages: int) -> None:
    async def scene(s: Stage) -> None:
        async with s.client.session("a") as session:
            began = s.now()
            await s.ahead(session, ("get", b'{"id":1}'))
            await asyncio.sleep(1.0)
            ten = [[Call("get", {"id": 1}) for _ in range(10 // messages)] for _ in range(messages)]
            answers = await asyncio.gather(*(session.call_tools(calls) for calls in ten))
            assert s.now() - began == pytest.approx(2.0, abs=0.02)
        assert [result.ok for results in answers for result in results] == [True] * 10
        assert len(s.tools.runs) == 1

    play(scene, policy(GET))


def test_a_waiter_that_leaves_does_not_take_the_others_with_it(play: Play) -> None:
    async def scene(s: Stage) -> None:
        async with s.client.session("a") as session:
            await s.ahead(session, ("get", b'{"id":1}'))
            await asyncio.sleep(1.0)
            calls = [Call("get", {"id": 1}) for _ in range(3)]
            asking = asyncio.ensure_future(session.call_tools(calls))
            await asyncio.sleep(0.2)
            await session.cancel(calls[0])
            statuses = [result.status.value for result in await asking]
            assert statuses == ["cancelled", "ok", "ok"]
        assert len(s.tools.runs) == 2

    play(scene, policy(GET))


def test_the_error_of_a_speculation_is_retried_as_real(play: Play) -> None:
    tools = Tools()

    async def flaky(run: Run) -> object:
        await asyncio.sleep(2.0)
        return Response("try later", 503) if len(tools.runs) == 1 else {"fine": True}

    tools.answers["get"] = flaky

    async def scene(s: Stage) -> None:
        async with s.client.session("a") as session:
            await s.ahead(session, ("get", b'{"id":1}'))
            await asyncio.sleep(1.0)
            result = await session.call_tool("get", {"id": 1})
            assert (result.served, result.tool_error, result.json()) == (Served.DIRECT, False, {"fine": True})
        assert session.totals is not None and session.totals.outcomes == {"failed": 1}

    play(scene, policy(GET), tools=tools)


def test_waiting_for_another_message_is_never_longer_than_one_execution(play: Play) -> None:
    tools = Tools()

    async def wrong(_: Run) -> Response:
        await asyncio.sleep(2.0)
        return Response("no", 500)

    tools.answers["wrong"] = wrong

    async def scene(s: Stage) -> None:
        async with s.client.session("a") as session:

            async def three(name: str, **more: int) -> tuple[float, list[Result]]:
                began = s.now()
                results = await asyncio.gather(*(session.call_tool(name, more) for _ in range(3)))
                return round(s.now() - began, 1), results

            # What may not be used later is not waited for.
            assert (await three("clock"))[0] == 2.0
            assert len(s.tools.of("clock")) == 3
            # An error is no result for the others: they run together, as they would have without waiting.
            seconds, results = await three("wrong")
            assert (seconds, [one.tool_error for one in results]) == (4.0, [True] * 3)
            assert len(s.tools.of("wrong")) == 3
            # A write meanwhile: what was read before it answers nobody who asked after it.
            reading = asyncio.ensure_future(session.call_tool("get", {"id": 1}))
            await asyncio.sleep(0.5)
            await session.call_tool("set", {"id": 1})
            began = s.now()
            after = await session.call_tool("get", {"id": 1})
            await reading
            assert (after.served, round(s.now() - began, 1)) == (Served.DIRECT, 2.0)

    tool_list = [
        GET,
        tool("set", "WRITE", writes=["o/{id}"]),
        tool("clock", "READ", reads=[], maxStalenessSeconds=0),
        tool("wrong", "READ", reads=["wrong"]),
    ]
    play(scene, policy(*tool_list), tools=tools)


def test_a_message_that_is_taken_back_hands_its_execution_to_one_that_waits(play: Play) -> None:
    async def scene(s: Stage) -> None:
        async with s.client.session("a") as session:
            asking = [asyncio.ensure_future(session.call_tool("get", {"id": 1})) for _ in range(4)]
            await asyncio.sleep(1.0)
            asking[0].cancel()
            results = await asyncio.gather(*asking[1:])
            assert [result.ok for result in results] == [True] * 3
            assert s.now() == pytest.approx(s.tools.runs[0].started + 3.0, abs=0.02)
        assert [run.cancelled for run in s.tools.runs] == [True, False]

    play(scene, policy(GET))
