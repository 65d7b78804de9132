"""What the search for an answer is told, what it wants done, and how it ends."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from forerun.core.answers.gain import Gain

PATIENCE: Final = 3.0
"""Once a candidate could be taken, the others are waited for until so many times its own time has passed."""
PATIENCE_LEAST_SECONDS: Final = 1.0
"""And so long at least: what is faster differs by chance."""


def patience(longest_seconds: float) -> float:
    """How long a candidate is waited for where the slowest of those that can be compared took so long."""
    return max(PATIENCE_LEAST_SECONDS, PATIENCE * longest_seconds)


class End(StrEnum):
    """How a candidate has ended."""

    CHOSEN = "chosen"
    BEATEN = "beaten"
    STOPPED = "stopped"
    FAILED = "failed"
    UNSCORED = "unscored"


class Limit(StrEnum):
    """Why there were fewer candidates than asked for."""

    NONE = ""
    OFF = "candidates are off under this policy"
    SWITCHED_OFF = "speculation is switched off"
    COUNT = "the policy allows no more"
    PRICE = "the price cap is reached"
    WORTH = "a further candidate is not worth its price"
    ONCE = "the request may not be repeated"


@dataclass(frozen=True, slots=True)
class Worth:
    """Whether a further candidate is worth its price: the governor's rule with all of its cost as extra.

    Attributes:
        money: What a better answer is worth.
        gain: How often a further candidate has been better.
        alpha: The operator's dial between cost (0) and speed (1).
    """

    money: float = 0.0
    gain: Gain = field(default_factory=Gain)
    alpha: float = 0.0

    def admits(self, cost: float) -> bool:
        """P*L - X >= (1 - alpha)*C with X = C."""
        return cost <= 0.0 or self.gain.lower_bound * self.money >= (2.0 - self.alpha) * cost


@dataclass(frozen=True, slots=True)
class Price:
    """What one step costs.

    Attributes:
        expected: What it is expected to cost.
        most: What it can cost at most; so much is reserved.
    """

    expected: float = 0.0
    most: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What holds for one search.

    Attributes:
        count: Candidates, or the width of the beam.
        at_once: Under way at the same time, scoring included: fewer at once leave less to stop.
        stop_at: A score that is good enough; None waits for all.
        max_cost: Money for all of it.
        worth: Whether further candidates pay.
        generate: Price of generating one candidate, or one piece of it.
        score: Price of one score.
    """

    count: int
    at_once: int = 32
    stop_at: float | None = None
    max_cost: float = math.inf
    worth: Worth = field(default_factory=Worth)
    generate: Price = field(default_factory=Price)
    score: Price = field(default_factory=Price)


@dataclass(frozen=True, slots=True)
class Generate:
    """Generate a candidate; of a beam search, go on with another one.

    Attributes:
        candidate: Its number, from 0 in the order of launching.
        parent: The beginning that it goes on with; None begins anew.
        whole: It is generated to its end, not for one piece.
    """

    candidate: int
    parent: int | None = None
    whole: bool = True


@dataclass(frozen=True, slots=True)
class Score:
    """Score a candidate."""

    candidate: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop what is under way for a candidate, down to the provider; its end is told with what it has cost."""

    candidate: int


@dataclass(frozen=True, slots=True)
class Report:
    """How a candidate fared.

    Attributes:
        candidate: Its number.
        end: How.
        score: Its score, in 0..1.
        cost: Money, score included.
        reason: Why it failed.
    """

    candidate: int
    end: End
    score: float | None
    cost: float
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Decided:
    """The search is over. Comes once, and last.

    Attributes:
        chosen: The candidate that is taken; None where there is none.
        why: In one sentence.
        reports: Every candidate, by number.
        cost: Money of all of it.
        limited_by: Why there were fewer than asked for.
    """

    chosen: int | None
    why: str
    reports: tuple[Report, ...]
    cost: float
    limited_by: Limit


Step = Generate | Score | Stop | Decided
