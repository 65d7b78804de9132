"""What a user asks and gets: calls, results, totals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from forerun.client._errors import (
    CallCancelled,
    CallError,
    CallRejected,
    CallTimeout,
    CallUnavailable,
    OutcomeUnknown,
)
from forerun.client._json import Arguments, decode
from forerun.v1 import common_pb2, policy_pb2, session_pb2


class Status(StrEnum):
    """How a call ended. Exactly one for each call."""

    OK = "ok"
    """The tool answered. A failure that the tool itself reports is an answer too, see `Result.tool_error`."""
    REJECTED = "rejected"
    """Refused before anything ran."""
    TIMEOUT = "timeout"
    """The tool did not answer in time and was told to stop."""
    CANCELLED = "cancelled"
    """Taken back; the tool was told to stop."""
    UNAVAILABLE = "unavailable"
    """The way to the tool failed and nothing took effect."""
    OUTCOME_UNKNOWN = "outcome_unknown"
    """It may have taken effect and it cannot be known."""


class Served(StrEnum):
    """How a call was answered."""

    UNSPECIFIED = "unspecified"
    """By nothing: it was refused or stopped before."""
    DIRECT = "direct"
    """Executed now."""
    READY = "ready"
    """From a finished speculation."""
    JOINED = "joined"
    """From a speculation that was running."""
    MEMO = "memo"
    """From a finished read of the same session."""
    SHARED = "shared"
    """Shares the execution of an identical call."""
    FALLBACK = "fallback"
    """Run around the platform, which could not be reached; see `AsyncClient(direct=...)`."""
    EARLY = "early"
    """Executed while the model's message still streamed."""


class Mode(StrEnum):
    """What runs ahead and what is answered from it."""

    OFF = "off"
    """Ordinary ordered execution."""
    SHADOW = "shadow"
    """Decides and scores itself, executes nothing ahead."""
    EXACT = "exact"
    """Runs ahead; results are used only when provably the same."""


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One tool call. Compared by identity: two calls with the same content are still two calls.

    Attributes:
        name: Name of the tool.
        arguments: A mapping, or JSON text exactly as the model's provider gave it.
        provider_call_id: The provider's id of the call; echoed in the result, never used as identity.
    """

    name: str
    arguments: Arguments = field(default_factory=dict)
    provider_call_id: str = ""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a call has no answer.

    Attributes:
        reason: Stable, upper-case name, see docs/reference/errors.md.
        message: What is wrong and what to do about it.
        metadata: Named details.
        retry_after_seconds: When asking again makes sense; None where it does not help or is not known.
    """

    reason: str
    message: str
    metadata: Mapping[str, str] = field(default_factory=dict)
    retry_after_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The end of one call.

    Attributes:
        call: What was asked.
        turn: Number of the message that asked for it.
        index: Position in that message.
        status: How it ended.
        content: The tool's answer, byte for byte.
        media_type: Media type of `content`.
        tool_error: The tool itself reports a failure. Still an answer: `ok` is True.
        failure: Set where `ok` is False.
        served: How it was answered.
        execution_seconds: Of the execution behind it.
        waited_seconds: From ask to answer inside the platform.
    """

    call: Call
    turn: int
    index: int
    status: Status
    content: bytes = b""
    media_type: str = ""
    tool_error: bool = False
    failure: Failure | None = None
    served: Served = Served.UNSPECIFIED
    execution_seconds: float = 0.0
    waited_seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """The tool answered."""
        return self.status is Status.OK

    @property
    def text(self) -> str:
        """The content as UTF-8 text.

        Raises:
            UnicodeDecodeError: it is none.
        """
        return self.content.decode("utf-8")

    def json(self) -> Any:
        """The content as a value; integers are exact.

        Raises:
            ResultNotJson: the content is not strict JSON.
        """
        return decode(self.content)

    def raise_for_status(self) -> Result:
        """Itself, where the tool answered.

        Raises:
            CallError: the subclass of its status.
        """
        if self.status is not Status.OK:
            raise _ERROR_OF_STATUS[self.status](self)
        return self


_ERROR_OF_STATUS: Final[Mapping[Status, type[CallError]]] = {
    Status.REJECTED: CallRejected,
    Status.TIMEOUT: CallTimeout,
    Status.CANCELLED: CallCancelled,
    Status.UNAVAILABLE: CallUnavailable,
    Status.OUTCOME_UNKNOWN: OutcomeUnknown,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Counts of a session, or of the platform since it started. Numerators and denominators, never ratios.

    Attributes:
        calls: Authoritative calls.
        launched: Speculations launched.
        outcomes: Speculations by outcome.
        memo_hits: Calls answered from the memo.
        early_issued, early_used: Reads issued while a message streamed, and those that its calls were answered from.
        races, races_won_by_second: Calls with a second attempt at another provider, and those that it answered.
        speculable_calls: Calls that the policy would have allowed to run ahead.
        executions: Tool executions of every kind.
        wasted_seconds: Execution that was not committed.
        saved_estimated_seconds: Saved, by estimate.
        unknown: Calls that ended as outcome_unknown.
        sessions: Open sessions.
        served: Calls by the way they were answered.
        refused: Candidates that were not launched, by reason.
    """

    calls: int = 0
    launched: int = 0
    outcomes: Mapping[str, int] = field(default_factory=dict)
    memo_hits: int = 0
    early_issued: int = 0
    early_used: int = 0
    races: int = 0
    races_won_by_second: int = 0
    speculable_calls: int = 0
    executions: int = 0
    wasted_seconds: float = 0.0
    saved_estimated_seconds: float = 0.0
    unknown: int = 0
    sessions: int = 0
    served: Mapping[str, int] = field(default_factory=dict)
    refused: Mapping[str, int] = field(default_factory=dict)

    @property
    def hits(self) -> int:
        """Speculations that answered a call."""
        return self.outcomes.get("ready", 0) + self.outcomes.get("joined", 0)


@dataclass(frozen=True, slots=True)
class ErasedServer:
    """What a model server has erased of a tenant.

    Attributes:
        name: Of the server.
        erased: It is done. False: it has not said so in time, and goes on with it.
        histories: That went from its memory.
        tokens: In them.
        files: That went from its disk.
    """

    name: str
    erased: bool
    histories: int = 0
    tokens: int = 0
    files: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolInfo:
    """A tool that a session can call.

    Attributes:
        name: Its name.
        version: Its version.
        input_schema: JSON Schema of its arguments, as JSON text.
        description: What it does, for models.
        timeout_seconds: Longest time of one call.
        reads: By its contract it changes nothing and costs nothing, so it may be run again.
    """

    name: str
    version: str
    input_schema: str
    description: str
    timeout_seconds: float
    reads: bool = False


def status_of(value: common_pb2.CallStatus.ValueType) -> Status:
    """A status from the wire; one that this version does not know is treated with the greatest care."""
    name = _name(common_pb2.CallStatus, value).removeprefix("CALL_STATUS_")
    return Status[name] if name in Status.__members__ else Status.OUTCOME_UNKNOWN


def served_of(value: common_pb2.Served.ValueType) -> Served:
    """How a call was answered, from the wire."""
    name = _name(common_pb2.Served, value).removeprefix("SERVED_")
    return Served[name] if name in Served.__members__ else Served.UNSPECIFIED


def mode_of(value: common_pb2.Mode.ValueType) -> Mode:
    """A mode from the wire; one that this version does not know runs nothing ahead as far as a client can tell."""
    name = _name(common_pb2.Mode, value).removeprefix("MODE_")
    return Mode[name] if name in Mode.__members__ else Mode.OFF


def only_reads(contract: policy_pb2.EffectContract) -> bool:
    """By its contract a tool changes nothing and costs nothing: it may be run again, whatever became of a first run."""
    harmless = contract.effect in (policy_pb2.EFFECT_PURE, policy_pb2.EFFECT_READ)
    return harmless and not (contract.consuming or contract.metered)


def failure_of(message: common_pb2.Failure) -> Failure:
    """A failure from the wire."""
    retry = message.retry_after_seconds if message.HasField("retry_after_seconds") else None
    return Failure(message.reason, message.message, dict(message.metadata), retry)


def totals_of(message: session_pb2.Totals) -> Totals:
    """Totals from the wire."""
    return Totals(
        calls=message.calls,
        launched=message.launched,
        outcomes=dict(message.outcomes),
        memo_hits=message.memo_hits,
        early_issued=message.early_issued,
        early_used=message.early_used,
        races=message.races,
        races_won_by_second=message.races_won_by_second,
        speculable_calls=message.speculable_calls,
        executions=message.executions,
        wasted_seconds=message.wasted_seconds,
        saved_estimated_seconds=message.saved_estimated_seconds,
        unknown=message.unknown,
        sessions=message.sessions,
        served=dict(message.served),
        refused=dict(message.refused),
    )


def _name(kind: Any, value: int) -> str:
    try:
        return str(kind.Name(value))
    except ValueError:
        return ""
