"""Whether a small model is asked for a second guess: off at a call site until it was measured to pay there. Pure.

Statistics cost nothing and are always asked. A small model costs seconds of a machine whether its guess is of use or
not, so the same rule holds for it as for speculation itself (`forerun.core.sites`): the gain of each guess enters a
discounted mean, a site with a gain is on, one without is off and looks again now and then.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar

from forerun.core import limits
from forerun.core.sites import Site


class Asking(StrEnum):
    """Whether the model is asked, and why."""

    PAYS = "pays"
    PROBE = "probe"
    SURE = "sure"
    TOO_LATE = "too_late"
    OFF = "off"

    @property
    def asks(self) -> bool:
        """It is asked."""
        return self in (Asking.PAYS, Asking.PROBE)


@dataclass(frozen=True, slots=True, kw_only=True)
class GuessPrices:
    """What guesses are worth and cost.

    Attributes:
        worth_per_second: Of an agent's waiting that a hit hides.
        cost_per_second: Of the model.
        unsure_below: Where the best candidate of the statistics is at least this probable, nothing more is asked.
    """

    worth_per_second: float = 1.0
    cost_per_second: float = 1.0
    unsure_below: float = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Guessed:
    """A guess whose truth is known.

    Attributes:
        seconds: What the model took, also where it was stopped.
        hit: The call was asked for, and no other candidate had named it.
        right: The call was asked for.
        hidden_seconds: Of a hit: how long its tool could have run before it was asked for.
        valid: There was a call in time, so that it counts for the probability of the next one.
    """

    seconds: float
    hit: bool
    right: bool = False
    hidden_seconds: float = 0.0
    valid: bool = True


@dataclass(slots=True)
class GuessRecord:
    """What guesses for one agent have given.

    Attributes:
        asked: Guesses so far.
        hits: Of them, those that named what nothing else did.
        seconds: Of the model.
        gained: Worth of what hits hid, less the price of all guesses.
        right: Right ones, discounted.
        trials: All valid ones, discounted: the evidence.
    """

    asked: int = 0
    hits: int = 0
    seconds: float = 0.0
    gained: float = 0.0
    right: float = 0.0
    trials: float = 0.0

    KEEP: ClassVar[float] = 0.99
    PRIOR: ClassVar[float] = 0.1
    STRENGTH: ClassVar[float] = 2.0

    @property
    def probability(self) -> float:
        """That the next guess is right."""
        return (self.right + self.PRIOR * self.STRENGTH) / (self.trials + self.STRENGTH)

    @property
    def pace(self) -> float | None:
        """Seconds of a guess; None before the first one."""
        return self.seconds / self.asked if self.asked else None


@dataclass(slots=True)
class SecondGuesses:
    """The call sites of one agent, and what guesses have given there.

    Attributes:
        prices: See there.
        record: Of all sites together.
    """

    prices: GuessPrices
    record: GuessRecord = field(default_factory=GuessRecord)
    _sites: dict[str, Site] = field(default_factory=dict)

    def decide(self, site: str, best: float, model_seconds: float | None) -> Asking:
        """Whether to ask now.

        Args:
            site: The call site of the statistics' best candidate.
            best: Its probability.
            model_seconds: Until the agent's own model has answered; None where unknown.
        """
        if best >= self.prices.unsure_below:
            return Asking.SURE
        pace = self.record.pace
        if pace is not None and model_seconds is not None and pace >= model_seconds:
            return Asking.TOO_LATE
        known = self._site(site)
        if known.on:
            return Asking.PAYS
        return Asking.PROBE if known.allows() else Asking.OFF

    def learn(self, site: str, guess: Guessed) -> bool | None:
        """Takes a guess whose truth is known.

        Returns:
            Whether the site is on now, where that has changed; None where it has not.
        """
        record, known = self.record, self._site(site)
        claimed, was_on = record.probability, known.on
        worth = self.prices.worth_per_second * guess.hidden_seconds if guess.hit else 0.0
        gain = worth - self.prices.cost_per_second * guess.seconds
        known.learn(gain, probability=claimed, hit=guess.hit)
        record.asked += 1
        record.hits += guess.hit
        record.seconds += guess.seconds
        record.gained += gain
        if guess.valid:
            record.right = record.right * record.KEEP + guess.right
            record.trials = record.trials * record.KEEP + 1.0
        return None if known.on is was_on else known.on

    @property
    def sites_on(self) -> int:
        """Call sites at which it pays."""
        return sum(site.on for site in self._sites.values())

    @property
    def sites_off(self) -> int:
        """Call sites at which it does not, or is not known to."""
        return len(self._sites) - self.sites_on

    def _site(self, key: str) -> Site:
        site = self._sites.pop(key, None) or Site(on=False)
        self._sites[key] = site
        if len(self._sites) > limits.GUESS_SITES:
            del self._sites[next(iter(self._sites))]
        return site
