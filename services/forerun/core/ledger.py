"""Ledger entries as the decisions make them, and the totals that follow from them.

Every count that telemetry or a report shows is derived from these entries, so that they agree (DESIGN, section 4).
"""

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

from forerun.core.outcomes import CallStatus, Outcome, Served

FIRST_WON = "the first attempt won"
SECOND_WON = "the second attempt won"


class EntryKind(StrEnum):
    """What an entry is about."""

    SPECULATION = "speculation"
    CALL = "call"
    DECISION = "decision"
    AUDIT = "audit"
    SESSION = "session"
    EARLY = "early"
    RACE = "race"
    MODEL = "model"
    CANDIDATE = "candidate"


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntry:
    """One line of the ledger, without what the session adds to all of its lines (tenant, agent, policy, ...).

    Attributes:
        kind: What the entry is about.
        tool: The tool.
        site: The call site, "" where there is none.
        identity: Hex digest of the identity.
        outcome: For a speculation, or an early issue, how it ended.
        served: For a call, how it was answered.
        status: For a call, how it ended.
        probability: Mean probability at admission, 0..1.
        evidence: Effective observations behind it.
        lower_bound: The bound that the governor used.
        expected_value: Worth of the seconds expected to be hidden.
        expected_cost: Expected cost of the execution.
        reason: Why it was decided so or ended so.
        seconds: Wall seconds of the execution.
        saved_seconds: Waiting that a hit saved, by estimate.
        wasted_seconds: Execution that was not committed.
        cost_money: Money of the execution.
        speculation: Id of the speculation, for a speculation or the call that it answered.
        call: (turn, index) of the call, where one belongs to the entry.
        digest: Digest of the observation.
        generations: The generations under which it was committed.
        speculable: For a call: the policy would have allowed to run it ahead.
        audit: The commit is in the audit sample.
        propensity: Probability that the decision would have been the other one.
        explanation: The predictor's words.
        executions: Tool executions that this entry accounts for.
        model: For a model request, also the beaten one of a race: the model.
        provider: Which of its providers.
        input_tokens: Tokens of the prompt.
        output_tokens: Generated tokens.
        tokens_estimated: They are estimated, because the provider did not say, and the money with them.
        answer: Id of the answer that the request belongs to.
    """

    kind: EntryKind
    tool: str
    site: str = ""
    identity: str = ""
    outcome: Outcome | None = None
    served: Served | None = None
    status: CallStatus | None = None
    probability: float = 0.0
    evidence: float = 0.0
    lower_bound: float = 0.0
    expected_value: float = 0.0
    expected_cost: float = 0.0
    reason: str = ""
    seconds: float = 0.0
    saved_seconds: float = 0.0
    wasted_seconds: float = 0.0
    cost_money: float = 0.0
    speculation: str = ""
    call: tuple[int, int] | None = None
    digest: str = ""
    generations: tuple[tuple[str, int], ...] = ()
    speculable: bool = False
    audit: bool = False
    propensity: float = 0.0
    explanation: str = ""
    executions: int = 0
    model: str = ""
    provider: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    tokens_estimated: bool = False
    answer: str = ""


@dataclass(slots=True)
class Totals:
    """Numerators and denominators since a start. Ratios are left to the reader."""

    calls: int = 0
    launched: int = 0
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    served: Counter[Served] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    memo_hits: int = 0
    speculable_calls: int = 0
    executions: int = 0
    wasted_seconds: float = 0.0
    saved_seconds: float = 0.0
    unknown: int = 0
    early_issued: int = 0
    early_used: int = 0
    races: int = 0
    races_won_by_second: int = 0

    def add(self, entry: LedgerEntry) -> None:
        """Counts one entry."""
        self.executions += entry.executions
        if entry.kind is EntryKind.SPECULATION and entry.outcome is not None:
            self.launched += 1
            self.outcomes[entry.outcome] += 1
            self.wasted_seconds += entry.wasted_seconds
            self.saved_seconds += entry.saved_seconds
        elif entry.kind is EntryKind.EARLY and entry.outcome is not None:
            self.early_issued += 1
            self.early_used += entry.outcome.hit
            self.wasted_seconds += entry.wasted_seconds
            self.saved_seconds += entry.saved_seconds
        elif entry.kind is EntryKind.RACE:
            self.races += 1
            self.races_won_by_second += entry.reason == SECOND_WON
            self.wasted_seconds += entry.wasted_seconds
        elif entry.kind is EntryKind.CANDIDATE:
            self.wasted_seconds += entry.wasted_seconds
        elif entry.kind is EntryKind.CALL:
            self.calls += 1
            self.speculable_calls += entry.speculable
            if entry.served is not None:
                self.served[entry.served] += 1
                self.memo_hits += entry.served is Served.MEMO
            self.unknown += entry.status is CallStatus.OUTCOME_UNKNOWN
        elif entry.kind is EntryKind.DECISION:
            self.refused[entry.reason] += 1

    def merge(self, other: "Totals") -> None:
        """Adds the counts of another total."""
        self.calls += other.calls
        self.launched += other.launched
        self.outcomes.update(other.outcomes)
        self.served.update(other.served)
        self.refused.update(other.refused)
        self.memo_hits += other.memo_hits
        self.speculable_calls += other.speculable_calls
        self.executions += other.executions
        self.wasted_seconds += other.wasted_seconds
        self.saved_seconds += other.saved_seconds
        self.unknown += other.unknown
        self.early_issued += other.early_issued
        self.early_used += other.early_used
        self.races += other.races
        self.races_won_by_second += other.races_won_by_second
