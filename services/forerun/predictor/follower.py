"""Follows journals: converts events, notices gaps, feeds the engine."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Protocol

from google.protobuf.message import DecodeError

from forerun.core.canonical import CanonicalError, parse_strict
from forerun.predictor.engine.engine import Engine
from forerun.predictor.engine.history import (
    Asked,
    AssistantText,
    CallFinished,
    CallsAsked,
    Event,
    ModelStarted,
    SessionClosed,
    SessionOpened,
    UserTurn,
)
from forerun.v1 import common_pb2, event_pb2


@dataclass(slots=True)
class _Track:
    """Where a session stands.

    Attributes:
        number: Number of the last event that was taken.
        model_started_at: When the model request that runs was started; None while none runs.
    """

    number: int = 0
    model_started_at: float | None = None


class Observer(Protocol):
    """An engine beside the first one."""

    def observe(self, tenant: str, agent: str, session: str, event: Event) -> None:
        """Takes in one event of a session, in order."""
        ...


class Follower:
    """Feeds the engine with the events of many sessions.

    Args:
        engine: Learns and predicts.
        tracked: Sessions whose position is remembered; the one that was silent for longest is forgotten first.
        also: Another engine that hears the same.
    """

    def __init__(self, engine: Engine, tracked: int, also: Observer | None = None) -> None:
        self._engine = engine
        self._also = also
        self._tracked = tracked
        self._tracks: OrderedDict[tuple[str, str], _Track] = OrderedDict()

    def missing(self, event: event_pb2.SessionEvent) -> bool:
        """Events of this session before this one were not heard."""
        track = self._tracks.get((event.tenant, event.session))
        return event.number > (track.number if track is not None else 0) + 1

    def take(self, event: event_pb2.SessionEvent) -> bool:
        """Takes an event; False where it was taken before."""
        key = (event.tenant, event.session)
        track = self._tracks.get(key)
        if track is None:
            track = self._tracks[key] = _Track()
            if len(self._tracks) > self._tracked:
                self._tracks.popitem(last=False)
        self._tracks.move_to_end(key)
        if event.number <= track.number:
            return False
        track.number = event.number
        converted = _convert(event, track)
        if converted is not None:
            self._engine.observe(event.tenant, event.agent, event.session, converted)
            if self._also is not None:
                self._also.observe(event.tenant, event.agent, event.session, converted)
        if isinstance(converted, SessionClosed):
            del self._tracks[key]
        return True


def parse(data: bytes) -> event_pb2.SessionEvent | None:
    """An event of the journal, or None where it is none."""
    try:
        return event_pb2.SessionEvent.FromString(data)
    except DecodeError:
        return None


def _convert(event: event_pb2.SessionEvent, track: _Track) -> Event | None:
    match event.WhichOneof("event"):
        case "opened":
            # A take-over is no new session: what is known of it stays.
            schemas = tuple((one.name, one.input_schema) for one in event.opened.schemas)
            return SessionOpened(tuple(event.opened.tools), schemas) if event.epoch <= 1 else None
        case "user_turn":
            return UserTurn(event.user_turn.text)
        case "model_started":
            track.model_started_at = event.at_seconds
            return ModelStarted()
        case "assistant_message":
            return AssistantText(event.assistant_message.text, _model_seconds(event, track))
        case "calls_asked":
            calls = _calls(event.calls_asked)
            return CallsAsked(event.calls_asked.turn, calls, _model_seconds(event, track)) if calls else None
        case "call_finished":
            return _finished(event.call_finished)
        case "closed":
            return SessionClosed()
    return None


def _model_seconds(event: event_pb2.SessionEvent, track: _Track) -> float | None:
    started_at, track.model_started_at = track.model_started_at, None
    return None if started_at is None else max(0.0, event.at_seconds - started_at)


def _calls(message: event_pb2.CallsAsked) -> tuple[Asked, ...]:
    """The calls whose arguments are exact JSON; others were refused and teach nothing."""
    calls: list[Asked] = []
    for call in message.calls:
        try:
            value = parse_strict(call.action.arguments if call.action.arguments.strip() else b"{}")
        except CanonicalError:
            continue
        calls.append(Asked(call.index, call.action.tool, value))
    return tuple(calls)


def _finished(message: event_pb2.CallFinished) -> CallFinished:
    executed = message.served in (common_pb2.SERVED_DIRECT, common_pb2.SERVED_READY, common_pb2.SERVED_JOINED)
    return CallFinished(
        turn=message.call.turn,
        index=message.call.index,
        ok=message.status == common_pb2.CALL_STATUS_OK and not message.observation.tool_error,
        observation=message.observation.content,
        seconds=message.seconds if executed else None,
    )
