"""The calls of an OpenAI-compatible message: `tool_calls`, whole or as the chunks of a stream."""

from __future__ import annotations

from dataclasses import dataclass, field

from forerun.core import limits
from forerun.core.canonical import JsonValue
from forerun.core.plan.intake.calls import Numbering, Schemas, listing, mapping, string
from forerun.core.plan.intake.port import ArrivalError, Guard
from forerun.core.plan.model import Task

_CUT = {"length": "the model's output limit was reached", "content_filter": "a content filter stopped the model"}


@dataclass(slots=True)
class _Open:
    """A call whose arguments still arrive."""

    index: int
    id: str = ""
    name: str = ""
    pieces: list[str] = field(default_factory=list)
    chars: int = 0


class OpenAiReader:
    """Reads one message.

    A call of a stream is complete when the next one begins or the message ends: some providers send several objects
    under one index, so that a complete object alone says nothing.
    """

    def __init__(self, schema_of: Schemas) -> None:
        """Begins.

        Args:
            schema_of: By which required arguments are checked.
        """
        self._guard = Guard()
        self._numbering = Numbering(schema_of)
        self._open: _Open | None = None
        self._complete = False

    @property
    def complete(self) -> bool:
        """The message said why it ended."""
        return self._complete

    def whole(self, message: JsonValue) -> list[Task]:
        """See `MessageReader`. Takes the message, or the response around it."""
        return self._guard.taking(lambda: self._whole(mapping(message, "the message")))

    def feed(self, event: JsonValue) -> list[Task]:
        """See `MessageReader`. Takes one `chat.completion.chunk`."""
        return self._guard.taking(lambda: self._chunk(mapping(event, "a chunk")))

    def finish(self) -> None:
        """See `MessageReader`."""
        self._guard.taking(self._ended)

    def _ended(self) -> list[Task]:
        if not self._complete:
            raise ArrivalError("truncated", "the stream ended before the message did")
        return []

    def _whole(self, message: dict[str, JsonValue]) -> list[Task]:
        choice = _choice(message)
        if choice is not None:
            _refuse_cut(string(choice.get("finish_reason"), "finish_reason"))
            message = mapping(choice.get("message"), "the message")
        found: list[Task] = []
        for one in listing(message.get("tool_calls"), "tool_calls"):
            call = mapping(one, "a tool call")
            function = _function(call)
            name = string(function.get("name"), "the name of a tool call")
            if not name:
                raise ArrivalError("syntax", "a tool call without a name")
            text = string(function.get("arguments"), "the arguments of a tool call")
            found += self._numbering.of_text(string(call.get("id"), "the id of a tool call"), name, text)
        self._complete = True
        return found

    def _chunk(self, chunk: dict[str, JsonValue]) -> list[Task]:
        if chunk.get("error") is not None:
            raise ArrivalError("truncated", "the provider broke off with an error")
        choice = _choice(chunk)
        if choice is None:
            return []  # usage, after the end
        delta = mapping(choice.get("delta") or {}, "delta")
        calls = listing(delta.get("tool_calls"), "tool_calls")
        if self._complete and calls:
            raise ArrivalError("changed", "a call arrived after the end of the message")
        if delta.get("function_call") is not None:
            raise ArrivalError("unsupported", "function_call is the old form of tool_calls")
        found: list[Task] = []
        for one in calls:
            found += self._piece(mapping(one, "a piece of a tool call"))
        reason = string(choice.get("finish_reason"), "finish_reason")
        if reason:
            _refuse_cut(reason)
            found += self._closed()
            self._complete = True
        return found

    def _piece(self, piece: dict[str, JsonValue]) -> list[Task]:
        index = piece.get("index")
        if isinstance(index, bool) or not isinstance(index, int):
            raise ArrivalError("syntax", "a piece of a tool call has no index")
        found: list[Task] = []
        if self._open is None or index > self._open.index:
            if self._open is not None:
                found = self._closed()
            self._open = _Open(index)
        elif index < self._open.index:
            raise ArrivalError("changed", f"call {index} went on after call {self._open.index} had begun")
        call, function = self._open, _function(piece)
        call.id = _same(call.id, string(piece.get("id"), "the id of a tool call"), f"the id of call {index}")
        call.name = _same(
            call.name, string(function.get("name"), "the name of a tool call"), f"the name of call {index}"
        )
        text = string(function.get("arguments"), "the arguments of a tool call")
        self._guard.arrive(len(text))
        call.pieces.append(text)
        call.chars += len(text)
        if call.chars > limits.ARGUMENTS_BYTES:
            raise ArrivalError("too_large", f"arguments above ARGUMENTS_BYTES ({limits.ARGUMENTS_BYTES})")
        return found

    def _closed(self) -> list[Task]:
        call, self._open = self._open, None
        if call is None:
            return []
        if not call.name:
            raise ArrivalError("syntax", f"call {call.index} has no name")
        return self._numbering.of_text(call.id, call.name, "".join(call.pieces))


def _choice(response: dict[str, JsonValue]) -> dict[str, JsonValue] | None:
    """The one choice of a response; None where it has none."""
    choices = listing(response.get("choices"), "choices")
    if len(choices) > 1 or (choices and mapping(choices[0], "a choice").get("index", 0) != 0):
        raise ArrivalError("unsupported", "a message with several choices is no plan; ask for one (n=1)")
    return mapping(choices[0], "a choice") if choices else None


def _function(call: dict[str, JsonValue]) -> dict[str, JsonValue]:
    if call.get("type", "function") not in {"function", None}:
        raise ArrivalError("unsupported", f"tool calls of type {call.get('type')!r} are not known")
    return mapping(call.get("function") or {}, "function")


def _same(known: str, said: str, what: str) -> str:
    if known and said and said != known:
        raise ArrivalError("changed", f"{what} changed from {known[:40]!r} to {said[:40]!r}")
    return known or said


def _refuse_cut(reason: str) -> None:
    if reason in _CUT:
        raise ArrivalError("truncated", f"the message is cut off: {_CUT[reason]}")
