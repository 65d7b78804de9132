"""From the calls of a provider's message to tasks. What a model wrote is literal: nothing in it is a reference."""

from __future__ import annotations

from collections.abc import Callable

from forerun.core import limits
from forerun.core.canonical import CanonicalError, JsonValue, canonical, parse_prefix, skip_whitespace
from forerun.core.intake import split_arguments
from forerun.core.plan.intake.port import ArrivalError
from forerun.core.plan.model import Task
from forerun.core.schema import ToolSchema

Schemas = Callable[[str], ToolSchema | None]
"""The input schema of a tool, or None where it has none or nobody knows it."""


class Numbering:
    """Makes the tasks of one message, numbered from 1 in call order."""

    def __init__(self, schema_of: Schemas) -> None:
        self._schema_of = schema_of
        self._count = 0

    def of_text(self, provider_call_id: str, tool: str, text: str) -> list[Task]:
        """The calls of one argument text: one, or as many as there are complete objects in it.

        Raises:
            IntakeError: It is no object and no sequence of objects.
        """
        pieces = split_arguments(text, self._schema_of(tool))
        if len(pieces) == 1:
            return [self._task(provider_call_id, tool, pieces[0], _as_sent(text))]
        return [self._task(provider_call_id, tool, piece, None) for piece in pieces]

    def of_value(self, provider_call_id: str, tool: str, value: JsonValue) -> Task:
        """The call with these arguments.

        Raises:
            IntakeError: They are no object, or lack a required field.
        """
        try:
            text = canonical(value).decode("utf-8")
        except CanonicalError as error:
            raise ArrivalError(error.reason, f"the arguments of {tool}: {error}") from error
        return self.of_text(provider_call_id, tool, text)[0]

    def _task(self, provider_call_id: str, tool: str, value: JsonValue, text: bytes | None) -> Task:
        self._count += 1
        if self._count > limits.CALLS_PER_MESSAGE:
            raise ArrivalError("too_many_calls", f"more calls than CALLS_PER_MESSAGE ({limits.CALLS_PER_MESSAGE})")
        assert isinstance(value, dict)  # split_arguments gives nothing else
        return Task(
            id=str(self._count),
            tool=tool,
            arguments=value,
            literal=True,
            text=text,
            provider_call_id=provider_call_id,
        )


def _as_sent(text: str) -> bytes | None:
    """The bytes of a text that is one object; None for blank text and a placeholder before the object."""
    if not text.strip():
        return None
    _, end = parse_prefix(text)
    return text.encode("utf-8") if skip_whitespace(text, end) == len(text) else None


def mapping(value: JsonValue, what: str) -> dict[str, JsonValue]:
    """An object of a message.

    Raises:
        ArrivalError: It is none.
    """
    if not isinstance(value, dict):
        raise ArrivalError("syntax", f"{what} must be an object")
    return value


def listing(value: JsonValue, what: str) -> list[JsonValue]:
    """A list of a message; null counts as empty.

    Raises:
        ArrivalError: It is none.
    """
    if value is None:
        return []
    if not isinstance(value, list):
        raise ArrivalError("syntax", f"{what} must be a list")
    return value


def string(value: JsonValue, what: str) -> str:
    """A text of a message; null counts as empty.

    Raises:
        ArrivalError: It is none.
    """
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ArrivalError("syntax", f"{what} must be a string")
    return value
