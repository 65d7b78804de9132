"""One speculation, and what a real call may get of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from forerun.core.candidates import Candidate
from forerun.core.freshness import Recorded
from forerun.core.governor import Estimate
from forerun.core.ledger import EntryKind, LedgerEntry
from forerun.core.outcomes import Outcome
from forerun.core.session.model import CallId, ExecutionResult, PreparedCall


class Stage(StrEnum):
    """Where a speculation stands."""

    STARTING = "starting"
    RUNNING = "running"
    CERTIFYING = "certifying"
    READY = "ready"
    COMMITTING = "committing"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Committed:
    """A result that a real call gets, with what it depended on.

    Attributes:
        result: The result.
        outcome: READY or JOINED.
        private: Generations of the session's resources before it started.
        shared: Generations of shared resources before it started.
        started_at: When it started.
        early: It was issued while the message streamed, and is no guess.
    """

    result: ExecutionResult
    outcome: Outcome
    private: Recorded
    shared: Mapping[str, int]
    started_at: float
    early: bool = False


class Uncertain:
    """The end of a commit that may have taken effect."""


UNCERTAIN = Uncertain()

Taken = Callable[[Committed | Uncertain | None], None]
"""Continues a real call: with the committed result, with None where it has to be executed, or uncertain."""


@dataclass(slots=True, kw_only=True)
class Speculation:
    """One execution ahead of its call: a guess under the budget, or an early issue of what is being asked for."""

    id: str
    prepared: PreparedCall
    candidate: Candidate
    estimate: Estimate
    policy_version: str
    tainted_paths: tuple[str, ...]
    money: float
    turn: int
    propensity: float
    early: bool = False
    stage: Stage = Stage.STARTING
    private: Recorded = field(default_factory=lambda: Recorded({}))
    shared: Mapping[str, int] = field(default_factory=dict)
    started_at: float = 0.0
    result: ExecutionResult | None = None
    joined: Taken | None = None
    joined_at: float = 0.0
    call: CallId | None = None

    @property
    def fork(self) -> str:
        """Id of its fork of the workspace, or empty."""
        return self.id if self.prepared.forks else ""


def ledger_entry(
    speculation: Speculation, outcome: Outcome, reason: str, *, seconds: float, saved_seconds: float, audit: bool
) -> LedgerEntry:
    """The line of a speculation that has ended.

    Args:
        speculation: What has ended.
        outcome: How.
        reason: Why.
        seconds: Wall seconds that it ran.
        saved_seconds: Of these, how many its call did not wait.
        audit: The commit is in the audit sample.
    """
    result, candidate, estimate = speculation.result, speculation.candidate, speculation.estimate
    marks = dict(speculation.private.marks) | {f"shared/{mark}": n for mark, n in speculation.shared.items()}
    return LedgerEntry(
        kind=EntryKind.EARLY if speculation.early else EntryKind.SPECULATION,
        tool=speculation.prepared.tool,
        site=candidate.site,
        identity=speculation.prepared.digest,
        outcome=outcome,
        probability=candidate.probability,
        evidence=candidate.evidence,
        lower_bound=estimate.lower_bound,
        expected_value=estimate.value,
        expected_cost=estimate.cost,
        reason=reason,
        seconds=seconds,
        saved_seconds=saved_seconds,
        wasted_seconds=0.0 if outcome.hit else seconds,
        cost_money=speculation.prepared.contract.cost_money,
        speculation=speculation.id,
        call=speculation.call if outcome.hit else None,
        digest=result.digest if result is not None else "",
        generations=tuple(sorted(marks.items())) if outcome.hit else (),
        audit=audit,
        propensity=speculation.propensity,
        explanation=candidate.explanation,
        executions=1,
    )
