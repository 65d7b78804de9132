"""The research agent's script: recurring, varied, and led by what it observes."""

import json

import pytest

from forerun.cli.demo.agents import research
from forerun.cli.demo.agents.script import Call, Observation, Task
from tests.unit.demo.desk_double import LIBRARY, DeskDouble, play

SEED = 1
TASKS = research.tasks(LIBRARY, SEED, 40)


def tools(task: Task) -> list[list[str]]:
    return [[call.tool for call in message.calls] for message in play(task, SEED)[0]]


def test_no_two_tasks_share_a_subject_and_a_seed_gives_the_same_tasks() -> None:
    assert len({task.subject for task in TASKS}) == len(TASKS)
    assert research.tasks(LIBRARY, SEED, 40) == TASKS
    assert research.tasks(LIBRARY, SEED + 1, 40) != TASKS


def test_more_tasks_than_subjects_are_refused() -> None:
    with pytest.raises(ValueError, match="subjects"):
        research.tasks(LIBRARY, SEED, 10_000)


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.subject)
def test_every_session_ends_with_its_note_read_back_and_no_tool_fails(task: Task) -> None:
    messages, observations = play(task, SEED)
    assert [call.tool for call in messages[-1].calls][-2:] == ["add_note", "list_notes"]
    assert not [one for step in observations for one in step if one.tool_error]
    note = messages[-1].calls[-2].arguments["text"]
    assert observations[-1][-1].value()["notes"] == [note]
    assert str(note).startswith(f"{task.subject}: ")


def test_the_same_seed_and_observations_give_the_same_session() -> None:
    assert play(TASKS[0], SEED) == play(TASKS[0], SEED)


def test_arguments_come_from_the_users_words_and_from_observations() -> None:
    for task in TASKS:
        messages, observations = play(task, SEED)
        seen = task.user_text
        for message, step in zip(messages, observations, strict=True):
            for call in message.calls:
                if call.tool == "fetch":
                    assert str(call.arguments["id"]) in seen
            seen += b" ".join(one.content for one in step).decode()


def test_workflows_recur_and_vary() -> None:
    shapes = [json.dumps(tools(task)) for task in TASKS]
    assert 4 <= len(set(shapes)) < len(shapes)
    searches = [play(task, SEED)[0][0].calls[0].arguments["q"] for task in TASKS]
    unforeseeable = sum(query != task.subject for query, task in zip(searches, TASKS, strict=True))
    assert 0 < unforeseeable < len(TASKS) / 3


def test_the_warehouse_decides_the_branch() -> None:
    task = next(task for task in TASKS if task.subject.startswith("SUP-"))

    def verdict(late: int) -> str:
        desk = DeskDouble()

        def answer(call: Call) -> Observation:
            if call.tool == "warehouse":
                return Observation(json.dumps({"rows": [{"ordered": 10, "late": late}]}).encode())
            return desk.answer(call)

        return str(play(task, SEED, answer)[0][-1].calls[-2].arguments["text"])

    assert "do not renew" in verdict(9)
    assert ": renew" in verdict(0)


def test_a_failing_search_ends_in_a_note_and_not_in_a_crash() -> None:
    desk = DeskDouble()

    def answer(call: Call) -> Observation:
        return desk.answer(call) if call.tool.endswith("note") else Observation(b"gateway down", tool_error=True)

    messages, _ = play(TASKS[0], SEED, answer)
    assert messages[-1].calls[-2].tool == "add_note"
