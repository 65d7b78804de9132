"""Recorded sessions as the journal would have held them, for `PredictionService.Train`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from forerun.cli.replay.traces import RecordedCall, Session
from forerun.runtime.ids import Ids
from forerun.v1 import common_pb2, event_pb2, prediction_pb2


def train_requests(
    sessions: Sequence[Session], *, tenant: str, tools: Sequence[str], ids: Ids, ended_at: float
) -> Iterator[prediction_pb2.TrainRequest]:
    """The events of all sessions, in order.

    Args:
        sessions: With the contents that an agent observes (see `positions.sequential_session`).
        tenant: Whose predictor learns.
        tools: Tools that the agent declared.
        ids: Makes the ids of sessions and events.
        ended_at: Epoch seconds at which the last session ends; the others lie before it.
    """
    starts: list[float] = []
    at = ended_at
    for session in reversed(sessions):
        at -= seconds_of(session)
        starts.append(at)
    for session, start in zip(sessions, reversed(starts), strict=True):
        for event in _Journal(session, tenant, ids, start).events(tools):
            yield prediction_pb2.TrainRequest(event=event.SerializeToString())


def seconds_of(session: Session) -> float:
    """Seconds of a session whose calls run one after another."""
    return sum(step.model_seconds + sum(call.seconds for call in step.calls) for step in session.steps)


class _Journal:
    def __init__(self, session: Session, tenant: str, ids: Ids, start: float) -> None:
        self._session = session
        self._tenant = tenant
        self._ids = ids
        self._id = ids.uuid7()
        self._at = start
        self._number = 0

    def _event(self) -> event_pb2.SessionEvent:
        self._number += 1
        return event_pb2.SessionEvent(
            id=self._ids.uuid7(),
            tenant=self._tenant,
            agent=self._session.file,
            session=self._id,
            number=self._number,
            epoch=1,
            at_seconds=self._at,
        )

    def events(self, tools: Sequence[str]) -> Iterator[event_pb2.SessionEvent]:
        opened = self._event()
        opened.opened.tools.extend(tools)
        opened.opened.mode = common_pb2.MODE_EXACT
        yield opened
        for step in self._session.steps:
            for text in step.user_turns:
                event = self._event()
                event.user_turn.text = text
                yield event
            event = self._event()
            event.model_started.turn = step.turn
            yield event
            self._at += step.model_seconds
            if step.text or not step.calls:
                event = self._event()
                event.assistant_message.turn, event.assistant_message.text = step.turn, step.text
                yield event
            if step.calls:
                asked = self._event()
                asked.calls_asked.turn = step.turn
                for index, call in enumerate(step.calls):
                    action = common_pb2.Action(tool=call.tool, arguments=call.arguments)
                    asked.calls_asked.calls.add(index=index, action=action, provider_call_id=call.provider_call_id)
                yield asked
            for index, call in enumerate(step.calls):
                self._at += call.seconds
                yield self._finished(step.turn, index, call)
        closed = self._event()
        closed.closed.reason = "recorded"
        yield closed

    def _finished(self, turn: int, index: int, call: RecordedCall) -> event_pb2.SessionEvent:
        event = self._event()
        finished = event.call_finished
        finished.call.session, finished.call.turn, finished.call.index = self._id, turn, index
        finished.status = common_pb2.CALL_STATUS_OK
        finished.observation.content = call.content.encode()
        finished.observation.media_type = "application/json"
        finished.observation.tool_error = call.error
        finished.served = common_pb2.SERVED_DIRECT
        finished.seconds = call.seconds
        finished.tool = call.tool
        return event
