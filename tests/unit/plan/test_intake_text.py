"""Plans as text: the format of LLMCompiler, and JSON; whole, in pieces of any size, cut off and wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.core import limits
from forerun.core.canonical import JsonValue
from forerun.core.plan import FailurePolicy, Task
from forerun.core.plan.intake import ArrivalError, JsonPlanReader, LlmCompilerReader, TextReader

PARAMETERS = {"search": ("query", "limit"), "divide": ("a", "b"), "note": ("text",)}
TEXT = """Thought: it's two look-ups (and "one" ratio
1. search("Mont Blanc, \\"height\\" (m)", limit=3)

2. search(query='it\\'s "the" Eiffel tower')
Thought: now the ratio
3. divide($1[0].metres, $2["the height"])  # metres
4. note({"ratio": $3, 'list': [1.50, -2e3, 12345678901234567890, true, False, None], "text": "is $3 or $$3"})
5. join()<END_OF_PLAN>
"""
TASKS = [
    ("1", "search", {"query": 'Mont Blanc, "height" (m)', "limit": 3}),
    ("2", "search", {"query": 'it\'s "the" Eiffel tower'}),
    ("3", "divide", {"a": "$1[0].metres", "b": '$2["the height"]'}),
    (
        "4",
        "note",
        {
            "text": {
                "ratio": "$3",
                "list": [Decimal("1.50"), Decimal("-2E+3"), 12345678901234567890, True, False, None],
                "text": "is $3 or $$3",
            }
        },
    ),
]
JSON = json.dumps(
    {
        "version": 1,
        "failure": "wait_all",
        "tasks": [
            {"id": "a", "tool": "search", "arguments": {"query": 'x]}" \\', "limit": 3}},
            {
                "tool": "note",
                "arguments": {"text": "$a.n"},
                "after": ["a"],
                "timeout_seconds": 2.5,
                "failure": "fail_fast",
            },
            {"tool": "ping"},
        ],
    },
    indent=1,
)


def llm() -> LlmCompilerReader:
    return LlmCompilerReader(PARAMETERS.get)


def read(reader: TextReader, text: str, size: int) -> list[Task]:
    found = [task for start in range(0, len(text), size) for task in reader.feed(text[start : start + size])]
    return found + reader.finish()


def plain(tasks: list[Task]) -> list[tuple[str, str, JsonValue]]:
    return [(task.id, task.tool, dict(task.arguments)) for task in tasks]


# ---------------------------------------------------------------- LLMCompiler


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_the_text_of_a_planner_becomes_tasks_whatever_the_pieces(size: int) -> None:
    reader = llm()
    found = read(reader, TEXT, size)
    assert plain(found) == TASKS and reader.complete
    assert reader.thoughts == ['it\'s two look-ups (and "one" ratio', "now the ratio"]
    assert not any(task.literal for task in found)


def test_a_task_is_handed_on_with_its_line() -> None:
    reader = llm()
    assert reader.feed('1. search("a"') == []
    assert reader.feed(")") == [], "the rest of the line could make it something else"
    assert [task.id for task in reader.feed("\n2. sea")] == ["1"]
    assert [task.id for task in reader.feed('rch("b")\n3. join()')] == ["2"]
    assert reader.finish() == [] and reader.complete


def test_a_call_may_go_over_several_lines() -> None:
    found = read(llm(), '1. note(\n  {"a": [1,\n 2]}\n)\n2. note(text="b")\njoin()', 3)
    assert plain(found) == [("1", "note", {"text": {"a": [1, 2]}}), ("2", "note", {"text": "b"})]


@pytest.mark.parametrize("end", ["3. join()", "join()", "<END_OF_PLAN>", "  join( )  # done\n<END_OF_PLAN>\n\n"])
def test_forms_of_the_end(end: str) -> None:
    assert [task.id for task in read(llm(), f"1. ping()\n2. ping()\n{end}", 5)] == ["1", "2"]


@pytest.mark.parametrize(
    ("line", "reason", "says"),
    [
        ("1. search(", "truncated", "inside"),
        ('1. search("a', "truncated", ""),
        ('1. search("a")\n', "truncated", "neither join"),
        ("1. sea", "truncated", "cut off"),
        ("Thought: hm", "truncated", ""),
        ('search("a")\n', "syntax", "no number"),
        ("Let me think.\n", "syntax", "neither a thought nor a call"),
        ('1. search("a").lower()\n', "syntax", "follows a call"),
        ('1. search("a") and more\n', "syntax", "follows a call"),
        ('1. search("a" "b")\n', "syntax", "expected ','"),
        ('1. search("a", "b", "c")\n', "unknown_parameters", "takes 2 values"),
        ('1. mystery("a")\n', "unknown_parameters", "name=value"),
        ('1. search("a", query="b")\n', "duplicate_key", "query twice"),
        ('1. search(query="a", query="b")\n', "duplicate_key", ""),
        ('1. search(limit=1, "a")\n', "syntax", "by position"),
        ('1. note({"a": 1, "a": 2})\n', "duplicate_key", ""),
        ("1. note({a: 1})\n", "syntax", "a key in quotes"),
        ("1. note(a)\n", "syntax", ""),
        ("1. note(01)\n", "syntax", ""),
        ("1. note(NaN)\n", "not_a_number", ""),
        ("1. note($1 + 2)\n", "syntax", ""),
        ("1. note('a\n')\n", "syntax", ""),
        ("1. note([1,])\n", "syntax", ""),
        ("1. note(" + "[" * 70 + "]" * 70 + ")\n", "too_deep", "JSON_DEPTH"),
        ("1. ping()\n1. ping()\n", "changed", "only go up"),
        ("2. ping()\n1. ping()\n", "changed", ""),
        ("1. join()\n2. ping()\n", "changed", "after the end"),
        ("<END_OF_PLAN>\nThought: x\n", "changed", "after the end"),
        ('1. note("\\ud800")\n', "lone_surrogate", ""),
    ],
)
@pytest.mark.parametrize("size", [1, 1000])
def test_text_that_is_no_plan_is_one_typed_error(line: str, reason: str, says: str, size: int) -> None:
    reader = llm()
    with pytest.raises(ArrivalError) as caught:
        read(reader, line, size)
    assert caught.value.reason == reason and "line " in str(caught.value)
    assert says in str(caught.value) or says == "inside"
    with pytest.raises(ArrivalError):
        reader.feed("9. ping()\n")
    with pytest.raises(ArrivalError):
        reader.finish()


def test_what_came_before_an_error_was_handed_on_and_nothing_after_it_is() -> None:
    reader = llm()
    assert [task.id for task in reader.feed("1. ping()\n")] == ["1"]
    with pytest.raises(ArrivalError, match="line 2 of the plan"):
        reader.feed("oops\n2. ping()\n")


@given(st.text(alphabet="1.ajoin()\"'$[]{},=:# \n\\<END_OF_PLAN>", max_size=60), st.integers(1, 9))
def test_pieces_of_any_size_mean_the_same(text: str, size: int) -> None:
    def outcome(pieces: int) -> object:
        reader = llm()
        found: list[Task] = []
        try:
            for start in range(0, len(text), pieces):
                found += reader.feed(text[start : start + pieces])
            found += reader.finish()
        except ArrivalError as error:
            return error.reason, str(error)
        return plain(found)

    assert outcome(size) == outcome(1_000)


# ---------------------------------------------------------------- JSON


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_a_json_plan_becomes_tasks_whatever_the_pieces(size: int) -> None:
    reader = JsonPlanReader()
    found = read(reader, JSON, size)
    assert reader.complete and reader.failure is FailurePolicy.WAIT_ALL
    assert found == [
        Task(id="a", tool="search", arguments={"query": 'x]}" \\', "limit": 3}),
        Task(
            id="2",
            tool="note",
            arguments={"text": "$a.n"},
            after=("a",),
            timeout_seconds=2.5,
            on_failure=FailurePolicy.FAIL_FAST,
        ),
        Task(id="3", tool="ping", arguments={}),
    ]


def test_a_json_task_is_handed_on_with_its_closing_brace() -> None:
    reader = JsonPlanReader()
    assert reader.feed('{"tasks": [{"tool": "a", "arguments": {"n": 1.50, "i": 12345678901234567890}') == []
    (task,) = reader.feed("}")
    assert task.arguments == {"n": Decimal("1.50"), "i": 12345678901234567890}
    assert [one.id for one in reader.feed(',{"tool": "b"} ]')] == ["2"]
    with pytest.raises(ArrivalError, match="cut off"):
        JsonPlanReader().finish()
    reader.feed("}\n")
    assert reader.complete and reader.finish() == []


@pytest.mark.parametrize(
    ("text", "reason", "says"),
    [
        ("", "truncated", ""),
        ('{"tasks": [{"tool": "a"}', "truncated", "cut off after character 24"),
        ('{"tasks": [{"tool": "a"}]', "truncated", ""),
        ('{"tasks": [{"tool": "a', "truncated", ""),
        ("[]", "syntax", "found '[]' at character 0 of the plan, expected '{'"),
        ("{}", "syntax", "a key in quotes"),
        ('{"tasks": {}}', "syntax", "'['"),
        ('{"tasks": [{"tool": "a"},]}', "syntax", ""),
        ('{"tasks": [{"tool": "a"} {"tool": "b"}]}', "syntax", "',' or ']'"),
        ('{"tasks": [], "failure": "isolate"}', "syntax", "tasks is the last key"),
        ('{"failure": "isolate"}', "syntax", "every plan has it"),
        ('{"tasks": []} x', "syntax", "nothing more"),
        ('{"tasks": [{"tool": "a", "tool": "b"}]}', "duplicate_key", ""),
        ('{"failure": "isolate", "failure": "isolate", "tasks": []}', "duplicate_key", ""),
        ('{"tasks": [{"tool": "a", "arguments": {"x": NaN}}]}', "not_a_number", ""),
        ('{"steps": []}', "unsupported", "no key 'steps'"),
        ('{"version": 2, "tasks": []}', "unsupported", "version 1"),
        ('{"failure": "explode", "tasks": []}', "refused", "isolate, fail_fast, wait_all"),
        ('{"tasks": [1]}', "refused", "task number 1 must be an object"),
        ('{"tasks": [{}]}', "refused", "tool must be a string"),
        ('{"tasks": [{"id": 7, "tool": "a"}]}', "refused", "id must be a string"),
        ('{"tasks": [{"tool": "a", "arguments": []}]}', "refused", "arguments must be an object"),
        ('{"tasks": [{"tool": "a", "after": "b"}]}', "refused", "list of ids"),
        ('{"tasks": [{"tool": "a", "timeout_seconds": "3"}]}', "refused", "timeout_seconds"),
        ('{"tasks": [{"tool": "a", "timeout_seconds": true}]}', "refused", "timeout_seconds"),
        ('{"tasks": [{"tool": "a", "depends_on": []}]}', "refused", "unknown field 'depends_on'; known are after"),
        ('{"tasks": [{"tool": "a", "failure": 1}]}', "refused", "failure must be"),
    ],
)
@pytest.mark.parametrize("size", [1, 1000])
def test_json_that_is_no_plan_is_one_typed_error(text: str, reason: str, says: str, size: int) -> None:
    with pytest.raises(ArrivalError) as caught:
        read(JsonPlanReader(), text, size)
    assert caught.value.reason == reason
    assert size == 1 or says in str(caught.value)


@pytest.mark.parametrize("make", [llm, JsonPlanReader])
def test_text_is_bounded(make: Callable[[], TextReader], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PLAN_TEXT_BYTES", 20)
    reader = make()
    with pytest.raises(ArrivalError, match="PLAN_TEXT_BYTES"):
        reader.feed('{"tasks": [' + " " * 20)


def test_a_large_plan_in_one_piece_is_read_in_linear_time() -> None:
    tasks = [{"tool": "note", "arguments": {"text": f"line {number} " * 5}} for number in range(10_000)]
    assert len(read(JsonPlanReader(), json.dumps({"tasks": tasks}), 10**9)) == 10_000
    lines = "".join(f'{number}. note("line {number}")\n' for number in range(1, 10_001))
    assert len(read(llm(), lines + "join()", 10**9)) == 10_000
