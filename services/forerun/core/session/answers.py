"""What becomes of a call: the answer that its agent gets, and the line of the ledger."""

from typing import Protocol

from forerun.core.ledger import EntryKind, LedgerEntry
from forerun.core.outcomes import CallStatus, Served
from forerun.core.session.call import Call
from forerun.core.session.model import CallAnswer, ExecutionResult, Failure, PreparedCall


class Close(Protocol):
    """Ends a call with its answer; `journal` says that the journal does not have the answer yet."""

    def __call__(self, call: Call, answer: CallAnswer, *, journal: bool) -> None:
        """Ends the call."""
        ...


def call_answer(
    call: Call, now: float, status: CallStatus, result: ExecutionResult | None, failure: Failure | None, served: Served
) -> CallAnswer:
    """The answer of a call that ends now."""
    return CallAnswer(
        call=call.id,
        tool=call.asked.tool,
        status=status,
        result=result,
        failure=failure,
        served=served,
        provider_call_id=call.asked.provider_call_id,
        waited_seconds=now - call.asked_at,
        may_continue=call.may_continue,
    )


def call_entry(call: Call, answer: CallAnswer) -> LedgerEntry:
    """The ledger line of an answered call."""
    prepared = call.asked.prepared if isinstance(call.asked.prepared, PreparedCall) else None
    return LedgerEntry(
        kind=EntryKind.CALL,
        tool=call.asked.tool,
        identity=prepared.digest if prepared else "",
        served=answer.served,
        status=answer.status,
        reason=answer.failure.reason if answer.failure else "",
        seconds=answer.result.seconds if answer.result else 0.0,
        cost_money=prepared.contract.cost_money * call.executions if prepared else 0.0,
        call=call.id,
        digest=answer.result.digest if answer.result else "",
        speculable=prepared is not None and prepared.speculable,
        executions=call.executions,
    )
