"""What clients send within a session: checked before anything is decided."""

from __future__ import annotations

from forerun.core import limits
from forerun.core.session import Effect, SessionMachine
from forerun.orchestrator.session import Session
from forerun.runtime.errors import ErrorReason, InvalidArgument, ResourceExhausted
from forerun.v1 import session_pb2


def take_event(machine: SessionMachine, event: session_pb2.ClientEvent, now: float, event_id: str) -> list[Effect]:
    """What a session makes of a client's event.

    Raises:
        InvalidArgument: it says nothing.
    """
    match event.WhichOneof("event"):
        case "user_turn":
            return machine.user_turn(event.user_turn.text, now, event_id=event_id)
        case "model_started":
            return machine.model_started(event.model_started.turn, now, event_id=event_id)
        case "assistant_message":
            said = event.assistant_message
            return machine.assistant_message(said.turn, said.text, now, event_id=event_id)
        case "task_outcome":
            outcome = event.task_outcome
            return machine.task_outcome(outcome.reward, outcome.label, now, event_id=event_id)
    raise InvalidArgument(ErrorReason.ARGUMENT_INVALID, "the event says nothing")


def check_batch(batch: session_pb2.CallBatch) -> None:
    """Refuses a message whose calls are not well formed.

    Raises:
        InvalidArgument: see the message.
    """
    if not batch.turn or not batch.calls:
        raise InvalidArgument(ErrorReason.ARGUMENT_INVALID, "a batch needs a `turn` from 1 on and at least one call")
    if len(batch.calls) > limits.CALLS_PER_MESSAGE:
        raise InvalidArgument(
            ErrorReason.ARGUMENT_INVALID,
            f"{len(batch.calls)} calls in one message; at most {limits.CALLS_PER_MESSAGE} (CALLS_PER_MESSAGE)",
            metadata={"limit": "CALLS_PER_MESSAGE"},
        )
    if len({call.index for call in batch.calls}) != len(batch.calls):
        raise InvalidArgument(
            ErrorReason.PROTOCOL_VIOLATION, "two calls of the message have the same index; number them from 0 on"
        )
    if batch.HasField("timeout_seconds") and not 0 < batch.timeout_seconds <= limits.DEADLINE_MAX_SECONDS:
        raise InvalidArgument(
            ErrorReason.ARGUMENT_INVALID,
            f"timeout_seconds must be above 0 and at most {limits.DEADLINE_MAX_SECONDS:g} (DEADLINE_MAX_SECONDS)",
        )


def check_journal(session: Session) -> None:
    """Refuses what would make a journal longer than a take-over may read. Calls that are open are still written down.

    Raises:
        ResourceExhausted: it is full.
    """
    if session.machine.number >= limits.JOURNAL_EVENTS_PER_SESSION:
        raise ResourceExhausted(
            ErrorReason.BUDGET_EXHAUSTED,
            f"the session's journal has {session.machine.number} events, the most it takes is "
            f"{limits.JOURNAL_EVENTS_PER_SESSION} (JOURNAL_EVENTS_PER_SESSION, no setting); open a new session",
            metadata={"limit": "JOURNAL_EVENTS_PER_SESSION"},
        )
