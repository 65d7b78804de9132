"""Between decisions and the wire: journal events, ledger lines, observations and answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from forerun.core import limits
from forerun.core.ledger import EntryKind, LedgerEntry, Totals
from forerun.core.outcomes import CallStatus, Mode
from forerun.core.session import (
    AskedCall,
    AssistantMessage,
    CallAnswer,
    CallCancelled,
    CallFinished,
    CallIntent,
    CallsAsked,
    ExecutionResult,
    Failure,
    JournalEvent,
    ModelStarted,
    SessionClosed,
    SessionOpened,
    TaskOutcome,
    UserTurn,
)
from forerun.runtime.clock import Clock
from forerun.runtime.errors import ForerunError
from forerun.runtime.ids import Ids
from forerun.v1 import common_pb2, event_pb2, ledger_pb2, prediction_pb2, session_pb2


@dataclass(frozen=True, slots=True)
class EventContext:
    """What every event of a session says."""

    tenant: str
    principal: str
    credential_scope: str
    agent: str
    session: str
    epoch: int
    clock: Clock
    ids: Ids


def mode_message(mode: Mode) -> common_pb2.Mode.ValueType:
    """A mode on the wire."""
    return common_pb2.Mode.Value(f"MODE_{mode.name}")


def status_message(status: CallStatus) -> common_pb2.CallStatus.ValueType:
    """A status on the wire."""
    return common_pb2.CallStatus.Value(f"CALL_STATUS_{status.name}")


def status_of(value: common_pb2.CallStatus.ValueType) -> CallStatus:
    """A status from the wire; one that is unknown is a failure of the way to the tool."""
    name = common_pb2.CallStatus.Name(value).removeprefix("CALL_STATUS_")
    return CallStatus[name] if name in CallStatus.__members__ else CallStatus.UNAVAILABLE


def failure_message(failure: Failure) -> common_pb2.Failure:
    """A failure on the wire."""
    message = common_pb2.Failure(reason=failure.reason, message=failure.message, metadata=dict(failure.metadata))
    if failure.retry_after_seconds is not None:
        message.retry_after_seconds = failure.retry_after_seconds
    return message


def failure_of(message: common_pb2.Failure) -> Failure:
    """A failure from the wire."""
    retry = message.retry_after_seconds if message.HasField("retry_after_seconds") else None
    return Failure(message.reason, message.message, dict(message.metadata), retry)


def failure_from(error: ForerunError) -> Failure:
    """A typed error as the failure of a call."""
    return Failure(error.reason, str(error), dict(error.metadata), error.retry_after_seconds)


def observation_message(result: ExecutionResult | None, *, content: bool = True) -> common_pb2.Observation:
    """An observation on the wire."""
    if result is None:
        return common_pb2.Observation()
    return common_pb2.Observation(
        content=result.content if content else b"",
        media_type=result.media_type,
        tool_error=result.tool_error,
        digest=result.digest,
        size_bytes=result.stored_bytes or len(result.content),
    )


def key_message(session: str, call: tuple[int, int]) -> common_pb2.CallKey:
    """A call's key on the wire."""
    return common_pb2.CallKey(session=session, turn=call[0], index=call[1])


def to_event(
    context: EventContext, number: int, event: JournalEvent, *, event_id: str, at_seconds: float
) -> event_pb2.SessionEvent:
    """The journal's message for an event."""
    message = event_pb2.SessionEvent(
        id=event_id,
        tenant=context.tenant,
        agent=context.agent,
        session=context.session,
        number=number,
        epoch=context.epoch,
        at_seconds=at_seconds,
    )
    match event:
        case SessionOpened():
            message.opened.CopyFrom(
                event_pb2.SessionOpened(
                    principal=context.principal,
                    credential_scope=context.credential_scope,
                    tools=event.tools,
                    mode=mode_message(event.mode),
                    held_out=event.held_out,
                    policy=event.policy,
                    label=event.label,
                    schemas=[event_pb2.ToolSchema(name=name, input_schema=text) for name, text in event.schemas],
                )
            )
        case UserTurn(text):
            message.user_turn.text = text
        case ModelStarted(turn):
            message.model_started.turn = turn
        case AssistantMessage(turn, text):
            message.assistant_message.CopyFrom(event_pb2.AssistantMessage(turn=turn, text=text))
        case CallsAsked(turn, calls):
            message.calls_asked.CopyFrom(event_pb2.CallsAsked(turn=turn, calls=_asked(calls)))
        case CallIntent(call, digest):
            message.intent.CopyFrom(event_pb2.CallIntent(call=key_message(context.session, call), identity=digest))
        case CallFinished(answer):
            message.call_finished.CopyFrom(_finished(context.session, answer))
        case CallCancelled(call):
            message.call_cancelled.call.CopyFrom(key_message(context.session, call))
        case TaskOutcome(reward, label):
            message.task_outcome.CopyFrom(event_pb2.TaskOutcome(reward=reward, label=label))
        case SessionClosed(reason):
            message.closed.reason = reason
    return message


def _asked(calls: Sequence[AskedCall]) -> list[event_pb2.AskedCall]:
    return [
        event_pb2.AskedCall(
            index=one.index,
            action=common_pb2.Action(tool=one.tool, arguments=one.arguments),
            provider_call_id=one.provider_call_id,
        )
        for one in calls
    ]


def _finished(session: str, answer: CallAnswer) -> event_pb2.CallFinished:
    return event_pb2.CallFinished(
        call=key_message(session, answer.call),
        status=status_message(answer.status),
        observation=observation_message(answer.result),
        failure=failure_message(answer.failure) if answer.failure is not None else None,
        served=common_pb2.Served.Value(f"SERVED_{answer.served.name}"),
        seconds=answer.result.seconds if answer.result is not None else 0.0,
        tool=answer.tool,
        may_continue=answer.may_continue,
    )


def call_result(session: str, answer: CallAnswer, *, content: bool) -> session_pb2.CallResult:
    """The client's message for an answer."""
    return session_pb2.CallResult(
        call=key_message(session, answer.call),
        status=status_message(answer.status),
        observation=observation_message(answer.result, content=content),
        failure=failure_message(answer.failure) if answer.failure is not None else None,
        served=common_pb2.Served.Value(f"SERVED_{answer.served.name}"),
        provider_call_id=answer.provider_call_id,
        execution_seconds=answer.result.seconds if answer.result is not None else 0.0,
        waited_seconds=answer.waited_seconds,
    )


def guess_entry(guess: prediction_pb2.SecondGuess) -> LedgerEntry:
    """The line of a second guess of the predictor's small model. What came of its candidate has lines of its own."""
    proposed = guess.result == "proposed"
    return LedgerEntry(
        kind=EntryKind.MODEL,
        tool="",
        site=guess.site[: limits.NAME_CHARS],
        status=CallStatus.UNAVAILABLE if guess.result == "failed" else CallStatus.OK,
        reason=f"second guess: {guess.result}, asked because {guess.asked_because}"[: limits.NAME_CHARS],
        seconds=guess.seconds,
        wasted_seconds=0.0 if proposed else guess.seconds,
        model=guess.model[: limits.NAME_CHARS],
        input_tokens=guess.input_tokens,
        output_tokens=guess.output_tokens,
        tokens_estimated=guess.tokens_estimated,
    )


def ledger_line(context: EventContext, policy: str, mode: Mode, entry: LedgerEntry) -> ledger_pb2.LedgerLine:
    """The ledger's message for an entry."""
    line = ledger_pb2.LedgerLine(
        id=context.ids.uuid7(),
        kind=ledger_pb2.LedgerKind.Value(f"LEDGER_KIND_{entry.kind.name}"),
        at_seconds=context.clock.now(),
        tenant=context.tenant,
        principal=context.principal,
        agent=context.agent,
        session=context.session,
        tool=entry.tool,
        site=entry.site,
        identity=entry.identity,
        policy=policy,
        mode=mode_message(mode),
        probability=entry.probability,
        evidence=entry.evidence,
        lower_bound=entry.lower_bound,
        expected_value=entry.expected_value,
        expected_cost=entry.expected_cost,
        reason=entry.reason,
        seconds=entry.seconds,
        saved_estimated_seconds=entry.saved_seconds,
        wasted_seconds=entry.wasted_seconds,
        cost_money=entry.cost_money,
        speculation=entry.speculation,
        digest=entry.digest,
        speculable=entry.speculable,
        audit=entry.audit,
        propensity=entry.propensity,
        explanation=entry.explanation,
        model=entry.model,
        provider=entry.provider,
        input_tokens=entry.input_tokens,
        output_tokens=entry.output_tokens,
        tokens_estimated=entry.tokens_estimated,
        answer=entry.answer,
    )
    if entry.outcome is not None:
        line.outcome = common_pb2.Outcome.Value(f"OUTCOME_{entry.outcome.name}")
    if entry.served is not None:
        line.served = common_pb2.Served.Value(f"SERVED_{entry.served.name}")
    if entry.status is not None:
        line.status = status_message(entry.status)
    if entry.call is not None:
        line.call.CopyFrom(key_message(context.session, entry.call))
    for mark, generation in entry.generations:
        line.generations.marks[mark] = generation
    return line


def totals_message(totals: Totals, *, sessions: int) -> session_pb2.Totals:
    """The client's message for totals."""
    return session_pb2.Totals(
        calls=totals.calls,
        launched=totals.launched,
        outcomes={outcome.value: count for outcome, count in totals.outcomes.items()},
        memo_hits=totals.memo_hits,
        speculable_calls=totals.speculable_calls,
        executions=totals.executions,
        wasted_seconds=totals.wasted_seconds,
        saved_estimated_seconds=totals.saved_seconds,
        unknown=totals.unknown,
        sessions=sessions,
        served={served.value: count for served, count in totals.served.items()},
        refused=dict(totals.refused),
        early_issued=totals.early_issued,
        early_used=totals.early_used,
        races=totals.races,
        races_won_by_second=totals.races_won_by_second,
    )
