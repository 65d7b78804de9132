"""Plans through the services: references, order, failures, resumption, and what is no plan."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from forerun.client import InvalidRequest, Mode, OnFailure, PlanStatus, PlanTask, TaskStatus
from forerun.v1 import event_pb2, plan_pb2, session_pb2, session_pb2_grpc
from tests.integration.orchestrator.conftest import Stage, value_of


def ids(s: Stage, tool: str) -> list[int]:
    """What a tool was asked for, in order."""
    return [arguments["id"] for name, arguments, _ in s.world.log if name == tool]


def test_tasks_start_when_their_inputs_are_there_and_results_come_in_the_plans_order(stage: Any) -> None:
    async def play(s: Stage) -> None:
        loop = asyncio.get_running_loop()
        async with s.client.session("a") as session:
            began = loop.time()
            result = await session.run_plan(
                [
                    PlanTask("one", "get", {"id": 1}),
                    PlanTask("two", "get", {"id": "$one.next"}),
                    PlanTask("three", "get", '{"id": "$two.next"}'),
                    PlanTask("beside", "get", {"id": 10}),
                    PlanTask("join", "stock", {"id": "$three.next"}, after=["beside"]),
                ]
            )
            seconds = loop.time() - began
        assert result.status is PlanStatus.OK
        assert [one.id for one in result.tasks] == ["one", "two", "three", "beside", "join"]
        assert [json.loads(one.content)["id"] for one in result.tasks] == [1, 2, 3, 10, 4]
        assert seconds == pytest.approx(4.0, abs=0.1), "the longest chain has four calls of a second"

    stage(play)


def test_a_write_and_the_reads_around_it_keep_the_plans_order(stage: Any) -> None:
    async def play(s: Stage) -> None:
        async with s.client.session("a") as session:
            result = await session.run_plan(
                [
                    PlanTask("before", "get", {"id": 7}),
                    PlanTask("write", "set", {"id": 7}),
                    PlanTask("after", "get", {"id": 7}),
                    PlanTask("again", "set", {"id": 7}),
                    PlanTask("last", "get", {"id": 7}),
                ]
            )
        assert [value_of(one.content) for one in result.tasks] == [0, 1, 1, 2, 2]

    stage(play)


def test_tasks_run_while_the_plan_is_still_written(stage: Any) -> None:
    async def play(s: Stage) -> None:
        loop = asyncio.get_running_loop()
        seen: list[tuple[int, int, int]] = []
        async with s.client.session("a") as session:
            began = loop.time()
            async with session.plan(progress=lambda *numbers: seen.append(numbers)) as plan:
                for number in range(4):
                    await plan.add(PlanTask(f"t{number}", "get", {"id": number}))
                    await asyncio.sleep(1.0)
                result = await plan.finish()
            assert loop.time() - began == pytest.approx(4.0, abs=0.1), "each call ran while the next one was written"
        assert result.status is PlanStatus.OK
        assert seen[-1] == (4, 0, 4)

    stage(play)


def test_a_round_may_be_followed_by_another_that_refers_to_it(stage: Any) -> None:
    async def play(s: Stage) -> None:
        async with s.client.session("a") as session, session.plan() as plan:
            await plan.add(PlanTask("one", "get", {"id": 1}))
            first = await plan.finish()
            with pytest.raises(InvalidRequest):
                await plan.add(PlanTask("late", "get", {"id": 1}))
            await plan.again()
            await plan.add(PlanTask("two", "get", {"id": "$one.next"}))
            second = await plan.finish()
        assert (first.round, second.round) == (0, 1)
        assert [json.loads(one.content)["id"] for one in second.tasks] == [1, 2]

    stage(play)


@pytest.mark.parametrize(
    ("policy", "status", "ends"),
    [
        (OnFailure.ISOLATE, PlanStatus.OK, ["rejected", "skipped", "ok"]),
        (OnFailure.WAIT_ALL, PlanStatus.FAILED, ["rejected", "skipped", "ok"]),
        (OnFailure.FAIL_FAST, PlanStatus.FAILED, ["rejected", "skipped", "cancelled"]),
    ],
)
def test_a_failed_task_does_what_the_policy_says(
    stage: Any, policy: OnFailure, status: PlanStatus, ends: list[str]
) -> None:
    async def play(s: Stage) -> None:
        async with s.client.session("a") as session:
            result = await session.run_plan(
                [
                    PlanTask("bad", "get", {"id": "seven"}),
                    PlanTask("on-it", "get", {"id": "$bad.next"}),
                    PlanTask("beside", "get", {"id": 1}),
                ],
                on_failure=policy,
            )
        assert result.status is status
        assert [one.status.value for one in result.tasks] == ends
        skipped = result["on-it"].failure
        assert skipped is not None
        assert skipped.metadata["task"] == "bad"

    stage(play)


@pytest.mark.parametrize(
    ("tasks", "problem"),
    [
        ([PlanTask("a", "get", {"id": "$nobody.next"})], "unknown_reference"),
        ([PlanTask("a", "get", {"id": "$b.next"}), PlanTask("b", "get", {"id": 1})], "forward_reference"),
        ([PlanTask("a", "get", {"id": 1}), PlanTask("a", "get", {"id": 2})], "duplicate_id"),
        ([PlanTask("a b", "get", {"id": 1})], "bad_id"),
    ],
)
def test_what_is_no_plan_is_refused_before_anything_runs(stage: Any, tasks: list[PlanTask], problem: str) -> None:
    async def play(s: Stage) -> None:
        async with s.client.session("a") as session:
            with pytest.raises(InvalidRequest) as caught:
                await session.run_plan(tasks)
            assert caught.value.metadata["problem"] == problem
            result = await session.call_tool("get", {"id": 5})
        assert result.ok
        assert ids(s, "get") == [5]

    stage(play)


def test_a_task_and_a_plan_are_taken_back(stage: Any) -> None:
    async def play(s: Stage) -> None:
        async with s.client.session("a") as session:
            async with session.plan() as plan:
                await plan.add(PlanTask("hangs", "hang", {"id": 1}), PlanTask("works", "get", {"id": 2}))
                await asyncio.sleep(2.0)
                await plan.cancel("hangs")
                result = await plan.finish()
            assert [one.status for one in result.tasks] == [TaskStatus.CANCELLED, TaskStatus.OK]
            async with session.plan() as left:
                await left.add(PlanTask("hangs", "hang", {"id": 3}))
                await asyncio.sleep(1.0)
            await asyncio.sleep(1.0)
        assert s.world.cancelled == 2, "what nobody waits for is stopped at its tool"

    stage(play)


def test_a_plan_goes_on_with_another_orchestrator_and_repeats_nothing(stage: Any) -> None:
    async def play(s: Stage) -> None:
        async with s.client.session("a") as session, session.plan() as plan:
            await plan.add(
                PlanTask("read", "get", {"id": 1}),
                PlanTask("write", "set", {"id": "$read.next"}),
                PlanTask("slow", "get", {"id": "$write.next"}),
                PlanTask("last", "set", {"id": "$slow.next"}),
            )
            await asyncio.sleep(2.5)  # the write has answered, the read after it runs
            await s.platform.stop_service("orchestrator", 0.2)
            await asyncio.sleep(1.0)
            await s.platform.start_service("orchestrator")
            result = await plan.finish()
        assert result.status is PlanStatus.OK
        assert [one.status for one in result.tasks] == [TaskStatus.OK] * 4
        assert ids(s, "set") == [2, 4], "no write ran twice"
        assert ids(s, "get") in ([1, 3], [1, 3, 3]), "a read that was lost may be repeated"

    stage(play)


def test_a_plan_whose_session_another_replica_takes_goes_on(stage: Any) -> None:
    async def play(s: Stage) -> None:
        await s.platform.start_service("orchestrator-2")
        async with s.client.session("a") as session, session.plan() as plan:
            await plan.add(PlanTask("one", "get", {"id": 1}), PlanTask("two", "set", {"id": "$one.next"}))
            await asyncio.sleep(0.5)
            stub = session_pb2_grpc.SessionServiceStub(s.platform.service_channel("orchestrator-2"))
            hello = session_pb2.Hello(session=session.id, agent="a", resume=True)
            event = session_pb2.ClientEvent(user_turn=event_pb2.UserTurn(text="over here"))
            request = session_pb2.RecordEventRequest(hello=hello, id=s.ids.uuid7(), event=event)
            await stub.RecordEvent(request, timeout=5.0)
            async with asyncio.timeout(30):
                result = await plan.finish()
        assert [one.status for one in result.tasks] == [TaskStatus.OK] * 2
        assert ids(s, "set") == [2]

    stage(play)


def test_a_plan_whose_session_is_ended_has_an_end(stage: Any) -> None:
    async def play(s: Stage) -> None:
        stub = session_pb2_grpc.SessionServiceStub(s.platform.channel())
        async with s.client.session("a") as session, session.plan() as plan:
            await plan.add(PlanTask("hangs", "hang", {"id": 1}))
            await asyncio.sleep(1.0)
            await stub.EndSession(session_pb2.EndSessionRequest(session=session.id, reason="enough"), timeout=5.0)
            async with asyncio.timeout(20):
                result = await plan.finish()
        assert [one.status for one in result.tasks] == [TaskStatus.CANCELLED]

    stage(play)


def test_the_results_of_a_plan_are_not_sent_over_the_sessions_stream_as_well(stage: Any) -> None:
    async def play(s: Stage) -> None:
        stub = session_pb2_grpc.SessionServiceStub(s.platform.channel())
        hello = session_pb2.Hello(session=s.ids.uuid7(), agent="a")
        session: Any = stub.Connect()
        await session.write(session_pb2.ConnectRequest(hello=hello))
        assert (await session.read()).HasField("welcome")
        plan: Any = stub.RunPlan()
        await plan.write(session_pb2.RunPlanRequest(start=session_pb2.PlanStart(hello=hello, turn=1)))
        task = plan_pb2.PlanTask(id="one", tool="get", arguments=b'{"id": 1}')
        await plan.write(session_pb2.RunPlanRequest(tasks=plan_pb2.PlanTasks(tasks=[task])))
        await plan.done_writing()
        seen = [message.WhichOneof("message") async for message in plan]
        assert [kind for kind in seen if kind != "progress"] == ["task", "ended"]
        await session.write(session_pb2.ConnectRequest(end=session_pb2.EndSessionRequest(session=hello.session)))
        assert [message.WhichOneof("message") async for message in session] == ["ended"]

    stage(play)


def test_equal_reads_share_one_execution_and_results_are_those_without_forerun(stage: Any) -> None:
    tasks = [
        PlanTask("a", "get", {"id": 3}),
        PlanTask("b", "get", {"id": 3}),
        PlanTask("c", "stock", {"id": "$b.next"}),
        PlanTask("d", "sell", {"id": 4}),
        PlanTask("e", "stock", {"id": 4}),
    ]

    async def play(s: Stage) -> None:
        contents = []
        for mode in (Mode.EXACT, Mode.OFF):
            s.world.values.clear()
            async with s.client.session("a", mode=mode) as session:
                contents.append([one.content for one in (await session.run_plan(tasks)).tasks])
        assert contents[0] == contents[1]
        assert ids(s, "get") == [3, 3], "once for each of the two sessions"

    stage(play)


class SlowUplink:
    """The service, to which every part of a plan takes two seconds more."""

    def __init__(self, stub: Any) -> None:
        self._stub = stub

    def RunPlan(self, **more: Any) -> Any:  # noqa: N802
        call = self._stub.RunPlan(**more)
        write = call.write

        async def slowly(message: Any) -> None:
            await asyncio.sleep(2.0)
            await write(message)

        call.write = slowly
        return call


async def restarted(s: Stage) -> None:
    """The orchestrator is lost and comes back."""
    await s.platform.stop_service("orchestrator", 0.2)
    await asyncio.sleep(0.5)
    await s.platform.start_service("orchestrator")


def test_a_plan_of_several_rounds_goes_on_with_another_orchestrator(stage: Any) -> None:
    async def play(s: Stage) -> None:
        async with s.client.session("a") as session, session.plan() as plan:
            await plan.add(PlanTask("one", "set", {"id": 1}))
            await plan.finish()
            await plan.again()
            await plan.add(PlanTask("two", "get", {"id": "$one.next"}))
            await plan.finish()
            await plan.again()
            await plan.add(PlanTask("three", "set", {"id": "$two.next"}))
            await restarted(s)
            async with asyncio.timeout(60):
                result = await plan.finish()
        assert [one.status for one in result.tasks] == [TaskStatus.OK] * 3
        assert (ids(s, "set"), ids(s, "get")) == ([1, 3], [2])

    stage(play)


@pytest.mark.parametrize("stop", ["refuse", "cancel", "fail_fast"])
def test_what_was_stopped_before_it_began_does_not_begin_after_a_crash(stage: Any, stop: str) -> None:
    """Said again from the beginning, the write would have its input at once, and the stop would come too late."""

    async def play(s: Stage) -> None:
        policy = OnFailure.FAIL_FAST if stop == "fail_fast" else OnFailure.ISOLATE
        async with s.client.session("a") as session, session.plan(on_failure=policy) as plan:
            await plan.add(PlanTask("read", "get", {"id": 1}), PlanTask("write", "set", {"id": "$read.next"}))
            await asyncio.sleep(0.5)
            match stop:
                case "refuse":
                    await plan.refuse("the planner broke off")
                case "cancel":
                    await plan.cancel("write")
                case _:
                    await plan.add(PlanTask("bad", "stock", {"id": "x"}))
            first = await plan.finish()
            assert first["write"].status in (TaskStatus.SKIPPED, TaskStatus.CANCELLED)
            await plan.again()
            await plan.add(PlanTask("later", "get", {"id": 7}), PlanTask("last", "set", {"id": "$later.next"}))
            await asyncio.sleep(0.5)
            stub = plan._stub
            plan._stub = lambda: SlowUplink(stub())  # type: ignore[assignment,return-value]
            await restarted(s)
            async with asyncio.timeout(60):
                result = await plan.finish()
        assert ids(s, "set") == [8]
        assert result["write"].status in (TaskStatus.SKIPPED, TaskStatus.CANCELLED)
        assert [result[one].status for one in ("later", "last")] == [TaskStatus.OK] * 2

    stage(play)
