"""The calls of an Anthropic message: `tool_use` blocks, whole or as the events of a stream."""

from __future__ import annotations

from dataclasses import dataclass, field

from forerun.core import limits
from forerun.core.canonical import JsonValue
from forerun.core.plan.intake.calls import Numbering, Schemas, listing, mapping, string
from forerun.core.plan.intake.port import ArrivalError, Guard
from forerun.core.plan.model import Task

_CUT = {
    "max_tokens": "the model's output limit was reached",
    "model_context_window_exceeded": "the model's context was full",
    "refusal": "the model broke off",
}


@dataclass(slots=True)
class _Block:
    """A block that still arrives; without a name it is no call."""

    index: int
    id: str = ""
    name: str = ""
    given: JsonValue = None
    pieces: list[str] = field(default_factory=list)
    chars: int = 0


class AnthropicReader:
    """Reads one message. A call of a stream is complete with its `content_block_stop`."""

    def __init__(self, schema_of: Schemas) -> None:
        """Begins.

        Args:
            schema_of: By which required arguments are checked.
        """
        self._guard = Guard()
        self._numbering = Numbering(schema_of)
        self._block: _Block | None = None
        self._next = 0
        self._complete = False

    @property
    def complete(self) -> bool:
        """`message_stop` has arrived, or the message was whole."""
        return self._complete

    def whole(self, message: JsonValue) -> list[Task]:
        """See `MessageReader`. Takes the message object."""
        return self._guard.taking(lambda: self._whole(mapping(message, "the message")))

    def feed(self, event: JsonValue) -> list[Task]:
        """See `MessageReader`. Takes the data of one event."""
        return self._guard.taking(lambda: self._event(mapping(event, "an event")))

    def finish(self) -> None:
        """See `MessageReader`."""
        self._guard.taking(self._ended)

    def _ended(self) -> list[Task]:
        if not self._complete:
            raise ArrivalError("truncated", "the stream ended before message_stop")
        return []

    def _whole(self, message: dict[str, JsonValue]) -> list[Task]:
        _refuse_cut(string(message.get("stop_reason"), "stop_reason"))
        content = message.get("content")
        found: list[Task] = []
        for one in [] if isinstance(content, str) else listing(content, "content"):
            block = mapping(one, "a content block")
            if block.get("type") == "tool_use":
                name, given = _named(block), block.get("input")
                found.append(self._numbering.of_value(string(block.get("id"), "the id"), name, given))
        self._complete = True
        return found

    def _event(self, event: dict[str, JsonValue]) -> list[Task]:
        kind = string(event.get("type"), "the type of an event")
        if kind == "error":
            raise ArrivalError("truncated", "the provider broke off with an error")
        if self._complete:
            raise ArrivalError("changed", f"{kind[:40]} arrived after message_stop")
        if kind == "content_block_start":
            self._begin(event)
        elif kind == "content_block_delta":
            self._delta(event)
        elif kind == "content_block_stop":
            return self._stop(event)
        elif kind == "message_delta":
            delta = mapping(event.get("delta") or {}, "delta")
            _refuse_cut(string(delta.get("stop_reason"), "stop_reason"))
        elif kind == "message_stop":
            if self._block is not None:
                raise ArrivalError("truncated", f"block {self._block.index} never ended")
            self._complete = True
        return []  # anything else says nothing of calls; providers add types of events

    def _begin(self, event: dict[str, JsonValue]) -> None:
        if self._block is not None:
            raise ArrivalError("changed", f"a block began before block {self._block.index} had ended")
        index = event.get("index")
        if index != self._next or isinstance(index, bool) or not isinstance(index, int):
            raise ArrivalError("changed", f"block {self._next} must come next, not {index!r}")
        self._next += 1
        block = mapping(event.get("content_block"), "content_block")
        self._block = _Block(index)
        if block.get("type") == "tool_use":
            self._block.name = _named(block)
            self._block.id = string(block.get("id"), "the id of a tool call")
            self._block.given = block.get("input")

    def _delta(self, event: dict[str, JsonValue]) -> None:
        block = self._current(event)
        delta = mapping(event.get("delta"), "delta")
        if delta.get("type") != "input_json_delta" or not block.name:
            return  # text, thoughts, citations, and the arguments of tools that run at the provider
        text = string(delta.get("partial_json"), "partial_json")
        self._guard.arrive(len(text))
        block.pieces.append(text)
        block.chars += len(text)
        if block.chars > limits.ARGUMENTS_BYTES:
            raise ArrivalError("too_large", f"arguments above ARGUMENTS_BYTES ({limits.ARGUMENTS_BYTES})")

    def _stop(self, event: dict[str, JsonValue]) -> list[Task]:
        block = self._current(event)
        self._block = None
        if not block.name:
            return []
        text = "".join(block.pieces)
        if block.given:
            if text.strip():
                raise ArrivalError("changed", f"block {block.index} has its arguments twice")
            return [self._numbering.of_value(block.id, block.name, block.given)]
        return self._numbering.of_text(block.id, block.name, text)

    def _current(self, event: dict[str, JsonValue]) -> _Block:
        if self._block is None or event.get("index") != self._block.index:
            raise ArrivalError("changed", f"an event for block {event.get('index')!r}, which is not open")
        return self._block


def _named(block: dict[str, JsonValue]) -> str:
    name = string(block.get("name"), "the name of a tool call")
    if not name:
        raise ArrivalError("syntax", "a tool call without a name")
    return name


def _refuse_cut(reason: str) -> None:
    if reason in _CUT:
        raise ArrivalError("truncated", f"the message is cut off: {_CUT[reason]}")
