"""A call that is demanded: from a request's body to the model port, and on to another provider."""

from __future__ import annotations

import json
from typing import Any

import pytest

from forerun.gateway.chat import read_body
from forerun.runtime.errors import InvalidArgument
from forerun.runtime.models.catalogue import Provider
from forerun.runtime.models.wire import request_body

TOOLS = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in ("f", "g")]
NAMED = {"type": "function", "function": {"name": "g"}}


def body(**more: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}], "tools": TOOLS} | more).encode()


@pytest.mark.parametrize(
    ("choice", "must_call", "only", "sent"),
    [
        (None, False, "", None),
        ("auto", False, "", None),
        ("none", False, "", None),
        ("required", True, "", "required"),
        (NAMED, True, "g", NAMED),
    ],
)
def test_what_is_demanded_reaches_the_provider(choice: Any, must_call: bool, only: str, sent: Any) -> None:
    request = read_body(body(tool_choice=choice)).request()
    assert (request.must_call, request.only_tool) == (must_call, only)
    assert bool(request.tools) is (choice != "none")
    written = json.loads(request_body(request, Provider(name="p", url="http://h", model="m")))
    assert written.get("tool_choice") == sent


@pytest.mark.parametrize("choice", ["required", NAMED])
def test_a_call_of_no_tool_cannot_be_demanded(choice: Any) -> None:
    with pytest.raises(InvalidArgument, match="there are no tools"):
        read_body(body(tool_choice=choice, tools=[])).request()


def test_what_is_no_choice_is_refused_by_name() -> None:
    with pytest.raises(InvalidArgument, match="tool_choice"):
        read_body(body(tool_choice="any"))
