"""Answers by position."""

from __future__ import annotations

import json

import pytest

from forerun.cli.replay.policies import Rules, ToolRule
from forerun.cli.replay.positions import Durations, World, record, touch
from forerun.cli.replay.traces import RecordedCall, Session, Step

RULES = Rules(
    "f",
    {
        "read": ToolRule("read", "orders"),
        "other": ToolRule("read", "users"),
        "write": ToolRule("write", "orders"),
        "sum": ToolRule("pure", ""),
        "bash": ToolRule("staged", "orders", shell_argument="command"),
        "editor": ToolRule("staged", "orders", read_when={"command": "view"}),
    },
)


def session(*calls: tuple[str, str, str]) -> Session:
    steps = tuple(
        Step(n, (), 1.0, "", (RecordedCall(tool, arguments.encode(), content, False, float(n), "c"),))
        for n, (tool, arguments, content) in enumerate(calls, start=1)
    )
    return Session("f/s", "f", "t", steps)


def ask(recording_of: Session, *calls: tuple[str, str]) -> list[dict[str, object]]:
    recording, world = record(recording_of, RULES), World()
    answers = []
    for tool, text in calls:
        arguments = text.encode()
        answers.append(recording.answer(tool, arguments, world.arrive(touch(RULES, tool, arguments)), 9.0))
    return [json.loads(answer.body) for answer in answers]


def test_a_read_gets_the_same_answer_between_the_same_two_writes() -> None:
    run = session(("read", "{}", "before"), ("write", "{}", "ok"), ("read", "{}", "after"))
    got = ask(run, ("read", "{}"), ("read", "{}"), ("write", "{}"), ("read", "{}"))
    assert got == [
        {"content": "before", "epoch": {"orders": 0}},
        {"content": "before", "epoch": {"orders": 0}},
        {"content": "ok", "epoch": {"orders": 1}},
        {"content": "after", "epoch": {"orders": 1}},
    ]


def test_a_stale_answer_differs_even_where_the_contents_agree() -> None:
    run = session(("read", "{}", "same"), ("write", "{}", "ok"), ("read", "{}", "same"))
    early, _, late = ask(run, ("read", "{}"), ("write", "{}"), ("read", "{}"))
    assert early["content"] == late["content"]
    assert early != late


def test_a_write_of_another_resource_moves_nothing() -> None:
    run = session(("other", "{}", "u"), ("write", "{}", "ok"), ("other", "{}", "u"))
    assert ask(run, ("write", "{}"), ("other", "{}"))[1] == {"content": "u", "epoch": {"users": 0}}


def test_a_tool_without_a_rule_moves_everything() -> None:
    run = session(("read", "{}", "a"), ("mystery", "{}", "?"), ("read", "{}", "b"), ("other", "{}", "c"))
    got = ask(run, ("read", "{}"), ("mystery", "{}"), ("read", "{}"), ("other", "{}"))
    assert [answer["content"] for answer in got] == ["a", "?", "b", "c"]
    assert [answer["epoch"] for answer in got] == [{"orders": 0}, {"*": 1}, {"orders": 1}, {"users": 1}]


def test_arguments_are_compared_by_value() -> None:
    run = session(("read", '{"a":1,"b":[2]}', "x"))
    assert ask(run, ("read", '{ "b" : [2], "a": 1}'))[0]["content"] == "x"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('{"a": [1, 2.50]}', '{"a": [1, 2.50]}'),
        ("[]", "[]"),
        ("{broken", '"{broken"'),
        ("12", '"12"'),
        ("[NaN]", '"[NaN]"'),
    ],
)
def test_content_that_is_json_stands_as_it_is(content: str, expected: str) -> None:
    (answer,) = record(session(("sum", "{}", content)), RULES).in_order
    assert answer.body.decode() == f'{{"content":{expected},"epoch":{{}}}}'


def test_what_was_never_recorded_is_marked() -> None:
    (answer,) = ask(session(("read", "{}", "x")), ("read", '{"a":1}'))
    assert answer == {"content": "", "epoch": {"orders": 0}, "never_recorded": True}


def test_of_two_answers_at_one_position_the_first_counts() -> None:
    recording = record(session(("read", "{}", "x"), ("read", "{}", "y"), ("sum", "{}", "1")), RULES)
    assert recording.nondeterministic == 1
    assert [json.loads(answer.body)["content"] for answer in recording.in_order] == ["x", "x", "1"]
    assert [answer.seconds for answer in recording.in_order] == [1.0, 1.0, 3.0]


def test_what_a_staged_call_does_is_decided_by_its_arguments() -> None:
    assert touch(RULES, "bash", b'{"command":"ls -l"}').writes == ()
    assert touch(RULES, "bash", b'{"command":"rm x"}').writes == ("orders",)
    assert touch(RULES, "bash", b'{"command":"curl http://x"}').writes == ("*",)
    assert touch(RULES, "editor", b'{"command":"view"}').reads == ("orders",)
    assert touch(RULES, "editor", b'{"command":"create"}').writes == ("orders",)


def test_durations_of_unrecorded_calls_come_from_the_tool_and_are_the_same_each_time() -> None:
    durations = Durations([session(("read", "{}", "x"), ("read", "{}", "x"), ("sum", "{}", "1"))], seed=1)
    drawn = {durations.draw("f/s", "read", str(n).encode()) for n in range(50)}
    assert drawn == {1.0, 2.0}
    assert durations.draw("f/s", "read", b"1") == durations.draw("f/s", "read", b"1")
    assert {durations.draw("f/s", "new", str(n).encode()) for n in range(50)} == {1.0, 2.0, 3.0}
