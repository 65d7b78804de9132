"""The governor: which candidates are worth running ahead, under which budget.

Pure decisions. The rule is the one of DESIGN section 5: with P a lower bound of the probability, L the worth of the
seconds expected to be hidden and C the cost of the execution, a prefetch is launched iff P >= (2 - alpha) C / (L + C).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from forerun.core.candidates import Candidate


class Refusal(StrEnum):
    """Why a candidate was not launched. Each is counted and written to the ledger."""

    OFF = "off"
    SHADOW = "shadow"
    NOT_ALLOWED = "not_allowed"
    CONNECTION_STATE = "connection_state"
    UNKNOWN_TOOL = "unknown_tool"
    BAD_ARGUMENTS = "bad_arguments"
    TAINTED = "tainted"
    COLD = "cold"
    SITE_OFF = "site_off"
    TOO_FAST = "too_fast"
    NOT_WORTH = "not_worth"
    NO_CREDIT = "no_credit"
    NO_MONEY = "no_money"
    NO_SLOT = "no_slot"
    DUPLICATE = "duplicate"
    BEING_WRITTEN = "being_written"
    WITHHELD = "withheld"
    BOUND = "bound"
    AUTHORITATIVE_FIRST = "authoritative_first"
    PROVIDER_FAILING = "provider_failing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """The operator's view of what things are worth.

    Attributes:
        alpha: 0 = never lose on expectation at full price, 1 = speed at any fair price.
        lambda_per_second: Worth of a second of an agent's waiting.
        slot_second_cost: Cost of a second of a slot.
        minimum_evidence: Observations that a call site needs before anything is launched there.
        minimum_tool_seconds: What is faster than the control path is not speculated.
        confidence_z: Width of the lower bound in standard errors.
    """

    alpha: float = 0.0
    lambda_per_second: float = 1.0
    slot_second_cost: float = 1.0
    minimum_evidence: float = 5.0
    minimum_tool_seconds: float = 0.005
    confidence_z: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Hard limits of one session's speculation (see Budget of the policy).

    Attributes:
        concurrent: Speculations running at once.
        credits_per_call: Waste credits that an authoritative call earns.
        initial_credits: Credits at the start.
        maximum_credits: Credits are not hoarded beyond this.
        money: Money for metered calls ahead, per session.
    """

    concurrent: int = 4
    credits_per_call: float = 0.3
    initial_credits: float = 2.0
    maximum_credits: float = 20.0
    money: float = 0.0


@dataclass(frozen=True, slots=True)
class Estimate:
    """What an admission was decided on; written to the ledger."""

    lower_bound: float
    seconds: float
    value: float
    cost: float
    threshold: float


def lower_bound(probability: float, evidence: float, z: float) -> float:
    """Lower bound of a probability from its mean and its effective number of observations.

    The Wilson score bound (E. B. Wilson, 1927): it never leaves 0..1, and with no evidence it is 0.
    """
    if evidence <= 0.0:
        return 0.0
    square = z * z
    centre = probability + square / (2.0 * evidence)
    spread = z * math.sqrt(
        max(0.0, probability * (1.0 - probability) / evidence + square / (4.0 * evidence * evidence))
    )
    return min(1.0, max(0.0, (centre - spread) / (1.0 + square / evidence)))


def estimate(
    candidate: Candidate, prices: Prices, *, tool_seconds: float, hidden_seconds: float, money: float
) -> Estimate:
    """Worth and cost of running a candidate ahead.

    Args:
        candidate: What would be run.
        prices: What things are worth.
        tool_seconds: Expected seconds of the execution.
        hidden_seconds: Of these, how many the agent would otherwise wait for.
        money: Price of the call.
    """
    bound = lower_bound(candidate.probability, candidate.evidence, prices.confidence_z)
    value = prices.lambda_per_second * hidden_seconds
    # What a small model took for the guess is priced like a slot: the guess has to be worth both.
    cost = prices.slot_second_cost * (tool_seconds + candidate.prediction_seconds) + money
    threshold = (2.0 - prices.alpha) * cost / (value + cost) if value + cost > 0.0 else math.inf
    return Estimate(bound, tool_seconds, value, cost, threshold)


@dataclass(slots=True)
class Purse:
    """The budget of one session: reserved before, settled after, returned when it was not used.

    Attributes:
        limits: What it may hold.
        credits: Waste credits that are there now.
        earned: Waste credits that calls have earned so far.
        money: Money that is left.
        running: Speculations that run.
    """

    limits: Limits
    credits: float = field(init=False)
    earned: float = 0.0
    money: float = field(init=False)
    running: int = 0

    def __post_init__(self) -> None:
        """Fills the purse."""
        self.credits = min(self.limits.initial_credits, self.limits.maximum_credits)
        self.money = self.limits.money

    def adopt(self, limits: Limits) -> None:
        """Other limits hold from now on; what is above them is gone, what was spent stays spent."""
        self.limits = limits
        self.credits = min(self.credits, limits.maximum_credits)
        self.money = min(self.money, limits.money)

    def empty(self) -> None:
        """What an earlier owner has spent is not known: a session that goes on has to earn again what it spends."""
        self.credits = 0.0
        self.money = 0.0

    def earn(self) -> None:
        """An authoritative call earns its share of a credit."""
        before = self.credits
        self.credits = min(self.limits.maximum_credits, before + self.limits.credits_per_call)
        self.earned += self.credits - before

    def refusal(self, money: float) -> Refusal | None:
        """Why a reservation would be refused now, or None."""
        if self.running >= self.limits.concurrent:
            return Refusal.BOUND
        if self.credits < 1.0:
            return Refusal.NO_CREDIT
        if money > self.money:
            return Refusal.NO_MONEY
        return None

    def reserve(self, money: float) -> None:
        """Takes what a speculation may cost."""
        self.running += 1
        self.credits -= 1.0
        self.money -= money

    def stopped(self) -> None:
        """A speculation does not run any more."""
        self.running -= 1

    def give_back(self, money: float) -> None:
        """It was committed, or never started: nothing was wasted."""
        self.credits = min(self.limits.maximum_credits, self.credits + 1.0)
        self.money += money


def ranked(estimates: Sequence[tuple[Candidate, Estimate]]) -> list[int]:
    """Indices of candidates by expected net worth, best first; ties keep the predictor's order."""
    return sorted(
        range(len(estimates)),
        key=lambda i: (
            -(estimates[i][1].lower_bound * (estimates[i][1].value + estimates[i][1].cost) - estimates[i][1].cost)
        ),
    )
