"""What a new owner learns from a session's journal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from google.protobuf.message import DecodeError

from forerun.core.outcomes import Served
from forerun.core.session import CallAnswer, Closed, ExecutionResult
from forerun.orchestrator.records import failure_of, status_of
from forerun.orchestrator.session import Recorded
from forerun.runtime.bus import Message
from forerun.runtime.errors import Bug, ErrorReason
from forerun.v1 import common_pb2, event_pb2

_OF_CLIENTS = frozenset({"user_turn", "model_started", "assistant_message", "task_outcome"})


@dataclass(slots=True)
class History:
    """A session's past.

    Attributes:
        number: Number of the last event.
        sequence: Sequence of the last message in the stream.
        last_turn: Highest turn.
        opened: The first opening; None for an empty journal.
        ended: The session was closed.
        asked: Calls that were asked for.
        intents: Calls that may not be repeated and were about to start.
        closed: Calls that were answered.
        user_texts: What the user said.
        recorded: Numbers of the client's latest events, by id.
    """

    number: int = 0
    sequence: int = 0
    last_turn: int = 0
    opened: event_pb2.SessionOpened | None = None
    ended: bool = False
    asked: dict[tuple[int, int], event_pb2.AskedCall] = field(default_factory=dict)
    intents: set[tuple[int, int]] = field(default_factory=set)
    closed: dict[tuple[int, int], Closed] = field(default_factory=dict)
    user_texts: list[str] = field(default_factory=list)
    recorded: Recorded = field(default_factory=Recorded)

    def unknown(self) -> dict[tuple[int, int], event_pb2.AskedCall]:
        """Calls of which it cannot be known whether they took effect."""
        return {key: self.asked[key] for key in sorted(self.intents) if key not in self.closed and key in self.asked}

    def lingering(self) -> dict[tuple[int, int], event_pb2.AskedCall]:
        """Calls that were answered, and may still take effect."""
        return {key: self.asked[key] for key, one in sorted(self.closed.items()) if one.answer.may_continue}

    def under_way(self) -> dict[tuple[int, int], event_pb2.AskedCall]:
        """Calls without an answer and without an intent: what may be repeated of them may have been started."""
        done = self.closed.keys() | self.intents
        return {key: self.asked[key] for key in sorted(self.asked.keys() - done)}


def read_on(history: History, messages: Sequence[Message]) -> None:
    """Reads the next messages of a journal, in order. Large observations stay in the store until somebody asks.

    Raises:
        Bug: an entry cannot be read.
    """
    for message in messages:
        try:
            event = event_pb2.SessionEvent.FromString(message.data)
        except DecodeError as error:
            raise Bug(ErrorReason.INTERNAL, "an entry of the session's journal cannot be read") from error
        history.number = max(history.number, event.number)
        history.sequence = message.sequence or history.sequence
        _take(history, event)


def _take(history: History, event: event_pb2.SessionEvent) -> None:
    kind = event.WhichOneof("event")
    if kind in _OF_CLIENTS:
        history.recorded.add(event.id, event.number)
    match kind:
        case "opened":
            history.opened = history.opened or event.opened
        case "user_turn":
            history.user_texts.append(event.user_turn.text)
        case "calls_asked":
            turn = event.calls_asked.turn
            history.last_turn = max(history.last_turn, turn)
            for call in event.calls_asked.calls:
                history.asked[(turn, call.index)] = call
        case "intent":
            history.intents.add((event.intent.call.turn, event.intent.call.index))
        case "call_finished":
            _close(history, event.call_finished)
        case "closed":
            history.ended = True


def _close(history: History, finished: event_pb2.CallFinished) -> None:
    key = (finished.call.turn, finished.call.index)
    asked = history.asked.get(key)
    if asked is None:
        return
    observation = finished.observation
    result = ExecutionResult(
        status=status_of(finished.status),
        content=observation.content,
        stored_bytes=0 if observation.content else observation.size_bytes,
        media_type=observation.media_type,
        tool_error=observation.tool_error,
        digest=observation.digest,
        seconds=finished.seconds,
    )
    answer = CallAnswer(
        call=key,
        tool=asked.action.tool,
        status=status_of(finished.status),
        result=result if observation.digest else None,
        failure=failure_of(finished.failure) if finished.HasField("failure") else None,
        served=_served(finished.served),
        provider_call_id=asked.provider_call_id,
        may_continue=finished.may_continue or finished.status == common_pb2.CALL_STATUS_OUTCOME_UNKNOWN,
    )
    repeatable = key not in history.intents
    history.closed[key] = Closed(asked.action.tool, asked.action.arguments, answer, repeatable)


def _served(value: common_pb2.Served.ValueType) -> Served:
    name = common_pb2.Served.Name(value).removeprefix("SERVED_")
    return Served[name] if name in Served.__members__ else Served.UNSPECIFIED
