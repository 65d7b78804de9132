"""Streamed messages: a call is told when its arguments are complete, once, in order, and the whole is what was sent."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.client import Call, InvalidRequest, Result, StreamedMessage
from forerun.client._message import ArgumentText


class Recorder:
    """A session that only writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[int, list[tuple[str, str]]]] = []
        self.text: list[str] = []
        self.asked: list[tuple[str, str, str]] = []

    async def partial_message(self, calls: Sequence[Call], *, first: int = 0) -> None:
        self.told.append((first, [(call.name, str(call.arguments)) for call in calls]))

    async def assistant_message(self, text: str) -> None:
        self.text.append(text)

    async def call_tools(self, calls: Sequence[Call], *, timeout_seconds: float | None = None) -> list[Result]:
        self.asked = [(call.name, str(call.arguments), call.provider_call_id) for call in calls]
        return []


def delta(index: int, arguments: str, name: str = "", id: str = "") -> dict[str, object]:
    function: dict[str, object] = {"arguments": arguments}
    if name:
        function["name"] = name
    return {"tool_calls": [{"index": index, "id": id or None, "function": function}]}


async def test_openai_deltas_are_told_when_an_object_closes_or_the_next_call_begins() -> None:
    session = Recorder()
    async with StreamedMessage(session) as message:
        await message.openai({"role": "assistant", "content": "Let me "})
        await message.openai({"content": "look."})
        await message.openai(delta(0, "", "get", "call-a"))
        await message.openai(delta(0, '{"q":"a}'))
        assert session.told == []
        await message.openai(delta(0, '\\"b{"}'))
        assert session.told == [(0, [("get", '{"q":"a}\\"b{"}')])]
        await message.openai(delta(1, "", "ping", "call-b"))
        await message.openai(delta(2, '{"x":', "get", "call-c"))
        assert session.told[1:] == [(1, [("ping", "{}")])]
        await message.openai(delta(2, "1}"))
        assert session.told[2:] == [(2, [("get", '{"x":1}')])]
        await message.call_tools()
    assert session.text == ["Let me look."]
    assert session.asked == [
        ("get", '{"q":"a}\\"b{"}', "call-a"),
        ("ping", "{}", "call-b"),
        ("get", '{"x":1}', "call-c"),
    ]


async def test_anthropic_events_are_told_when_their_block_ends() -> None:
    session = Recorder()
    events: list[dict[str, object]] = [
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Sure."}},
        {"type": "content_block_stop", "index": 0},
        {"type": "content_block_start", "content_block": {"type": "tool_use", "id": "t1", "name": "get", "input": {}}},
        {"type": "content_block_delta", "delta": {"type": "input_json_delta", "partial_json": '{"a": 1'}},
        {"type": "content_block_delta", "delta": {"type": "input_json_delta", "partial_json": "}"}},
        {"type": "content_block_stop"},
        {"type": "content_block_start", "content_block": {"type": "tool_use", "id": "t2", "name": "now", "input": {}}},
        {"type": "content_block_stop"},
    ]
    async with StreamedMessage(session) as message:
        for event in events:
            await message.anthropic(event)
        assert session.told == [(0, [("get", '{"a": 1}')]), (1, [("now", "{}")])]
        await message.call_tools()
    assert session.asked == [("get", '{"a": 1}', "t1"), ("now", "{}", "t2")]


async def test_a_message_without_calls_is_its_text() -> None:
    session = Recorder()
    async with StreamedMessage(session) as message:
        await message.add_text("Done.")
        assert await message.call_tools() == []
    assert (session.text, session.asked) == (["Done."], [])


async def test_wrong_use_is_refused() -> None:
    session = Recorder()
    async with StreamedMessage(session) as message:
        with pytest.raises(InvalidRequest, match="before call 0"):
            await message.add_call(1, name="get")
        await message.add_call(0, name="get", arguments="{}")
    with pytest.raises(InvalidRequest, match="over"):
        await message.add_call(0, arguments="x")
    with pytest.raises(InvalidRequest, match="over"):
        await message.call_tools()
    assert session.asked == [], "a message that was cut off asks for nothing"


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=6), values, max_size=4), st.integers(1, 7), st.booleans())
def test_an_object_is_closed_exactly_at_its_last_character(value: object, size: int, ascii_only: bool) -> None:
    whole = json.dumps(value, ensure_ascii=ascii_only)
    text = ArgumentText()
    for start in range(0, len(whole), size):
        assert not text.closed
        text.add(whole[start : start + size])
    assert text.closed
    assert text.text == whole
