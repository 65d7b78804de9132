"""Tool calls in a model's text, however it is cut into pieces."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from forerun.runtime.models.hermes import HermesCalls
from forerun.runtime.models.port import Gathered

CALL = '<tool_call>\n{"name": "find", "arguments": {"id": 12345678901234567890, "q": "é"}}\n</tool_call>'


def gathered(pieces: Sequence[str]) -> Gathered:
    calls, found = HermesCalls(), Gathered()
    for piece in pieces:
        for event in calls.feed(piece):
            found.add(event)
    for event in calls.end():
        found.add(event)
    return found


@pytest.mark.parametrize("size", [1, 2, 5, 1_000])
def test_text_and_calls_are_taken_apart(size: int) -> None:
    text = f"I look. {CALL}{CALL} a < b <tool"
    found = gathered([text[at : at + size] for at in range(0, len(text), size)])
    assert found.text == "I look.  a < b <tool"
    assert [(one.id, one.name) for one in found.tool_calls] == [("call_0", "find"), ("call_1", "find")]
    assert found.tool_calls[0].arguments == '{"id": 12345678901234567890, "q": "é"}'


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>no json</tool_call>",
        '<tool_call>{"name": 1, "arguments": {}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": "x"}</tool_call> and more',
        '<tool_call>{"name": "f"',
    ],
)
def test_what_is_no_call_stays_text(text: str) -> None:
    found = gathered([text])
    assert (found.text, found.tool_calls) == (text, ())


def test_a_call_whose_closing_tag_was_a_stop_is_a_call() -> None:
    assert gathered([CALL.removesuffix("</tool_call>")]).tool_calls[0].name == "find"
