"""The failures that the machine itself gives to calls, and how it reads those of executions."""

from forerun.core.outcomes import CallStatus, Served
from forerun.core.session.model import AskedCall, CallAnswer, CallId, ExecutionResult, Failure


def scoped(private: tuple[str, ...], shared: tuple[str, ...]) -> tuple[str, ...]:
    """Keys for the order of one message. Scopes do not matter there: in doubt, two calls are in conflict."""
    return tuple(dict.fromkeys(private + shared))


def refused(key: CallId, asked: AskedCall, failure: Failure) -> CallAnswer:
    """The answer of a call that is refused before anything runs."""
    return CallAnswer(
        call=key,
        tool=asked.tool,
        status=CallStatus.REJECTED,
        result=None,
        failure=failure,
        served=Served.UNSPECIFIED,
        provider_call_id=asked.provider_call_id,
    )


def asked_wait(result: ExecutionResult) -> float:
    """Seconds that the provider asked to wait; a try before that would only annoy it."""
    return (result.failure.retry_after_seconds or 0.0) if result.failure is not None else 0.0


OURS = frozenset({"PEER_UNAVAILABLE", "CALL_INTERRUPTED", "SHUTTING_DOWN", "NO_FREE_SLOT", "QUEUE_FULL"})
"""Reasons of failures that are the platform's own and pass by themselves."""

CONFLICT = Failure(
    "CALL_KEY_CONFLICT",
    "this (turn, index) was sent before with another tool or other arguments; nothing was executed. "
    "Use a new turn for a new message",
)
NO_JOURNAL = Failure(
    "BROKER_UNAVAILABLE",
    "the intent of a call that may not be repeated could not be stored, so it was not started; ask again",
    retry_after_seconds=1.0,
)
NOT_STORED = Failure(
    "BROKER_UNAVAILABLE",
    "the answers that the call could change could not be stored before it, so it was not started; ask again",
    retry_after_seconds=1.0,
)
NO_GENERATIONS = Failure(
    "BROKER_UNAVAILABLE",
    "the write could not be announced to other sessions, so it was not started; ask again",
    retry_after_seconds=1.0,
)
UNCERTAIN_MERGE = Failure(
    "OUTCOME_UNKNOWN",
    "the worker was lost while the call's changes were merged; look at the workspace before asking again",
)
TIMED_OUT = Failure("TOOL_TIMEOUT", "the call's deadline passed; the tool was told to stop")
CANCELLED = Failure("CALL_CANCELLED", "the caller took the call back; the tool was told to stop")
STOPPED = frozenset({TIMED_OUT.reason, CANCELLED.reason})
"""Reasons of calls whose tool was told to stop."""

INTERRUPTED = Failure(
    "OUTCOME_UNKNOWN",
    "the call was started, its owner was lost, and it may not be repeated; look at the tool before asking again",
)


def provider_failed(result: ExecutionResult) -> bool | None:
    """Whether the end of an execution speaks against the tool's provider; None where it says nothing of it.

    A rate limit is an answer, with a time to come back at. What the platform itself could not do is no one's failure.
    """
    reason = result.failure.reason if result.failure is not None else ""
    if result.status is CallStatus.OK:
        return False
    if result.status not in (CallStatus.UNAVAILABLE, CallStatus.TIMEOUT) or reason in OURS or reason == "RATE_LIMITED":
        return None
    return True
