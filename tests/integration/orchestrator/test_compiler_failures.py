"""The loop of LLMCompiler when models fail, and when it is ended from outside."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from forerun.client import TaskStatus
from forerun.client.compiler import (
    Basis,
    Bounds,
    Compiler,
    CompilerFailed,
    Event,
    ModelError,
    ModelRequest,
    RequestEnd,
    RunStatus,
    TaskEnded,
    Usage,
)
from tests.integration.orchestrator.conftest import Stage, value_of
from tests.integration.orchestrator.scripted_model import (
    DIED,
    END,
    FINISH,
    REPLAN,
    Line,
    ScriptedModel,
    asked,
    compiler,
    run,
)
from tests.integration.orchestrator.test_plans_direct import AWAY, client_with_a_way_around


def limited(seconds: float) -> ModelError:
    return ModelError("MODEL_RATE_LIMITED", "429", transient=True, billed=False, retry_after_seconds=seconds)


# ---------------------------------------------------------------- models that fail


def test_a_model_that_dies_before_any_task_is_asked_again_and_after_one_the_plan_is_stopped(stage: Any) -> None:
    async def play(s: Stage) -> None:
        planner = ScriptedModel(
            [
                ["Thought: hm\n1. ge", DIED],
                ["1. get(id=1)\n2. sell(id=2)\n3. se", 3.0, DIED],
                ["4. get(id=$1.next)\n", "5. join()"],
            ]
        )
        async with s.client.session("a") as session:
            result = await compiler(planner, ScriptedModel([FINISH])).run(session, "what?")
            assert asked(s, "sell") == []
            # What was read for a plan that never became complete is no result.
            assert [one.status for one in result.tasks] == [
                TaskStatus.CANCELLED, TaskStatus.SKIPPED, TaskStatus.SKIPPED,
            ]  # fmt: skip
            assert [(one.end, one.round, one.attempt) for one in result.requests] == [
                (RequestEnd.FAILED, 0, 1),
                (RequestEnd.FAILED, 0, 2),
                (RequestEnd.USED, 1, 1),
                (RequestEnd.USED, 1, 1),
            ]
            assert "the plan broke off: the connection was reset" in planner.prompts[2]
            refused = await run(session, ["1. get(id=1)\n", DIED], replans=0, repeats=9)
        assert refused.failure is not None and refused.failure.reason == "PLAN_BROKEN_OFF"

    stage(play)


def test_what_a_plan_without_reads_first_had_done_stays_done(stage: Any) -> None:
    async def play(s: Stage) -> None:
        planner = ScriptedModel(
            [["1. sell(id=2)\n2. ", 3.0, DIED], ["3. sell(id=2)\n4. get(id=$3.next)\n", "5. join()"]]
        )
        made = Compiler(planner, joiner=ScriptedModel([FINISH]), reads_first=False)
        async with s.client.session("a") as session:
            result = await made.run(session, "what?")
        assert asked(s) == [("sell", 2), ("get", 3)], "sold once, although the plan broke off and began anew"
        assert result.kept == {"3": "1"}

    stage(play)


@pytest.mark.parametrize("script", [[None], ["1. get(id=1)\n", None]], ids=["at once", "amid the plan"])
def test_a_model_that_hangs_is_stopped(stage: Any, script: list[Line]) -> None:
    async def play(s: Stage) -> None:
        loop = asyncio.get_running_loop()
        planner = ScriptedModel([script])
        async with s.client.session("a") as session:
            began = loop.time()
            result = await compiler(
                planner, ScriptedModel([FINISH]), first_token_seconds=10.0, idle_seconds=5.0, repeats=2, replans=0
            ).run(session, "what?")
            seconds = loop.time() - began
        assert result.status is RunStatus.FAILED and result.failure is not None
        if len(script) == 1:
            assert result.failure.reason == "MODEL_TIMEOUT"
            assert len(planner.requests) == 3 and seconds == pytest.approx(31.0, abs=1.5)
            assert {one.basis for one in result.requests} == {Basis.UNKNOWN}
        else:
            assert result.failure.reason == "PLAN_BROKEN_OFF"
            assert len(planner.requests) == 1 and seconds == pytest.approx(5.0, abs=0.5)
            assert [one.basis for one in result.requests] == [Basis.ESTIMATED]
        assert planner.stopped == len(planner.requests), "nobody reads on, so it was told to stop"

    stage(play)


def test_an_answer_without_an_end_is_stopped_by_its_time(stage: Any) -> None:
    async def play(s: Stage) -> None:
        async def model(request: ModelRequest) -> Any:
            while True:
                await asyncio.sleep(1.0)
                yield ""

        async with s.client.session("a") as session:
            bounds = Bounds(request_seconds=30.0, first_token_seconds=5.0, repeats=0)
            result = await Compiler(model, bounds=bounds).run(session, "what?")
        assert result.failure is not None and result.failure.reason == "MODEL_TIMEOUT"
        assert result.requests[0].seconds == pytest.approx(30.0, abs=1.0)

    stage(play)


def test_a_model_that_raises_is_not_asked_again(stage: Any) -> None:
    async def play(s: Stage) -> None:
        async def model(request: ModelRequest) -> Any:
            yield ""
            raise KeyError("a defect")

        async with s.client.session("a") as session:
            result = await Compiler(model).run(session, "what?")
        assert result.failure is not None and result.failure.reason == "MODEL_FAILED"
        assert len(result.requests) == 1
        with pytest.raises(CompilerFailed) as caught:
            result.raise_for_status()
        assert caught.value.result is result and caught.value.reason == "MODEL_FAILED"

    stage(play)


def test_a_limited_model_is_asked_when_it_says_so_and_never_before(stage: Any) -> None:
    async def play(s: Stage) -> None:
        loop = asyncio.get_running_loop()
        at: list[float] = []

        def say(request: ModelRequest) -> list[Line]:
            at.append(loop.time())
            return [[limited(7.0)], [limited(20.0)], ["1. get(id=1)\n", END]][len(at) - 1]  # type: ignore[return-value]

        async with s.client.session("a") as session:
            planner = ScriptedModel([say])
            result = await compiler(planner, ScriptedModel([FINISH]), repeats=2).run(session, "what?")
            assert result.status is RunStatus.ANSWERED
            assert [at[1] - at[0], at[2] - at[1]] == pytest.approx([7.0, 20.0], abs=0.1)
            assert [(one.usage, one.basis) for one in result.requests[:2]] == [(Usage(0, 0), Basis.EXACT)] * 2
            assert result.spent.wasted_tokens == 0

            began = loop.time()
            late = ScriptedModel([[limited(120.0)]])
            failed = await compiler(late, ScriptedModel([FINISH])).run(session, "what?", deadline_seconds=30.0)
            assert loop.time() - began < 1.0, "waiting cannot help, so it fails at once"
            assert failed.failure is not None
            assert (failed.failure.reason, failed.failure.retry_after_seconds) == ("MODEL_RATE_LIMITED", 120.0)
            assert len(late.requests) == 1

            always = ScriptedModel([[limited(1.0)]])
            given_up = await compiler(always, ScriptedModel([FINISH]), repeats=3).run(session, "what?")
            assert given_up.status is RunStatus.FAILED and len(always.requests) == 4

    stage(play)


def test_repeats_are_one_budget_of_the_whole_run(stage: Any) -> None:
    async def play(s: Stage) -> None:
        planner = ScriptedModel([[DIED], [DIED], ["1. get(id=1)\n", END]])
        joiner = ScriptedModel([["Action: Fin", DIED], [DIED], FINISH])
        async with s.client.session("a") as session:
            result = await compiler(planner, joiner, repeats=3).run(session, "what?")
        assert result.status is RunStatus.FAILED and result.failure is not None
        assert result.failure.reason == "MODEL_BROKEN_OFF"
        assert len(planner.requests) + len(joiner.requests) == 5, "two answers, and three repeats"

    stage(play)


# ---------------------------------------------------------------- ends from outside


def test_a_deadline_takes_back_what_runs_and_says_what_there_is(stage: Any) -> None:
    async def play(s: Stage) -> None:
        loop = asyncio.get_running_loop()
        planner = ScriptedModel([["1. get(id=1)\n2. hang(id=2)\n", END]])
        async with s.client.session("a") as session:
            began = loop.time()
            result = await compiler(planner, ScriptedModel([FINISH])).run(session, "what?", deadline_seconds=4.0)
            assert loop.time() - began == pytest.approx(4.0, abs=1.0)
            assert (result.status, result.answer) == (RunStatus.TIMEOUT, "")
            assert result.failure is not None and result.failure.reason == "DEADLINE_EXCEEDED"
            assert [one.status for one in result.tasks] == [TaskStatus.OK, TaskStatus.CANCELLED]
            slow = ScriptedModel([[None]])
            late = await compiler(slow, ScriptedModel([FINISH])).run(session, "what?", deadline_seconds=4.0)
            assert late.status is RunStatus.TIMEOUT and slow.stopped == 1
            assert late.requests[0].end is RequestEnd.CANCELLED
        assert s.world.cancelled == 1

    stage(play)


def test_a_run_that_is_cancelled_stops_its_tools_and_its_model(stage: Any) -> None:
    async def play(s: Stage) -> None:
        planner = ScriptedModel([["1. hang(id=1)\n", None]])
        async with s.client.session("a") as session:
            running = asyncio.ensure_future(compiler(planner, ScriptedModel([FINISH])).run(session, "what?"))
            await asyncio.sleep(2.0)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert planner.stopped == 1
            await asyncio.sleep(1.0)
            assert s.world.cancelled == 1
            assert value_of((await session.call_tool("get", {"id": 1})).content) == 0, "the session goes on"

    stage(play)


def test_a_platform_that_is_lost_in_the_middle_loses_and_repeats_nothing(stage: Any) -> None:
    async def play(s: Stage) -> None:
        planner = ScriptedModel(
            [["1. get(id=1)\n", 1.5, "2. sell(id=$1.next)\n", 1.5, END], ["10. sell(id=9)\n", 6.0, "11. join()"]]
        )
        ended: list[str] = []

        def on_event(event: Event) -> None:
            if isinstance(event, TaskEnded):
                ended.append(event.result.id)

        async with s.client.session("a") as session:
            run = asyncio.ensure_future(
                compiler(planner, ScriptedModel([REPLAN, FINISH])).run(session, "what?", on_event=on_event)
            )
            await asyncio.sleep(2.0)
            await s.platform.stop_service("orchestrator", 0.2)  # while the plan streams
            await asyncio.sleep(0.5)
            await s.platform.start_service("orchestrator")
            await asyncio.sleep(4.5)
            await s.platform.stop_service("orchestrator", 0.2)  # while the second plan streams
            await asyncio.sleep(0.5)
            await s.platform.start_service("orchestrator")
            async with asyncio.timeout(60):
                result = await run
        assert result.status is RunStatus.ANSWERED
        assert asked(s, "sell") == [("sell", 2), ("sell", 9)]
        assert ended == ["1", "2", "10"]
        assert [one.status for one in result.tasks] == [TaskStatus.OK] * 3

    stage(play)


def test_without_the_platform_the_loop_goes_on(stage: Any) -> None:
    async def play(s: Stage) -> None:
        planner = ScriptedModel([["1. get(id=1)\n2. sell(id=$1.next)\n", 1.0, END]])
        async with client_with_a_way_around(s) as client, client.session("a") as session:
            await asyncio.sleep(1.0)
            await s.platform.stop_service("orchestrator", 0.2)
            await asyncio.sleep(AWAY)
            result = await compiler(planner, ScriptedModel([FINISH])).run(session, "what?")
        assert (result.status, result.direct) == (RunStatus.ANSWERED, True)
        assert asked(s) == [("get", 1), ("sell", 2)]
        assert "- sell(id: integer)" in planner.requests[0].messages[0].content, "known from before"

    stage(play)


def test_what_arrives_in_one_piece_with_a_mistake_is_taken_up_to_the_mistake(stage: Any) -> None:
    """The next plan refers to a task of the piece: it exists, and has no result."""

    async def play(s: Stage) -> None:
        planner = ScriptedModel([["1. get(id=1)\n2. nothing(id=1)\n"], ["3. get(id=$1.next)\n4. get(id=5)\n", END]])
        async with s.client.session("a") as session:
            result = await compiler(planner, ScriptedModel([FINISH])).run(session, "what?")
        assert [(one.id, one.status.value) for one in result.tasks] == [
            ("1", "cancelled"),
            ("3", "skipped"),
            ("4", "ok"),
        ]
        assert "no tool 'nothing'; there are big, get" in planner.prompts[1]
        assert "1. get(id=1)\n   no result, cancelled" in planner.prompts[1]

    stage(play)


def test_a_session_that_ends_under_a_run_leaves_what_it_had_found_and_cost(stage: Any) -> None:
    async def play(s: Stage) -> None:
        planner = ScriptedModel([["1. get(id=1)\n2. hang(id=2)\n", END]], Usage(10, 10))
        async with s.client.session("a") as session:
            running = asyncio.ensure_future(compiler(planner, ScriptedModel([FINISH])).run(session, "what?"))
            await asyncio.sleep(3.0)
            await session.close()
            async with asyncio.timeout(60):
                result = await running
        assert result.spent.tokens >= 20 and result.tasks[0].status is TaskStatus.OK
        assert result.status in (RunStatus.FAILED, RunStatus.ANSWERED)

    stage(play)


def test_an_event_handler_that_raises_harms_nothing(stage: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def play(s: Stage) -> None:
        def on_event(event: Event) -> None:
            raise RuntimeError("a defect")

        async with s.client.session("a") as session:
            made = compiler(ScriptedModel([["1. get(id=1)\n", END]]), ScriptedModel([FINISH]))
            result = await made.run(session, "what?", on_event=on_event)
        assert result.status is RunStatus.ANSWERED
        assert "on_event raised at a TaskPlanned" in caplog.messages

    stage(play)
