"""A plan whose stream broke is told again from the beginning, and decides the same again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import grpc
import grpc.aio
import pytest

from forerun.client import ForerunClientError, OnFailure, PlanStatus, PlanTask
from forerun.v1 import common_pb2, event_pb2, plan_pb2, session_pb2, session_pb2_grpc
from tests.integration.orchestrator.conftest import Stage

End = tuple[str, str, str]
"""Task, status and digest."""


def task(id: str, tool: str, number: object, *, timeout_seconds: float | None = None) -> plan_pb2.PlanTask:
    """A task with one argument."""
    text = f'{{"id": {number}}}' if isinstance(number, int) else f'{{"id": "{number}"}}'
    return plan_pb2.PlanTask(id=id, tool=tool, arguments=text.encode(), timeout_seconds=timeout_seconds)


async def tell(
    s: Stage,
    session: str,
    tasks: Sequence[plan_pb2.PlanTask],
    policy: plan_pb2.FailurePolicy.ValueType,
    *,
    pause: float = 0.0,
    reads_first: bool = False,
) -> tuple[list[End], str]:
    """Tells a plan, each task in its own message, and gives the ends in their order and that of the plan."""
    stub = session_pb2_grpc.SessionServiceStub(s.platform.channel())
    hello = session_pb2.Hello(session=session, agent="a")
    options = plan_pb2.PlanOptions(failure=policy, reads_first=reads_first)
    stream: Any = stub.RunPlan()
    await stream.write(session_pb2.RunPlanRequest(start=session_pb2.PlanStart(hello=hello, turn=1, options=options)))
    for one in tasks:
        await stream.write(session_pb2.RunPlanRequest(tasks=plan_pb2.PlanTasks(tasks=[one])))
        await asyncio.sleep(pause)
    await stream.write(session_pb2.RunPlanRequest(complete=plan_pb2.PlanComplete()))
    await stream.done_writing()
    ends, plan = [], ""
    async for message in stream:
        if message.HasField("task"):
            status = plan_pb2.TaskStatus.Name(message.task.status)
            ends.append((message.task.id, status, message.task.observation.digest))
        elif message.HasField("ended"):
            plan = plan_pb2.PlanStatus.Name(message.ended.status)
    return ends, plan


async def restarted(s: Stage) -> None:
    """Another owner has the sessions: it knows of them what is in the journal."""
    await s.platform.stop_service("orchestrator", 5.0)
    await s.platform.start_service("orchestrator")


@pytest.mark.parametrize("restart", [False, True], ids=["same-owner", "another-owner"])
@pytest.mark.parametrize("pause", [0.0, 0.4])
def test_ends_count_in_the_order_in_which_they_were_recorded(stage: Any, restart: bool, pause: float) -> None:
    """The failure came last. Said first, it would cancel what had been answered before it."""
    tasks = [
        task("slow", "hang", 1, timeout_seconds=4.0),
        task("large", "big", 300_000),
        task("quick", "get", 1),
        task("on-it", "set", "$quick.next"),
    ]

    async def play(s: Stage) -> None:
        session = s.ids.uuid7()
        first = await tell(s, session, tasks, plan_pb2.FAILURE_POLICY_FAIL_FAST)
        assert {id: status for id, status, _ in first[0]} == {
            "slow": "TASK_STATUS_TIMEOUT",
            "large": "TASK_STATUS_OK",
            "quick": "TASK_STATUS_OK",
            "on-it": "TASK_STATUS_OK",
        }
        if restart:
            await restarted(s)
        assert await tell(s, session, tasks, plan_pb2.FAILURE_POLICY_FAIL_FAST, pause=pause) == first
        assert [name for name, _, _ in s.world.log] == ["hang", "big", "get", "set"], "nothing ran twice"

    stage(play)


@pytest.mark.parametrize("restart", [False, True], ids=["same-owner", "another-owner"])
def test_writes_that_wait_for_the_end_of_the_message_count_before_a_read_that_failed_after_them(
    stage: Any, restart: bool
) -> None:
    """Told again, the read's end is known before the message is complete, and the write's is not."""
    tasks = [task("write", "set", 1), task("slow", "hang", 1, timeout_seconds=2.0)]

    async def play(s: Stage) -> None:
        session = s.ids.uuid7()
        first = await tell(s, session, tasks, plan_pb2.FAILURE_POLICY_FAIL_FAST, reads_first=True)
        assert [(id, status) for id, status, _ in first[0]] == [
            ("write", "TASK_STATUS_OK"),
            ("slow", "TASK_STATUS_TIMEOUT"),
        ]
        if restart:
            await restarted(s)
        again = await tell(s, session, tasks, plan_pb2.FAILURE_POLICY_FAIL_FAST, reads_first=True, pause=0.1)
        assert again == first
        assert sorted(name for name, _, _ in s.world.log) == ["hang", "set"], "nothing ran twice"

    stage(play)


@pytest.mark.parametrize("restart", [False, True], ids=["same-owner", "another-owner"])
def test_what_was_late_is_late_again_and_not_cancelled(stage: Any, restart: bool) -> None:
    """A task that was taken back is no failure for the policy; one that was late is."""
    tasks = [task("slow", "hang", 1, timeout_seconds=2.0), task("quick", "get", 1)]

    async def play(s: Stage) -> None:
        session = s.ids.uuid7()
        first = await tell(s, session, tasks, plan_pb2.FAILURE_POLICY_WAIT_ALL)
        assert first[1] == "PLAN_STATUS_FAILED"
        assert s.world.cancelled == 1, "its tool was told to stop"
        if restart:
            await restarted(s)
        assert await tell(s, session, tasks, plan_pb2.FAILURE_POLICY_WAIT_ALL) == first
        assert s.world.executions("hang") == 1

    stage(play)


def test_what_a_failure_has_stopped_stays_stopped(stage: Any) -> None:
    """Told at once, the read would start before the failure is known that had stopped it."""
    tasks = [task("bad", "get", "seven"), task("beside", "hang", 1), task("never", "set", 1)]

    async def play(s: Stage) -> None:
        session = s.ids.uuid7()
        first = await tell(s, session, tasks, plan_pb2.FAILURE_POLICY_FAIL_FAST, pause=0.2)
        assert first[1] == "PLAN_STATUS_FAILED"
        assert await tell(s, session, tasks, plan_pb2.FAILURE_POLICY_FAIL_FAST) == first
        assert s.world.log == [], "nothing has begun, also not the second time"

    stage(play)


@pytest.mark.parametrize("restart", [False, True], ids=["same-owner", "another-owner"])
def test_what_a_failure_has_stopped_after_it_began_is_not_said_to_have_never_run(stage: Any, restart: bool) -> None:
    """Told one by one, the failure is known before what it had stopped."""
    tasks = [task("slow", "hang", 1, timeout_seconds=2.0), task("beside", "hang", 2), task("writes", "set", 3)]

    async def play(s: Stage) -> None:
        session, s.world.seconds = s.ids.uuid7(), 5.0
        first = await tell(s, session, tasks, plan_pb2.FAILURE_POLICY_FAIL_FAST)
        assert first[1] == "PLAN_STATUS_FAILED"
        if restart:
            await restarted(s)
        again = await tell(s, session, tasks, plan_pb2.FAILURE_POLICY_FAIL_FAST, pause=0.4)
        assert (sorted(again[0]), again[1]) == (sorted(first[0]), first[1])
        assert {id: status for id, status, _ in first[0]} == {
            "slow": "TASK_STATUS_TIMEOUT",
            "beside": "TASK_STATUS_CANCELLED",
            "writes": "TASK_STATUS_OUTCOME_UNKNOWN",
        }

    stage(play)


@pytest.mark.parametrize("restart", [False, True], ids=["same-owner", "another-owner"])
def test_a_task_that_shared_an_outcome_has_it_also_for_a_client_that_did_not_hear_of_it(
    stage: Any, restart: bool
) -> None:
    """A client that goes on by itself asks for it by its key: executed now it would come after what it stood before."""
    tasks = [task("one", "get", 1), task("same", "get", 1), task("then", "set", 1)]

    async def play(s: Stage) -> None:
        session = s.ids.uuid7()
        ends, _ = await tell(s, session, tasks, plan_pb2.FAILURE_POLICY_ISOLATE)
        digests = {id: digest for id, _, digest in ends}
        if restart:
            await restarted(s)
        stub = session_pb2_grpc.SessionServiceStub(s.platform.channel())
        asked = event_pb2.AskedCall(index=1, action=common_pb2.Action(tool="get", arguments=tasks[1].arguments))
        request = session_pb2.CallToolsRequest(
            hello=session_pb2.Hello(session=session, agent="a", resume=True),
            batch=session_pb2.CallBatch(turn=1, calls=[asked]),
        )
        result = (await stub.CallTools(request, timeout=20.0)).results[0]
        assert result.observation.digest == digests["one"] == digests["same"]
        assert result.served == common_pb2.SERVED_SHARED
        assert [name for name, _, _ in s.world.log] == ["get", "set"]

    stage(play)


def test_a_plan_that_failed_while_it_was_written_goes_on_with_another_round(stage: Any) -> None:
    async def play(s: Stage) -> None:
        async with s.client.session("a") as session, session.plan(on_failure=OnFailure.FAIL_FAST) as plan:
            await plan.add(PlanTask("bad", "get", {"id": "seven"}))
            await asyncio.sleep(1.0)
            await plan.add(PlanTask("late", "set", {"id": 1}))
            await asyncio.sleep(1.0)
            assert (await plan.finish()).status is PlanStatus.FAILED
            await plan.again()
            await plan.add(PlanTask("next", "set", {"id": 2}))
            async with asyncio.timeout(20):
                result = await plan.finish()
        assert [one.status.value for one in result.tasks] == ["rejected", "skipped", "ok"]
        assert [arguments for _, arguments, _ in s.world.log] == [{"id": 2}]

    stage(play)


@pytest.mark.parametrize("restart", [False, True], ids=["same-owner", "another-owner"])
def test_a_round_that_failed_and_was_refused_ends_when_it_is_told_again(stage: Any, restart: bool) -> None:
    """What had begun belongs to the next round, which its client tells once it has heard the end of this one."""

    async def play(s: Stage) -> None:
        session, stub = s.ids.uuid7(), session_pb2_grpc.SessionServiceStub(s.platform.channel())
        hello = session_pb2.Hello(session=session, agent="a")
        options = plan_pb2.PlanOptions(failure=plan_pb2.FAILURE_POLICY_FAIL_FAST)

        async def told() -> list[tuple[int, str]]:
            stream: Any = stub.RunPlan()
            ends: list[tuple[int, str]] = []
            start = session_pb2.RunPlanRequest(start=session_pb2.PlanStart(hello=hello, turn=1, options=options))
            bad, good = ([task(name, "get", number)] for name, number in (("bad", "seven"), ("good", 1)))
            for round_parts in (
                (
                    start,
                    session_pb2.RunPlanRequest(tasks=plan_pb2.PlanTasks(tasks=bad)),
                    session_pb2.RunPlanRequest(refuse=plan_pb2.PlanRefuse(reason="the planner broke off")),
                ),
                (
                    session_pb2.RunPlanRequest(again=plan_pb2.PlanAgain()),
                    session_pb2.RunPlanRequest(tasks=plan_pb2.PlanTasks(tasks=good)),
                    session_pb2.RunPlanRequest(complete=plan_pb2.PlanComplete()),
                ),
            ):
                for part in round_parts:
                    await stream.write(part)
                    await asyncio.sleep(0.2)
                async with asyncio.timeout(20.0):
                    while not (message := await stream.read()).HasField("ended"):
                        pass
                ends.append((message.ended.round, plan_pb2.PlanStatus.Name(message.ended.status)))
            stream.cancel()
            return ends

        first = await told()
        assert first == [(0, "PLAN_STATUS_FAILED"), (1, "PLAN_STATUS_OK")]
        if restart:
            await restarted(s)
        assert await told() == first
        assert [name for name, _, _ in s.world.log] == ["get"]

    stage(play)


def test_a_plan_whose_session_ended_between_two_rounds_has_no_other_round(stage: Any) -> None:
    async def play(s: Stage) -> None:
        stub = session_pb2_grpc.SessionServiceStub(s.platform.channel())
        async with s.client.session("a") as session, session.plan() as plan:
            await plan.add(PlanTask("one", "get", {"id": 1}))
            await plan.finish()
            await stub.EndSession(session_pb2.EndSessionRequest(session=session.id, reason="enough"), timeout=5.0)
            await plan.again()
            await plan.add(PlanTask("two", "get", {"id": 2}))
            async with asyncio.timeout(20):
                with pytest.raises(ForerunClientError):
                    await plan.finish()
            with pytest.raises(ForerunClientError):
                await plan.again()

    stage(play)


@pytest.mark.parametrize("broken", [False, True], ids=["half-closed", "broken"])
def test_a_message_whose_end_was_not_said_is_not_complete(stage: Any, broken: bool) -> None:
    """A stream that breaks looks to its reader like one that ends."""

    async def play(s: Stage) -> None:
        stub = session_pb2_grpc.SessionServiceStub(s.platform.channel())
        hello = session_pb2.Hello(session=s.ids.uuid7(), agent="a")
        options = plan_pb2.PlanOptions(reads_first=True)
        stream: Any = stub.RunPlan()
        start = session_pb2.PlanStart(hello=hello, turn=1, options=options)
        await stream.write(session_pb2.RunPlanRequest(start=start))
        tasks = [task("read", "get", 1), task("write", "set", 1)]
        await stream.write(session_pb2.RunPlanRequest(tasks=plan_pb2.PlanTasks(tasks=tasks)))
        await asyncio.sleep(0.5)
        if broken:
            s.platform.fabric.drop("orchestrator:1", source="client")
        else:
            await stream.done_writing()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for message in stream:
                assert message.HasField("progress")
        assert caught.value.code() is (grpc.StatusCode.UNAVAILABLE if broken else grpc.StatusCode.INVALID_ARGUMENT)
        await asyncio.sleep(400.0)  # longer than any task may take
        assert [name for name, _, _ in s.world.log] == ["get"]
        assert s.world.cancelled == 0, "its client may come back for it"

    stage(play)


def test_a_plan_that_was_left_starts_nothing_more(stage: Any) -> None:
    """Its client tells it again, perhaps to another owner; until then nobody decides about it."""

    async def play(s: Stage) -> None:
        stub = session_pb2_grpc.SessionServiceStub(s.platform.channel())
        hello = session_pb2.Hello(session=s.ids.uuid7(), agent="a")
        stream: Any = stub.RunPlan()
        start = session_pb2.PlanStart(hello=hello, turn=1, options=plan_pb2.PlanOptions(in_flight=1))
        await stream.write(session_pb2.RunPlanRequest(start=start))
        tasks = [task("hangs", "hang", 1), task("waits", "get", 1)]
        await stream.write(session_pb2.RunPlanRequest(tasks=plan_pb2.PlanTasks(tasks=tasks)))
        await asyncio.sleep(0.5)
        s.platform.fabric.drop("orchestrator:1", source="client")
        await asyncio.sleep(400.0)  # longer than any task may take
        assert [name for name, _, _ in s.world.log] == ["hang"]

    stage(play)


@pytest.mark.parametrize(("reads_first", "write"), [(False, "outcome_unknown"), (True, "cancelled")])
def test_what_the_platform_may_have_begun_of_a_stopped_plan_is_not_said_to_have_never_run(
    stage: Any, reads_first: bool, write: str
) -> None:
    async def play(s: Stage) -> None:
        async with s.client.session("a") as session:
            await s.client.learn("a")  # from now on the client knows what only reads
            async with session.plan(reads_first=reads_first) as plan:
                await plan.add(PlanTask("write", "set", {"id": 1}), PlanTask("read", "get", {"id": 2}))
                await asyncio.sleep(0.5)
                s.platform.fabric.drop("orchestrator:1", source="client")
                await plan.refuse("the planner broke off")
                async with asyncio.timeout(60):
                    result = await plan.finish()
        assert (s.world.executions("set"), s.world.executions("get")) == (int(not reads_first), 1)
        assert {one.id: one.status.value for one in result.tasks} == {"write": write, "read": "cancelled"}

    stage(play)
