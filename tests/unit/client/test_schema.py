"""Schemas of functions."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, Optional

import pytest

from forerun.client import InvalidRequest
from forerun.client._tools import schema_of, tool_of


def everything(
    text: str,
    count: int,
    share: float,
    flag: bool,
    kind: Literal["a", "b"],
    items: list[int],
    table: dict[str, float],
    anything: Any,
    maybe: Optional[str] = None,  # noqa: UP045
    either: int | str = 3,
    described: Annotated[str, "what it is"] = "x",
    rows: Sequence[Mapping[str, Any]] = (),
    **more: object,
) -> None:
    """A function with every kind of parameter."""


def test_a_schema_follows_from_annotations() -> None:
    schema = schema_of(everything, "everything")
    assert schema["required"] == ["text", "count", "share", "flag", "kind", "items", "table", "anything"]
    assert schema["additionalProperties"] is True
    assert schema["properties"] == {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "share": {"type": "number"},
        "flag": {"type": "boolean"},
        "kind": {"enum": ["a", "b"]},
        "items": {"type": "array", "items": {"type": "integer"}},
        "table": {"type": "object", "additionalProperties": {"type": "number"}},
        "anything": {},
        "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
        "either": {"anyOf": [{"type": "integer"}, {"type": "string"}], "default": 3},
        "described": {"type": "string", "description": "what it is", "default": "x"},
        "rows": {"type": "array", "items": {"type": "object", "additionalProperties": {}}, "default": ()},
    }
    assert json.loads(tool_of(everything, name=None, schema=None).schema)["properties"]["rows"]["default"] == []


def dated(when: datetime.date) -> None: ...


def positional(first: int, /) -> None: ...


def variable(*numbers: int) -> None: ...


def undefined(value: "NotThere") -> None: ...  # type: ignore[name-defined]  # noqa: F821, UP037


@pytest.mark.parametrize("function", [dated, positional, variable, undefined])
def test_what_has_no_obvious_schema_asks_for_one(function: Callable[..., None]) -> None:
    with pytest.raises(InvalidRequest, match="give schema="):
        tool_of(function, name=None, schema=None)
    assert tool_of(function, name="other", schema={"type": "object"}).name == "other"
