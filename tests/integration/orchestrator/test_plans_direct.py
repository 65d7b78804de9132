"""Plans while the platform is away: the client runs them, with the same values, nothing twice, and says so."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import httpx
import pytest

from forerun.client import (
    AsyncClient,
    Call,
    InvalidRequest,
    OnFailure,
    PlanResult,
    PlanStatus,
    PlanTask,
    TaskStatus,
)
from tests.integration.orchestrator.conftest import Stage, value_of

AWAY = 2.0
"""Longer than `direct_after_seconds` of these clients."""


@asynccontextmanager
async def client_with_a_way_around(s: Stage) -> AsyncIterator[AsyncClient]:
    """A client that can also call the tools themselves."""
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=s.world.app())) as http:

        async def direct(call: Call) -> Any:
            arguments = call.arguments
            assert isinstance(arguments, bytes)
            answer = await http.post(f"http://tools.test/s/{call.name}", content=arguments)
            answer.raise_for_status()
            return answer.json()

        async with AsyncClient(
            channel=s.platform.channel(), ids=s.ids, direct=direct, direct_after_seconds=1.0
        ) as client:
            yield client


def seen(result: PlanResult) -> list[tuple[str, str, Any]]:
    """What an agent sees of a plan."""
    return [(one.id, one.status.value, json.loads(one.content or b"null")) for one in result.tasks]


def asked(s: Stage, *tools: str) -> list[tuple[str, int]]:
    """What was executed of some tools, in order."""
    return [(name, arguments["id"]) for name, arguments, _ in s.world.log if not tools or name in tools]


def random_plan(seed: int) -> list[PlanTask]:
    """Reads and writes of a few resources, some of them by reference."""
    draw = random.Random(seed)
    tasks: list[PlanTask] = []
    for number in range(draw.randint(4, 10)):
        tool = draw.choice(["get", "set", "stock", "sell", "mystery"])
        target: Any = draw.randint(1, 3)
        if tasks and draw.random() < 0.4:
            earlier = draw.choice(tasks).id
            target = f"${earlier}.{draw.choice(['id', 'value', 'id', 'none'])}"
        tasks.append(PlanTask(f"t{number}", tool, {"id": target}))
    return tasks


@pytest.mark.parametrize("seed", range(12))
def test_a_plan_gives_the_same_values_with_and_without_the_platform(stage: Any, seed: int) -> None:
    async def play(s: Stage) -> None:
        observed, states = [], []
        for away in (False, True):
            s.world.values.clear()
            async with client_with_a_way_around(s) as client, client.session("a") as session:
                if away:
                    await s.platform.stop_service("orchestrator", 0.2)
                    await asyncio.sleep(AWAY)
                result = await session.run_plan(random_plan(seed))
                assert result.direct is away
                assert session.direct_calls == (sum(one.status is TaskStatus.OK for one in result.tasks) if away else 0)
            observed.append(seen(result))
            states.append(dict(s.world.values))
        assert observed[0] == observed[1]
        assert states[0] == states[1]

    stage(play)


def test_without_the_platform_tasks_run_one_after_the_other_in_the_plans_order(stage: Any) -> None:
    async def play(s: Stage) -> None:
        async with client_with_a_way_around(s) as client, client.session("a") as session:
            await s.platform.stop_service("orchestrator", 0.2)
            await asyncio.sleep(AWAY)
            loop = asyncio.get_running_loop()
            began = loop.time()
            ends: list[tuple[int, int, int]] = []
            async with session.plan(progress=lambda *numbers: ends.append(numbers)) as plan:
                await plan.add(PlanTask("one", "set", {"id": 1}), PlanTask("two", "get", {"id": 2}))
                await asyncio.sleep(5.0)  # both have run while the plan is still written
                assert asked(s) == [("set", 1), ("get", 2)]
                await plan.add(PlanTask("three", "get", {"id": "$two.next"}, after=["one"]))
                first = await plan.finish()
                await plan.again()
                await plan.add(PlanTask("four", "get", {"id": "$three.next"}))
                second = await plan.finish()
            assert loop.time() - began == pytest.approx(7.0, abs=0.1)
        assert (first.round, second.round) == (0, 1)
        assert asked(s) == [("set", 1), ("get", 2), ("get", 3), ("get", 4)]
        assert ends[-1] == (4, 0, 4)

    stage(play)


def test_reads_first_runs_nothing_before_the_plan_is_complete(stage: Any) -> None:
    async def play(s: Stage) -> None:
        async with client_with_a_way_around(s) as client, client.session("a") as session:
            await s.platform.stop_service("orchestrator", 0.2)
            await asyncio.sleep(AWAY)
            async with session.plan(reads_first=True) as plan:
                await plan.add(PlanTask("one", "get", {"id": 1}), PlanTask("two", "set", {"id": 1}))
                await asyncio.sleep(5.0)
                assert asked(s) == []
                await plan.refuse("the planner broke off")
                result = await plan.finish()
        assert result.status is PlanStatus.REFUSED
        assert [one.status for one in result.tasks] == [TaskStatus.SKIPPED] * 2
        assert asked(s) == []

    stage(play)


def test_a_plan_whose_platform_is_lost_goes_on_and_what_may_have_begun_waits_for_it(stage: Any) -> None:
    """The write that ran when the platform was lost is run by nobody else, and the platform says how it ended."""

    async def play(s: Stage) -> None:
        async with client_with_a_way_around(s) as client, client.session("a") as session:
            await asyncio.sleep(1.0)  # the client has learnt which tools only read
            async with session.plan() as plan:
                await plan.add(
                    PlanTask("read", "get", {"id": 1}),
                    PlanTask("write", "set", {"id": "$read.next"}),
                    PlanTask("last", "get", {"id": "$write.next"}),
                )
                await asyncio.sleep(1.5)  # the first read has answered, the write runs
                await s.platform.stop_service("orchestrator", 0.2)
                await asyncio.sleep(5.0)
                assert session.direct
                assert asked(s, "set") == [("set", 2)], "not around the platform while nobody knows"
                await s.platform.start_service("orchestrator")
                async with asyncio.timeout(60):
                    result = await plan.finish()
        assert asked(s, "set") == [("set", 2)]
        # The tool was told to stop with the owner of the session, so nobody can know.
        assert [one.status for one in result.tasks] == [TaskStatus.OK, TaskStatus.OUTCOME_UNKNOWN, TaskStatus.SKIPPED]
        assert result["read"].direct is False and result["write"].direct is True

    stage(play)


def test_what_the_platform_could_still_finish_is_not_run_again(stage: Any) -> None:
    async def play(s: Stage) -> None:
        async with client_with_a_way_around(s) as client, client.session("a") as session:
            await asyncio.sleep(1.0)
            async with session.plan() as plan:
                await plan.add(PlanTask("write", "set", {"id": 2}), PlanTask("last", "get", {"id": "$write.next"}))
                await asyncio.sleep(0.5)
                await s.platform.stop_service("orchestrator", 10.0)  # lets end what runs
                await asyncio.sleep(AWAY)
                await s.platform.start_service("orchestrator")
                async with asyncio.timeout(60):
                    result = await plan.finish()
        assert asked(s, "set") == [("set", 2)]
        assert [one.status for one in result.tasks] == [TaskStatus.OK] * 2
        assert json.loads(result["last"].content)["id"] == 3

    stage(play)


def test_a_write_that_waited_for_the_end_of_its_plan_has_certainly_not_begun(stage: Any) -> None:
    async def play(s: Stage) -> None:
        loop = asyncio.get_running_loop()
        async with client_with_a_way_around(s) as client, client.session("a") as session:
            await asyncio.sleep(1.0)
            async with session.plan(reads_first=True) as plan:
                await plan.add(PlanTask("read", "get", {"id": 1}), PlanTask("write", "sell", {"id": 2}))
                await asyncio.sleep(0.5)
                await s.platform.stop_service("orchestrator", 0.2)
                await asyncio.sleep(AWAY)
                began = loop.time()
                result = await plan.finish()
        assert [one.status for one in result.tasks] == [TaskStatus.OK] * 2
        assert loop.time() - began < 10.0, "nobody had to be waited for"
        assert asked(s, "sell") == [("sell", 2)]

    stage(play)


class Deaf:
    """The service, of which nothing is heard until the way to it is lost."""

    def __init__(self, stub: Any, lost: asyncio.Event) -> None:
        self._stub = stub
        self._lost = lost

    def RunPlan(self, **more: Any) -> Any:  # noqa: N802
        call = self._stub.RunPlan(**more)

        async def nothing() -> Any:
            await self._lost.wait()
            raise grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata())

        call.read = nothing
        return call


def test_a_write_that_the_platform_began_with_other_arguments_is_not_run_with_new_ones(stage: Any) -> None:
    """What the write takes from a read was heard by the platform only, and has changed since."""

    async def play(s: Stage) -> None:
        lost = asyncio.Event()
        async with client_with_a_way_around(s) as client, client.session("a") as session:
            await asyncio.sleep(1.0)
            plan = session.plan()
            stub = plan._stub
            plan._stub = lambda: Deaf(stub(), lost)  # type: ignore[assignment,return-value]
            async with plan:
                await plan.add(PlanTask("read", "get", {"id": 1}), PlanTask("write", "set", {"id": "$read.value"}))
                await asyncio.sleep(1.5)
                assert asked(s, "set") == [("set", 0)]
                s.world.values["False/1"] = 5
                await s.platform.stop_service("orchestrator", 0.2)
                lost.set()
                await asyncio.sleep(5.0)
                await s.platform.start_service("orchestrator")
                async with asyncio.timeout(60):
                    result = await plan.finish()
        assert value_of(result["read"].content) == 5
        assert result["write"].status is TaskStatus.OUTCOME_UNKNOWN
        assert asked(s, "set") == [("set", 0)]

    stage(play)


def test_a_write_that_may_have_begun_ends_unknown_at_its_deadline_and_the_rest_goes_on(stage: Any) -> None:
    async def play(s: Stage) -> None:
        async with client_with_a_way_around(s) as client, client.session("a") as session:
            await asyncio.sleep(1.0)
            async with session.plan() as plan:
                await plan.add(
                    PlanTask("write", "set", {"id": 1}, timeout_seconds=20.0),
                    PlanTask("on-it", "get", {"id": "$write.next"}),
                    PlanTask("read", "get", {"id": 7}),
                    PlanTask("later", "sell", {"id": 8}, timeout_seconds=20.0),
                )
                await asyncio.sleep(0.5)
                await s.platform.stop_service("orchestrator", 0.2)
                await plan.add(PlanTask("new", "sell", {"id": 9}))
                async with asyncio.timeout(120):
                    result = await plan.finish()
        status = {one.id: one.status for one in result.tasks}
        assert status["write"] is TaskStatus.OUTCOME_UNKNOWN
        assert status["on-it"] is TaskStatus.SKIPPED
        assert status["read"] is TaskStatus.OK
        assert status["new"] is TaskStatus.OK, "the platform never heard of it"
        assert [one for one in asked(s) if one[0] in ("set", "sell")].count(("set", 1)) == 1
        assert asked(s).count(("sell", 8)) <= 1
        assert asked(s).count(("sell", 9)) == 1

    stage(play)


@pytest.mark.parametrize(
    ("policy", "status", "ends"),
    [
        (OnFailure.ISOLATE, PlanStatus.OK, ["rejected", "skipped", "ok"]),
        (OnFailure.WAIT_ALL, PlanStatus.FAILED, ["rejected", "skipped", "ok"]),
        (OnFailure.FAIL_FAST, PlanStatus.FAILED, ["rejected", "skipped", "skipped"]),
    ],
)
def test_a_failed_task_does_what_the_policy_says(
    stage: Any, policy: OnFailure, status: PlanStatus, ends: list[str]
) -> None:
    async def play(s: Stage) -> None:
        async with client_with_a_way_around(s) as client, client.session("a") as session:
            await s.platform.stop_service("orchestrator", 0.2)
            await asyncio.sleep(AWAY)
            async with session.plan(on_failure=policy) as plan:
                await plan.add(PlanTask("fine", "get", {"id": 1}))
                await plan.add(
                    PlanTask("bad", "get", {"id": "$fine.nothing"}),
                    PlanTask("on-it", "get", {"id": "$bad.next"}),
                    PlanTask("beside", "get", {"id": 3}),
                )
                result = await plan.finish()
        assert result.status is status
        assert [one.status.value for one in result.tasks[1:]] == ends
        skipped = result["on-it"].failure
        assert skipped is not None and (policy is OnFailure.FAIL_FAST or skipped.metadata["task"] == "bad")

    stage(play)


def test_tasks_and_plans_are_taken_back_without_the_platform(stage: Any) -> None:
    async def play(s: Stage) -> None:
        loop = asyncio.get_running_loop()
        async with client_with_a_way_around(s) as client, client.session("a") as session:
            await asyncio.sleep(1.0)
            await s.platform.stop_service("orchestrator", 0.2)
            await asyncio.sleep(AWAY)
            async with session.plan() as plan:
                await plan.add(PlanTask("hangs", "hang", {"id": 1}), PlanTask("works", "get", {"id": 2}))
                await asyncio.sleep(1.0)
                await plan.cancel("hangs")
                result = await plan.finish()
            assert [one.status for one in result.tasks] == [TaskStatus.CANCELLED, TaskStatus.OK]
            began = loop.time()
            async with session.plan() as left:
                await left.add(PlanTask("hangs", "hang", {"id": 3}))
                await asyncio.sleep(1.0)
            assert loop.time() - began < 2.0
            await asyncio.sleep(0.1)
            assert s.world.cancelled == 2

    stage(play)


def test_after_a_task_that_was_taken_back_the_next_one_has_its_deadline(stage: Any) -> None:
    async def play(s: Stage) -> None:
        loop = asyncio.get_running_loop()
        failed: list[dict[str, Any]] = []
        loop.set_exception_handler(lambda _, context: failed.append(context))
        async with client_with_a_way_around(s) as client, client.session("a") as session:
            await asyncio.sleep(1.0)
            await s.platform.stop_service("orchestrator", 0.2)
            await asyncio.sleep(AWAY)
            async with session.plan() as plan:
                late = PlanTask("late", "hang", {"id": 2}, timeout_seconds=3.0)
                await plan.add(PlanTask("hangs", "hang", {"id": 1}), late)
                await asyncio.sleep(1.0)
                began = loop.time()
                await plan.cancel("hangs")
                result = await plan.finish()
                assert loop.time() - began < 10.0
            assert [one.status for one in result.tasks] == [TaskStatus.CANCELLED, TaskStatus.TIMEOUT]
            assert not failed

    stage(play)


@pytest.mark.parametrize(
    ("tasks", "problem"),
    [
        ([PlanTask("a", "get", {"id": "$nobody.next"})], "unknown_reference"),
        ([PlanTask("a", "get", {"id": "$b.next"}), PlanTask("b", "get", {"id": 1})], "forward_reference"),
        ([PlanTask("a", "get", {"id": "$a.next"})], "self_reference"),
        ([PlanTask("a", "get", {"id": 1}), PlanTask("a", "get", {"id": 2})], "duplicate_id"),
        ([PlanTask("a b", "get", {"id": 1})], "bad_id"),
        ([PlanTask("a", "get", '{"id": 1, "id": 2}')], "bad_arguments"),
        ([PlanTask("a", "get", {"id": "${oops"})], "bad_reference"),
    ],
)
def test_what_is_no_plan_is_refused_before_anything_runs(stage: Any, tasks: list[PlanTask], problem: str) -> None:
    async def play(s: Stage) -> None:
        async with client_with_a_way_around(s) as client, client.session("a") as session:
            await s.platform.stop_service("orchestrator", 0.2)
            await asyncio.sleep(AWAY)
            with pytest.raises(InvalidRequest) as caught:
                await session.run_plan(tasks)
            assert caught.value.metadata["problem"] == problem
        assert asked(s) == []

    stage(play)


def test_the_platform_that_comes_back_hears_of_what_was_written(stage: Any) -> None:
    """What it read before is not used any more: a read after the plan sees the plan's write."""

    async def play(s: Stage) -> None:
        async with client_with_a_way_around(s) as client, client.session("a") as session:
            assert value_of((await session.call_tool("stock", {"id": 4})).content) == 0
            await s.platform.stop_service("orchestrator", 0.2)
            await asyncio.sleep(AWAY)
            result = await session.run_plan([PlanTask("write", "sell", {"id": 4})])
            assert result.direct and result["write"].status is TaskStatus.OK
            await s.platform.start_service("orchestrator")
            async with asyncio.timeout(30):
                while session.direct:  # noqa: ASYNC110  (the state of another task)
                    await asyncio.sleep(0.1)
            assert value_of((await session.call_tool("stock", {"id": 4})).content) == 1
            later = await session.run_plan([PlanTask("read", "stock", {"id": 4})])
            assert not later.direct and value_of(later["read"].content) == 1

    stage(play)
