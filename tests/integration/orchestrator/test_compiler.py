"""The loop of LLMCompiler on the whole platform: planner, executor, joiner, and their answers that are none."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from forerun.client import TaskStatus
from forerun.client.compiler import (
    Basis,
    Bounds,
    Compiler,
    Decided,
    Event,
    ModelPiece,
    ModelRequest,
    PlanBroken,
    RequestEnd,
    RunStatus,
    TaskPlanned,
    Thought,
    Usage,
)
from tests.integration.orchestrator.conftest import Stage
from tests.integration.orchestrator.scripted_model import (
    DIED,
    END,
    FINISH,
    REPLAN,
    Line,
    ScriptedModel,
    asked,
    compiler,
    first_number,
    run,
)

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
