"""The calls of provider messages: whole and streamed, glued, cut off and changed (cases A7, J5)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from forerun.core import limits
from forerun.core.canonical import JsonValue, parse_strict
from forerun.core.plan import Task
from forerun.core.plan.intake import AnthropicReader, ArrivalError, MessageReader, OpenAiReader
from forerun.core.schema import ToolSchema, parse_schema

LOOKUP = parse_schema(b'{"type":"object","properties":{"id":{"type":"string"}},"required":["id"]}')


def schema_of(tool: str) -> ToolSchema | None:
    return LOOKUP if tool == "lookup" else None


def value(python: Any) -> JsonValue:
    return parse_strict(json.dumps(python).encode())


def feed(reader: MessageReader, *events: Any) -> list[list[Task]]:
    return [reader.feed(value(event)) for event in events]


def plain(tasks: list[Task]) -> list[tuple[str, str, str, bytes | None]]:
    assert all(task.literal for task in tasks)
    return [(task.id, task.provider_call_id, task.tool, task.text) for task in tasks]


def piece(index: int, arguments: str = "", *, id: str = "", name: str = "", **choice: Any) -> Any:
    call: dict[str, Any] = {"index": index, "function": {"arguments": arguments}}
    if id:
        call["id"] = id
    if name:
        call["function"]["name"] = name
    return {"choices": [{"index": 0, "delta": {"tool_calls": [call]}, **choice}]}


def stop(reason: str) -> Any:
    return {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}


# ---------------------------------------------------------------- OpenAI


def test_a_whole_message_keeps_the_bytes_of_its_arguments() -> None:
    calls = [
        {"id": "call_a", "type": "function", "function": {"name": "search", "arguments": '{ "q": "$1", "n": 1.50}'}},
        {"id": "call_b", "type": "function", "function": {"name": "ping", "arguments": ""}},
    ]
    message = {"role": "assistant", "content": None, "tool_calls": calls}
    response = {"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}], "usage": {}}
    for given in (message, response):
        reader = OpenAiReader(schema_of)
        found = reader.whole(value(given))
        assert plain(found) == [("1", "call_a", "search", b'{ "q": "$1", "n": 1.50}'), ("2", "call_b", "ping", None)]
        assert reader.complete and found[1].arguments == {}
    assert OpenAiReader(schema_of).whole(value({"role": "assistant", "content": "no calls"})) == []


def test_a_streamed_call_is_complete_when_the_next_begins_or_the_message_ends() -> None:
    reader = OpenAiReader(schema_of)
    found = feed(
        reader,
        {"choices": [{"index": 0, "delta": {"role": "assistant", "content": None}}]},
        piece(0, id="call_a", name="search"),
        piece(0, '{"q":'),
        piece(0, ' "a"}'),
        piece(1, '{"q": "b"}', id="call_b", name="search"),
        stop("tool_calls"),
        {"choices": [], "usage": {"total_tokens": 9}},
    )
    reader.finish()
    assert [plain(tasks) for tasks in found] == [
        [],
        [],
        [],
        [],
        [("1", "call_a", "search", b'{"q": "a"}')],
        [("2", "call_b", "search", b'{"q": "b"}')],
        [],
    ]


def test_objects_under_one_index_are_all_kept_and_a_placeholder_is_none() -> None:
    reader = OpenAiReader(schema_of)
    glued = feed(reader, piece(0, "{}", name="quote"), piece(0, '{"ticker":"ACME"}'), stop("tool_calls"))[-1]
    assert [task.arguments for task in glued] == [{"ticker": "ACME"}] and glued[0].text is None
    reader = OpenAiReader(schema_of)
    glued = feed(reader, piece(0, '{"p":"a"}{"p":"b"}{"p":"c"}', id="x", name="quote"), stop("stop"))[-1]
    assert [(task.id, task.provider_call_id, task.arguments["p"]) for task in glued] == [
        ("1", "x", "a"),
        ("2", "x", "b"),
        ("3", "x", "c"),
    ]


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ([piece(0, '{"q":"a"}', name="s")], "truncated"),
        ([piece(0, '{"q":"a', name="s"), stop("tool_calls")], "syntax"),
        ([piece(0, '{"q":"a"}', name="s"), stop("length")], "truncated"),
        ([piece(0, '{"q":"a"}', name="s"), stop("content_filter")], "truncated"),
        ([piece(0, '{"q":"a"}', name="s"), {"error": {"message": "overloaded"}}], "truncated"),
        ([piece(0, "{}", name="s"), piece(0, "", name="t")], "changed"),
        ([piece(0, "{}", id="a", name="s"), piece(0, "", id="b")], "changed"),
        ([piece(0, "{}", name="s"), piece(1, "{}", name="s"), piece(0, "{}")], "changed"),
        ([piece(0, "{}", name="s"), stop("tool_calls"), piece(1, "{}", name="s")], "changed"),
        ([piece(0, "{}"), stop("tool_calls")], "syntax"),
        ([piece(0, "", name="lookup"), stop("tool_calls")], "missing_required"),
        ([piece(0, "[1]", name="s"), stop("tool_calls")], "not_an_object"),
        ([{"choices": [{"index": 1, "delta": {}}]}], "unsupported"),
        ([{"choices": [{"delta": {"function_call": {"name": "s"}}}]}], "unsupported"),
        ([{"choices": [{"delta": {"tool_calls": [{"function": {}}]}}]}], "syntax"),
        ([{"choices": [{"delta": {"tool_calls": {}}}]}], "syntax"),
        ([[]], "syntax"),
    ],
)
def test_a_stream_that_is_cut_off_or_changes_is_one_typed_error(events: list[Any], reason: str) -> None:
    reader = OpenAiReader(schema_of)
    with pytest.raises(ArrivalError) as caught:
        feed(reader, *events)
        reader.finish()
    assert caught.value.reason == reason
    with pytest.raises(ArrivalError):
        feed(reader, stop("tool_calls"))


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ({"choices": [{"message": {"tool_calls": []}, "finish_reason": "length"}]}, "truncated"),
        ({"tool_calls": [{"function": {"arguments": "{}"}}]}, "syntax"),
        ({"tool_calls": [{"type": "custom", "custom": {"name": "s"}}]}, "unsupported"),
        ({"tool_calls": [{"function": {"name": "s", "arguments": {}}}]}, "syntax"),
        ({"choices": [{}, {}]}, "unsupported"),
    ],
)
def test_a_whole_message_that_is_none(message: Any, reason: str) -> None:
    with pytest.raises(ArrivalError) as caught:
        OpenAiReader(schema_of).whole(value(message))
    assert caught.value.reason == reason


def test_calls_and_arguments_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    call = {"function": {"name": "s", "arguments": "{}"}}
    with pytest.raises(ArrivalError, match="CALLS_PER_MESSAGE"):
        OpenAiReader(schema_of).whole(value({"tool_calls": [call] * 1_001}))
    monkeypatch.setattr(limits, "ARGUMENTS_BYTES", 10)
    with pytest.raises(ArrivalError, match="ARGUMENTS_BYTES"):
        feed(OpenAiReader(schema_of), piece(0, '{"q":"', name="s"), piece(0, "aaaaaaaaa"))
    monkeypatch.setattr(limits, "PLAN_TEXT_BYTES", 8)
    with pytest.raises(ArrivalError, match="PLAN_TEXT_BYTES"):
        feed(OpenAiReader(schema_of), piece(0, "{}", name="s"), piece(1, '{"q":12}', name="s"))


# ---------------------------------------------------------------- Anthropic


def begin(index: int, name: str = "", id: str = "toolu_1", given: Any = None) -> Any:
    block = {"type": "tool_use", "id": id, "name": name, "input": given or {}} if name else {"type": "text", "text": ""}
    return {"type": "content_block_start", "index": index, "content_block": block}


def delta(index: int, text: str) -> Any:
    change = {"type": "input_json_delta", "partial_json": text}
    return {"type": "content_block_delta", "index": index, "delta": change}


def end(index: int) -> Any:
    return {"type": "content_block_stop", "index": index}


def reason(text: str) -> Any:
    return {"type": "message_delta", "delta": {"stop_reason": text}, "usage": {}}


STOP = {"type": "message_stop"}


def test_a_whole_anthropic_message() -> None:
    reader = AnthropicReader(schema_of)
    blocks = [
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "toolu_1", "name": "search", "input": {"q": "$1", "n": 12345678901234567890}},
        {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {}},
        {"type": "tool_use", "id": "toolu_2", "name": "ping", "input": {}},
    ]
    found = reader.whole(value({"role": "assistant", "content": blocks, "stop_reason": "tool_use"}))
    assert plain(found) == [
        ("1", "toolu_1", "search", b'{"n":12345678901234567890,"q":"$1"}'),
        ("2", "toolu_2", "ping", b"{}"),
    ]
    assert reader.complete and AnthropicReader(schema_of).whole(value({"content": "text"})) == []


def test_a_streamed_block_is_complete_with_its_end() -> None:
    reader = AnthropicReader(schema_of)
    found = feed(
        reader,
        {"type": "message_start", "message": {}},
        begin(0),
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "I look."}},
        end(0),
        {"type": "ping"},
        begin(1, "search"),
        delta(1, ""),
        delta(1, '{"q": "a'),
        delta(1, '"}'),
        end(1),
        begin(2, "ping", "toolu_2"),
        end(2),
        begin(3, "search", "toolu_3", {"q": "all at once"}),
        end(3),
        reason("tool_use"),
        {"type": "something_new"},
        STOP,
    )
    reader.finish()
    assert [plain(tasks) for tasks in found if tasks] == [
        [("1", "toolu_1", "search", b'{"q": "a"}')],
        [("2", "toolu_2", "ping", None)],
        [("3", "toolu_3", "search", b'{"q":"all at once"}')],
    ]


@pytest.mark.parametrize(
    ("events", "why"),
    [
        ([begin(0, "s"), delta(0, '{"q":')], "truncated"),
        ([begin(0, "s"), delta(0, '{"q":'), end(0)], "syntax"),
        ([begin(0, "s"), delta(0, '{"q":1}'), end(0), reason("max_tokens")], "truncated"),
        ([begin(0, "s"), delta(0, '{"q":1}'), end(0), reason("refusal")], "truncated"),
        ([begin(0, "s"), delta(0, "{}"), STOP], "truncated"),
        ([begin(0, "s"), {"type": "error", "error": {"type": "overloaded_error"}}], "truncated"),
        ([begin(0, "s"), begin(1, "s")], "changed"),
        ([begin(1, "s")], "changed"),
        ([begin(0, "s"), end(1)], "changed"),
        ([delta(0, "{}")], "changed"),
        ([begin(0, "s"), end(0), end(0)], "changed"),
        ([begin(0, "s", given={"q": 1}), delta(0, '{"q":2}'), end(0)], "changed"),
        ([STOP, begin(0, "s")], "changed"),
        ([begin(0, "lookup"), end(0)], "missing_required"),
        ([{"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", "name": ""}}], "syntax"),
        ([{"type": 1}], "syntax"),
    ],
)
def test_an_anthropic_stream_that_is_cut_off_or_changes(events: list[Any], why: str) -> None:
    reader = AnthropicReader(schema_of)
    with pytest.raises(ArrivalError) as caught:
        feed(reader, *events)
        reader.finish()
    assert caught.value.reason == why
    with pytest.raises(ArrivalError):
        feed(reader, STOP)


def test_a_whole_anthropic_message_that_is_none() -> None:
    for message, why in (
        ({"content": [{"type": "tool_use", "name": "s", "input": {}}], "stop_reason": "max_tokens"}, "truncated"),
        ({"content": [{"type": "tool_use", "name": "s", "input": [1]}]}, "not_an_object"),
        ({"content": [{"type": "tool_use", "input": {}}]}, "syntax"),
        ({"content": [{"type": "tool_use", "name": "s"}]}, "not_an_object"),
        ({"content": {}}, "syntax"),
    ):
        with pytest.raises(ArrivalError) as caught:
            AnthropicReader(schema_of).whole(value(message))
        assert caught.value.reason == why
