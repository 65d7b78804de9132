"""Schemas of a session's tools for a small model, and what its guesses cost in the ledger."""

from __future__ import annotations

from typing import Any

from forerun.core import limits
from forerun.core.ledger import EntryKind
from forerun.orchestrator.preparation import Tool, client_tool_of, schemas_of
from forerun.orchestrator.records import guess_entry
from forerun.v1 import prediction_pb2, session_pb2


def tool(name: str, schema: str) -> Tool:
    return client_tool_of(session_pb2.ClientTool(name=name, input_schema=schema))


def test_schemas_go_into_the_journal_up_to_a_bound() -> None:
    large = '{"description": "' + "x" * (limits.GUESS_SCHEMAS_BYTES - 100) + '"}'
    tools = {"a": tool("a", '{"type": "object"}'), "b": tool("b", large), "c": tool("c", '{"maxProperties": 1}')}
    assert schemas_of(["c", "a", "unknown"], tools) == (("c", '{"maxProperties": 1}'), ("a", '{"type": "object"}'))
    assert [name for name, _ in schemas_of(["b", "a", "c"], tools)] == ["b", "a", "c"]
    assert [name for name, _ in schemas_of(["a", "c", "b"], {**tools, "b": tool("b", large + " " * 99)})] == ["a", "c"]


def test_a_guess_has_its_line_whatever_came_of_it() -> None:
    given: dict[str, Any] = {
        "model": "small",
        "seconds": 2.5,
        "input_tokens": 300,
        "output_tokens": 24,
        "asked_because": "probe",
    }
    late = guess_entry(prediction_pb2.SecondGuess(result="late", **given))
    assert (late.kind, late.model, late.seconds, late.wasted_seconds) == (EntryKind.MODEL, "small", 2.5, 2.5)
    assert late.reason == "second guess: late, asked because probe"
    assert (late.input_tokens, late.output_tokens) == (300, 24)
    assert guess_entry(prediction_pb2.SecondGuess(result="proposed", **given)).wasted_seconds == 0.0
