"""Whether a finished speculation may become ready. Pure: everything that is needed comes in."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from forerun.core.contracts import Contract, may_speculate, staleness_seconds
from forerun.core.freshness import GenerationView, Recorded, fresh
from forerun.core.outcomes import CallStatus


class Refusal(StrEnum):
    """Why a speculation is refused. Stable: callers and the ledger compare them."""

    NOT_SPECULABLE = "NOT_SPECULABLE"
    """The contract does not allow to execute this call ahead."""
    TAINTED = "TAINTED"
    """It went to an open destination with arguments that nobody trusted has said."""
    FAILED = "FAILED"
    """The execution gave no result that may be served."""
    TOOL_CHANGED = "TOOL_CHANGED"
    """The tool is another one than the one that was executed."""
    OUTPUT_ABOVE_CAP = "OUTPUT_ABOVE_CAP"
    """The result is longer than the contract's cap, so it is not what the real call would give."""
    STALE = "STALE"
    """Something that it read may have been written since, or it is too old."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A finished speculation.

    Attributes:
        contract: The contract of the call, under which it was admitted.
        tool_version: Version of the tool that ran.
        current_tool_version: Version that the registry gives now; empty where the tool is gone.
        status: How the execution ended.
        tool_error: The tool itself reported a failure.
        size_bytes: Length of the result.
        recorded: The generations before the start.
        current: The generations now.
        age_seconds: Time since the start of execution.
        tainted_paths: Arguments that are not trusted.
    """

    contract: Contract
    tool_version: str
    current_tool_version: str
    status: CallStatus
    tool_error: bool
    size_bytes: int
    recorded: Recorded
    current: GenerationView
    age_seconds: float
    tainted_paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer.

    Attributes:
        refusal: Why not; None where it may become ready.
        detail: What exactly, without content of the session.
    """

    refusal: Refusal | None = None
    detail: str = ""


CERTIFIED = Verdict()


def certify(speculation: Finished) -> Verdict:
    """Judges a finished speculation; the first rule that speaks against it decides."""
    contract = speculation.contract
    decision = may_speculate(contract)
    if not decision.allowed:
        return Verdict(Refusal.NOT_SPECULABLE, decision.reason.value)
    if contract.open_world and speculation.tainted_paths:
        return Verdict(Refusal.TAINTED, ", ".join(speculation.tainted_paths))
    if speculation.status is not CallStatus.OK:
        return Verdict(Refusal.FAILED, f"the execution ended {speculation.status}")
    if speculation.tool_error and contract.open_world:
        # The exit code of a command in the workspace is its answer. What a tool elsewhere reports may be over when the
        # real call comes, which would then have got a result.
        return Verdict(Refusal.FAILED, "the tool reported an error")
    if speculation.tool_version != speculation.current_tool_version:
        return Verdict(Refusal.TOOL_CHANGED, "the tool changed since it was executed")
    cap = contract.output_cap_bytes
    if cap is not None and speculation.size_bytes > cap:
        return Verdict(Refusal.OUTPUT_ABOVE_CAP, f"{speculation.size_bytes} bytes, output_cap_bytes is {cap}")
    verdict = fresh(speculation.recorded, speculation.current, speculation.age_seconds, staleness_seconds(contract))
    if not verdict.fresh:
        return Verdict(Refusal.STALE, verdict.mark or f"{speculation.age_seconds:.3f} s old")
    return CERTIFIED
