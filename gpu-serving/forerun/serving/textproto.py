"""Protobuf text format, as far as Triton's model configurations need it: the server judges what is written."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Word:
    """The name of an enum's value, which is written without quotes."""

    name: str


Scalar = str | int | float | bool | Word
Message = Mapping[str, "Scalar | Message | Sequence[Scalar] | Sequence[Message]"]


def text_of(message: Message, indent: int = 0) -> str:
    """A message in text format. A sequence is a repeated field."""
    lines = []
    for name, value in message.items():
        several = isinstance(value, Sequence) and not isinstance(value, str)
        for one in value if several else [value]:  # type: ignore[union-attr]  # a sequence exactly when `several`
            lines.append(_field(name, one, indent))
    return "".join(lines)


def _field(name: str, value: object, indent: int) -> str:
    space = "  " * indent
    if isinstance(value, Mapping):
        return f"{space}{name} {{\n{text_of(value, indent + 1)}{space}}}\n"
    return f"{space}{name}: {_scalar(value)}\n"


def _scalar(value: object) -> str:
    if isinstance(value, Word):
        return value.name
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # JSON's escapes of ASCII are those of the text format, but for \u, which only non-ASCII would need.
        return json.dumps(value, ensure_ascii=False)
    return repr(value)
