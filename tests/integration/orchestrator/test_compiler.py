"""The loop of LLMCompiler on the whole platform: planner, executor, joiner, and everything that can go wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from forerun.client import AsyncSession, TaskStatus
from forerun.client.compiler import (
    Basis,
    Bounds,
    Compiler,
    CompilerFailed,
    CompilerResult,
    Decided,
    Event,
    ModelError,
    ModelPiece,
    ModelRequest,
    PlanBroken,
    RequestEnd,
    RunStatus,
    TaskEnded,
    TaskPlanned,
    Thought,
    Usage,
)
from tests.integration.orchestrator.conftest import Stage, value_of
from tests.integration.orchestrator.scripted_model import FINISH, REPLAN, Line, ScriptedModel
from tests.integration.orchestrator.test_plans_direct import AWAY, client_with_a_way_around

END = "9. join()<END_OF_PLAN>"
DIED = ModelError("MODEL_BROKEN_OFF", "the connection was reset", transient=True)


def asked(s: Stage, *tools: str) -> list[tuple[str, int]]:
    return [(name, arguments["id"]) for name, arguments, _ in s.world.log if not tools or name in tools]


def limited(seconds: float) -> ModelError:
    return ModelError("MODEL_RATE_LIMITED", "429", transient=True, billed=False, retry_after_seconds=seconds)


def compiler(planner: ScriptedModel, joiner: ScriptedModel, **bounds: Any) -> Compiler:
    return Compiler(planner, joiner=joiner, bounds=Bounds(**bounds))


async def run(session: AsyncSession, *scripts: Sequence[Line], **bounds: Any) -> CompilerResult:
    """One run with plans and, where they are used up, a joiner that finishes."""
    return await compiler(ScriptedModel(scripts), ScriptedModel([FINISH]), **bounds).run(session, "what?")


# ---------------------------------------------------------------- the loop


def test_tasks_run_while_the_plan_still_streams(stage: Any) -> None:
    async def play(s: Stage) -> None:
        loop = asyncio.get_running_loop()
        events: list[tuple[float, Event]] = []
        lines: list[Line] = ["Thought: four look-ups\n"]
        for number in range(1, 5):
            lines += [1.0, f"{number}. get(", f"id={number})", "\n"]
        planner, joiner = ScriptedModel([[*lines, END]], Usage(200, 40)), ScriptedModel([FINISH], Usage(100, 10))
        async with s.client.session("a") as session:
            began = loop.time()
            result = await compiler(planner, joiner).run(
                session, "what?", on_event=lambda event: events.append((loop.time() - began, event))
            )
        assert (result.status, result.answer, result.thought) == (RunStatus.ANSWERED, "done", "enough")
        assert max(at for at, _ in events) == pytest.approx(5.0, abs=0.1), (
            "each call runs while the next one is written"
        )
        planned = [at for at, event in events if isinstance(event, TaskPlanned)]
        assert planned == pytest.approx([1.0, 2.0, 3.0, 4.0], abs=0.05)
        assert [event for _, event in events if isinstance(event, Thought)] == [Thought(0, "four look-ups")]
        assert [type(event) for _, event in events][-1] is Decided
        assert [one.id for one in result.tasks] == ["1", "2", "3", "4"]
        assert (result.rounds, result.direct, result.kept) == (1, False, {})
        assert (result.spent.tokens, result.spent.wasted_tokens, result.spent.at_least) == (350, 0, False)
        assert result.spent.money(prompt_per_million=1e6, completion_per_million=2e6) == 300 + 100

    stage(play)


def test_a_write_waits_for_the_end_of_the_plan_and_a_read_does_not(stage: Any) -> None:
    async def play(s: Stage) -> None:
        plan: list[Line] = ["1. get(id=1)\n2. sell(id=5)\n", 4.0, "3. get(id=2)\n", 4.0, END]
        for reads_first, expected in ((True, ["get", "get", "sell"]), (False, ["get", "sell", "get"])):
            s.world.log.clear()
            async with s.client.session("a") as session:
                made = Compiler(ScriptedModel([plan]), joiner=ScriptedModel([FINISH]), reads_first=reads_first)
                result = await made.run(session, "what?")
            assert result.status is RunStatus.ANSWERED
            assert [name for name, _ in asked(s)] == expected

    stage(play)


def test_another_plan_sees_the_results_refers_to_them_and_repeats_no_finished_write(stage: Any) -> None:
    async def play(s: Stage) -> None:
        planner = ScriptedModel(
            [
                ["1. get(id=1)\n2. sell(id=$1.next)\n3. stock(id=7)\n", END],
                # The model repeats what is done, one of it by another way of saying the same.
                ["4. sell(id=2)\n5. stock(id=7)\n6. get(id=$4.next)\n7. sell(id=8)\n", "8. join()"],
            ]
        )
        joiner = ScriptedModel([["Thought: half\nAction: Replan(sell the other one)"], FINISH])
        async with s.client.session("a") as session:
            result = await compiler(planner, joiner).run(session, "what?")
        assert result.status is RunStatus.ANSWERED
        assert asked(s, "sell") == [("sell", 2), ("sell", 8)], "the finished write is not repeated"
        assert result.kept == {"4": "2"}
        assert [one.id for one in result.tasks] == ["1", "2", "3", "5", "6", "7"]
        assert all(one.status is TaskStatus.OK for one in result.tasks)
        assert asked(s, "get") == [("get", 1), ("get", 3)], "a reference to the kept task is one to the finished one"
        first, second = planner.prompts
        assert "Calls so far" not in first
        assert '2. sell(id="$1.next")\n   = {"id":2,"value":1,"next":3}' in second
        assert "After that: sell the other one" in second and "from 4 on" in second
        assert "4. sell(id=2)\n   = the result of 2, which is finished and was not repeated" in joiner.prompts[1]

    stage(play)


def test_a_write_that_another_one_came_after_is_wanted_again(stage: Any) -> None:
    async def play(s: Stage) -> None:
        planner = ScriptedModel(
            [["1. sell(id=2)\n2. sell(id=1)\n", END], ["3. sell(id=2)\n4. sell(id=1)\n5. sell(id=1)\n", "6. join()"]]
        )
        async with s.client.session("a") as session:
            result = await compiler(planner, ScriptedModel([REPLAN, FINISH])).run(session, "what?")
        assert result.kept == {}
        assert sorted(asked(s)) == [("sell", 1)] * 3 + [("sell", 2)] * 2

    stage(play)


def test_what_a_tool_or_the_way_to_it_refused_may_be_tried_again(stage: Any) -> None:
    async def play(s: Stage) -> None:
        planner = ScriptedModel([['1. sell(id="x")\n', END], ['2. sell(id="x")\n3. sell(id=1)\n', "4. join()"]])
        joiner = ScriptedModel([REPLAN, FINISH])
        async with s.client.session("a") as session:
            result = await compiler(planner, joiner).run(session, "what?")
        assert [one.status for one in result.tasks] == [TaskStatus.REJECTED, TaskStatus.REJECTED, TaskStatus.OK]
        assert "no result, rejected" in planner.prompts[1]

    stage(play)


def test_one_compiler_serves_runs_at_the_same_time(stage: Any) -> None:
    async def play(s: Stage) -> None:
        planner = ScriptedModel([["1. get(id=1)\n", 1.0, END]])
        made = compiler(planner, ScriptedModel([FINISH]))
        async with s.client.session("a") as one, s.client.session("a") as other:
            results = await asyncio.gather(made.run(one, "a"), made.run(other, "b"))
        assert [result.status for result in results] == [RunStatus.ANSWERED] * 2
        assert [len(result.requests) for result in results] == [2, 2]

    stage(play)


def test_a_model_of_ones_own_is_any_asynchronous_generator(stage: Any) -> None:
    async def play(s: Stage) -> None:
        async def model(request: ModelRequest) -> Any:
            if request.stop == ("<END_OF_PLAN>",):
                yield "1. get(id=1)\njoin()"
            else:
                yield ModelPiece("Action: Finish(1)", "stop")

        async with s.client.session("a") as session:
            result = await Compiler(model).run(session, "what?")
        assert result.answer == "1" and result.spent.at_least

    stage(play)


def test_functions_of_the_program_are_planned_too(stage: Any) -> None:
    async def play(s: Stage) -> None:
        session = s.client.session("a")

        @session.tool
        def shout(text: str) -> str:
            """Says it louder."""
            return text.upper()

        planner = ScriptedModel([["1. get(id=1)\n2. shout($1.next)\n3. shout('a $1.next')\n", END]])
        async with session:
            result = await compiler(planner, ScriptedModel([FINISH])).run(session, "what?")
        assert "- shout(text: string): Says it louder." in planner.requests[0].messages[0].content
        assert [one.status for one in result.tasks][2] is TaskStatus.OK
        assert result.tasks[2].content == b"A 2"

    stage(play)


# ---------------------------------------------------------------- plans that are none


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        (["1. sell(id=1)\n2. nothing(id=1)\n", END], "unknown_tool"),
        (["1. sell(id=1)\n2. get(id=$7.next)\n", END], "unknown_reference"),
        (["1. sell(id=1)\n2. get(id=$2.next)\n", END], "unknown_reference"),
        (["1. sell(id=1)\n", "Sure! Here is your plan:\n", END], "syntax"),
        (["1. sell(id=1)\n1. get(id=1)\n", END], "changed"),
        (["1. sell(id=1)\n", END, "\n2. get(id=3)"], "changed"),
        (["1. sell(id=1)\n2. get(id"], "truncated"),
        (["1. sell(id=1)\n2. get(id=2)\n"], "truncated"),
        (["1. sell(id=1)\n", *[f"{number}. get(id=1)\n" for number in range(2, 50)], END], "too_many_tasks"),
        (["1. sell(id=1)\nThought: ", *["and so on " * 100] * 50], "too_large"),
        (['1. sell(id=1)\n2. get(id="${")\n', END], "bad_reference"),
        (["\x00\x01 {]"], "truncated"),
    ],
)
def test_what_is_no_plan_changes_nothing_and_the_next_one_is_told_why(
    stage: Any, bad: list[Line], problem: str
) -> None:
    async def play(s: Stage) -> None:
        events: list[Event] = []
        planner = ScriptedModel([bad, lambda request: [f"{first_number(request)}. get(id=5)\n", "99. join()"]])
        async with s.client.session("a") as session:
            made = compiler(planner, ScriptedModel([FINISH]), tasks=20, plan_chars=5_000)
            result = await made.run(session, "what?", on_event=events.append)
            broken = next(event for event in events if isinstance(event, PlanBroken))
            assert broken.failure.metadata["problem"] == problem
            assert asked(s, "sell") == [], "nothing of it was written"
            if problem != "too_many_tasks":
                assert result.status is RunStatus.ANSWERED
                assert (result.rounds, asked(s, "get")[-1]) == (2, ("get", 5))
                assert broken.failure.message in planner.prompts[1]
            assert result.requests[0].end is RequestEnd.UNUSABLE
            assert result.spent.wasted_tokens > 0
            alone = await run(session, bad, replans=0, tasks=20, plan_chars=5_000)
        assert (alone.status, alone.answer) == (RunStatus.FAILED, "")
        assert alone.failure is not None and alone.failure.reason == "PLAN_INVALID"
        assert asked(s, "sell") == []

    stage(play)


def first_number(request: ModelRequest) -> str:
    """From where the planner is told to count."""
    said = request.messages[-1].content
    return said.partition("Number the calls from ")[2].partition(" ")[0] if "Number the calls" in said else "1"


def test_an_answer_that_is_cut_off_by_its_length_is_no_plan(stage: Any) -> None:
    async def play(s: Stage) -> None:
        async def model(request: ModelRequest) -> Any:
            yield ModelPiece("1. sell(id=1)\n2. join()", "length")

        async with s.client.session("a") as session:
            result = await Compiler(model, bounds=Bounds(replans=0)).run(session, "what?")
        assert result.failure is not None and result.failure.reason == "MODEL_CUT_OFF"
        assert [one.reason for one in result.requests] == ["MODEL_CUT_OFF"]
        assert asked(s) == []

    stage(play)


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


# ---------------------------------------------------------------- decisions


def test_a_decision_that_breaks_off_is_asked_for_again_and_never_two_halves(stage: Any) -> None:
    async def play(s: Stage) -> None:
        joiner = ScriptedModel([["Thought: x\nAction: Finish(Hello wor", DIED], ["Action: Finish(Good day)"]])
        async with s.client.session("a") as session:
            result = await compiler(ScriptedModel([["1. get(id=1)\n", END]]), joiner).run(session, "what?")
        assert result.answer == "Good day"
        failed, used = result.requests[1:]
        assert (failed.end, failed.basis, failed.reason) == (RequestEnd.FAILED, Basis.ESTIMATED, "MODEL_BROKEN_OFF")
        assert failed.usage.completion_tokens >= 9, "both halves are counted"
        assert used.end is RequestEnd.USED
        assert result.spent.at_least
        assert result.spent.wasted_tokens == failed.usage.prompt_tokens + failed.usage.completion_tokens

    stage(play)


def test_a_decision_that_is_none_is_asked_for_once_more(stage: Any) -> None:
    async def play(s: Stage) -> None:
        plan = ["1. get(id=1)\n", END]
        joiner = ScriptedModel([["I think so."], FINISH])
        async with s.client.session("a") as session:
            result = await compiler(ScriptedModel([plan]), joiner).run(session, "what?")
            assert result.status is RunStatus.ANSWERED
            assert "Your last answer could not be used: there is no line `Action: Finish" in joiner.prompts[1]
            never = ScriptedModel([["I think so."]])
            failed = await compiler(ScriptedModel([plan]), never).run(session, "what?")
        assert failed.failure is not None and failed.failure.reason == "DECISION_INVALID"
        assert len(never.requests) == 2
        assert [one.status for one in failed.tasks] == [TaskStatus.OK], "what was found out is there"

    stage(play)


def test_a_decision_without_an_end_is_stopped_by_its_length(stage: Any) -> None:
    async def play(s: Stage) -> None:
        joiner = ScriptedModel([["Thought: ", *["so " * 100] * 1_000, ")"]])
        async with s.client.session("a") as session:
            model = ScriptedModel([["1. get(id=1)\n", END]])
            result = await compiler(model, joiner, join_chars=1_000).run(session, "what?")
        assert result.failure is not None and result.failure.reason == "DECISION_INVALID"
        assert "more than 1000 characters (join_chars)" in result.failure.message
        assert [one.usage.completion_tokens < 1_000 for one in result.requests[1:]] == [True, True], "both were stopped"
        assert joiner.stopped == 2

    stage(play)


def test_a_joiner_that_always_wants_another_plan_meets_the_bound(stage: Any) -> None:
    async def play(s: Stage) -> None:
        planner = ScriptedModel([lambda request: [f"{first_number(request)}. stock(id=1)\n", "99. join()"]])
        joiner = ScriptedModel([REPLAN])
        async with s.client.session("a") as session:
            result = await compiler(planner, joiner, replans=3).run(session, "what?")
        assert result.failure is not None and result.failure.reason == "REPLANS_EXHAUSTED"
        assert (result.rounds, len(planner.requests), len(joiner.requests)) == (4, 4, 4)
        systems = [request.messages[0].content for request in joiner.requests]
        assert ["Replan" in system for system in systems] == [True, True, True, False]

    stage(play)


def test_tokens_are_bounded(stage: Any) -> None:
    async def play(s: Stage) -> None:
        planner = ScriptedModel([["1. get(id=1)\n", END]], Usage(900, 200))
        async with s.client.session("a") as session:
            result = await compiler(planner, ScriptedModel([FINISH]), tokens=1000).run(session, "what?")
        assert result.failure is not None and result.failure.reason == "BUDGET_EXHAUSTED"
        assert result.spent.tokens == 1100 and len(result.requests) == 1
        assert [one.status for one in result.tasks] == [TaskStatus.OK]

    stage(play)


def test_a_large_result_loses_its_middle_in_the_prompt_only(stage: Any) -> None:
    async def play(s: Stage) -> None:
        joiner = ScriptedModel([FINISH])
        async with s.client.session("a") as session:
            made = compiler(ScriptedModel([["1. big(id=50000)\n", END]]), joiner, observation_chars=900)
            result = await made.run(session, "what?")
        assert len(result.tasks[0].content) == 50_000
        assert "[... 49100 characters left out ...]" in joiner.prompts[0] and len(joiner.prompts[0]) < 2_000

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
