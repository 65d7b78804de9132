"""Streams of events, decisions and prompts."""

from __future__ import annotations

import pytest

from forerun.client import Failure, InvalidRequest, TaskResult, TaskStatus, ToolInfo
from forerun.client.compiler import Bounds, LlmCompilerPrompts, PlannedTask, Round, Situation
from forerun.client.compiler._decision import Decision, DecisionProblem, decision_of
from forerun.client.compiler._http import url_of
from forerun.client.compiler._prompts import call_text, shortened, tool_text
from forerun.client.compiler._sse import EVENT_CHARS, SseError, SseReader

# ---------------------------------------------------------------- events of a stream


@pytest.mark.parametrize("size", [1, 2, 3, 100])
@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_events_are_read_whatever_the_pieces(size: int, line_end: str) -> None:
    text = ": hello\nevent: x\ndata: é1\n\ndata:2\ndata: 3\nid: 7\n\n\ndata\n\ndata: [DONE]\n\ndata: not whole"
    stream = text.replace("\n", line_end).encode()
    reader = SseReader()
    found = [one for start in range(0, len(stream), size) for one in reader.feed(stream[start : start + size])]
    assert found == ["é1", "2\n3", "", "[DONE]"]


def test_streams_that_are_none() -> None:
    with pytest.raises(SseError, match="UTF-8"):
        SseReader().feed(b"data: \xff\n\n")
    with pytest.raises(SseError, match="EVENT_CHARS"):
        SseReader().feed(b"data: " + b"x" * (EVENT_CHARS + 1))
    reader = SseReader()
    with pytest.raises(SseError, match="EVENT_CHARS"):
        for _ in range(EVENT_CHARS // 1000 + 2):
            reader.feed(b"data: " + b"x" * 1000 + b"\n")


# ---------------------------------------------------------------- addresses


def test_addresses() -> None:
    one = url_of("http://[::1]:8000/v1/chat?x=1")
    assert (one.host, one.port, one.encrypted, one.path, one.authority) == (
        "::1",
        8000,
        False,
        "/v1/chat?x=1",
        "[::1]:8000",
    )
    other = url_of("https://models.example")
    assert (other.port, other.encrypted, other.path, other.authority) == (443, True, "/", "models.example")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "models.example/v1",
        "ftp://x/",
        "http://",
        "http://x:99999/",
        "http://x/\r\nevil: 1",
        "http://u:p@x/",
        "http://é/",
    ],
)
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(InvalidRequest):
        url_of(text)


# ---------------------------------------------------------------- decisions


@pytest.mark.parametrize(
    ("text", "decision"),
    [
        ("Thought: a (b)\nAction: Finish(42)", Decision(True, "42", "a (b)")),
        ("Action: Finish(a (b)\n\nAction: c)<END_OF_RESPONSE>\n", Decision(True, "a (b)\n\nAction: c", "")),
        ("Thought: x\n Action: Replan()", Decision(False, "", "x")),
        ('Action: Replan( the "other" one )', Decision(False, 'the "other" one', "")),
        ("Thought: one\nand two\nAction: Finish('quoted')", Decision(True, "'quoted'", "one\nand two")),
    ],
)  # fmt: skip
def test_decisions(text: str, decision: Decision) -> None:
    assert decision_of(text) == decision


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no line"),
        ("The answer is 42.", "no line"),
        ("Action: Finish(4", "cut off"),
        ("Action: Finish(4) and more", "cut off"),
        ("Action: Finish()", "no answer"),
        ("Action: Stop(4)", "Finish"),
        ("Sure!\nAction: Finish(4)", "thought"),
        ("Action: finish(4)", "Finish"),
    ],
)
def test_what_is_no_decision(text: str, why: str) -> None:
    with pytest.raises(DecisionProblem, match=why):
        decision_of(text)


# ---------------------------------------------------------------- prompts

SEARCH = ToolInfo(
    name="search",
    version="1",
    input_schema='{"type": "object", "properties": {"query": {"type": "string"}, "limit": {"type": "integer", "maximum": 9}}, "required": ["query"]}',  # noqa: E501
    description="Finds\n  things.",
    timeout_seconds=1.0,
)  # fmt: skip


def ended(status: TaskStatus, content: bytes = b"", failure: Failure | None = None) -> TaskResult:
    return TaskResult("1", 0, status, content, "application/json", failure, "", 0.1)


def test_a_tool_in_a_prompt() -> None:
    lines = tool_text(SEARCH).split("\n")
    assert lines[0] == "- search(query: string, limit: integer (optional)): Finds things."
    assert lines[1].startswith("  schema: ") and '"maximum": 9' in lines[1]
    plain = ToolInfo(name="x", version="", input_schema="no schema", description="", timeout_seconds=1.0)
    assert tool_text(plain) == "- x()"


def test_a_call_in_a_prompt_keeps_its_numbers() -> None:
    assert (
        call_text("f", '{"a":12345678901234567890,"b":1.50,"c":["$1"]}') == 'f(a=12345678901234567890, b=1.5, c=["$1"])'
    )


def test_planner_and_joiner_see_the_run_so_far() -> None:
    tasks = [
        PlannedTask("1", "search", '{"query":"a"}', ended(TaskStatus.OK, b'{"n": 1}')),
        PlannedTask("2", "search", '{"query":"b"}', ended(TaskStatus.ERROR, b"gone")),
        PlannedTask("3", "search", '{"query":"c"}', ended(TaskStatus.TIMEOUT, failure=Failure("X", "too slow"))),
        PlannedTask("4", "search", '{"query":"d"}', ended(TaskStatus.OK, b"\xff\xfe")),
        PlannedTask("5", "search", '{"query":"e"}', None),
    ]
    situation = Situation(
        question="what?",
        tools=[SEARCH],
        rounds=[Round(tasks[:1], "look for b, too"), Round(tasks[1:])],
        first_number=6,
        complaint="it was empty",
    )
    prompts = LlmCompilerPrompts("Be brief.", "In English.", [("old?", '1. search("old")\n2. join()')])
    planner, joiner = prompts.plan(situation), prompts.join(situation)
    assert [one.role for one in planner] == [one.role for one in joiner] == ["system", "user"]
    assert "- search(" in planner[0].content and planner[0].content.endswith("Be brief.")
    assert 'Question: old?\n1. search("old")\n2. join()' in planner[0].content
    for text in (planner[1].content, joiner[1].content):
        assert "Question: what?" in text and text.endswith("Your last answer could not be used: it was empty")
        assert '1. search(query="a")\n   = {"n": 1}\nAfter that: look for b, too\n2. search' in text
        assert "the tool failed: gone" in text and "no result, timeout: too slow" in text
        assert "(2 bytes of application/json)" in text and "(no result)" in text
    assert "Number the calls from 6 on" in planner[1].content
    assert "Replan(" in joiner[0].content and joiner[0].content.endswith("In English.")
    last = prompts.join(Situation(question="what?", tools=[], rounds=[], may_replan=False))
    assert "Replan(" not in last[0].content and "(none)" in last[1].content


def test_long_results_lose_their_middle_and_the_latest_come_first_where_not_all_fit() -> None:
    assert shortened("0123456789", 10) == "0123456789"
    assert shortened("0123456789", 3) == "01 [... 7 characters left out ...] 9"
    rounds = [
        Round([PlannedTask(str(number), "search", "{}", ended(TaskStatus.OK, letter.encode() * 100))])
        for number, letter in enumerate("ab")
    ]
    situation = Situation(question="q", tools=[], rounds=rounds, observation_chars=100, prompt_chars=120)
    text = LlmCompilerPrompts().join(situation)[1].content
    assert "b" * 100 in text and "a" * 20 not in text and "characters left out" in text


def test_bounds_that_the_platform_does_not_have() -> None:
    for bad in ({"replans": 4}, {"tasks": 0}, {"tasks": 1001}, {"repeats": -1}):
        with pytest.raises(InvalidRequest):
            Bounds(**bad)
