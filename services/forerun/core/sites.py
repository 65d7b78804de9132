"""Call sites: whether speculation at a place of an agent pays, measured there and nowhere else. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar


@dataclass(slots=True)
class Site:
    """Measured gain of one call site, and whether it is on.

    A site turns off for one of two reasons. Its gain: that of each ended speculation enters a discounted mean, which is
    below zero over a window. Its word: so many speculations in a row gave nothing that, had their claimed probabilities
    been true, it would have happened once in a thousand times; a site that was right for long is caught by that before
    its good past is used up. From then on every `PROBE_EVERY`-th candidate is let through, and gain since then turns
    the site on again (hysteresis).
    """

    gain: float = 0.0
    weight: float = 0.0
    doubt: float = 0.0
    on: bool = True
    waiting: int = 0

    DISCOUNT: ClassVar[float] = 0.9
    WINDOW: ClassVar[float] = 4.0
    PROBE_EVERY: ClassVar[int] = 20
    # Nothing is more certain than this: contexts change without notice.
    CERTAINTY: ClassVar[float] = 0.95
    UNBELIEVABLE: ClassVar[float] = math.log(1e-3)

    def learn(self, gain: float, *, probability: float, hit: bool) -> None:
        """Takes one ended speculation.

        Args:
            gain: Worth of the seconds saved less the cost wasted.
            probability: What was claimed for it when it was admitted (the lower bound).
            hit: A call was answered from it.
        """
        self.gain = self.gain * self.DISCOUNT + gain
        self.weight = self.weight * self.DISCOUNT + 1.0
        self.doubt = 0.0 if hit else self.doubt + math.log1p(-min(self.CERTAINTY, max(0.0, probability)))
        loses = self.weight >= self.WINDOW and self.gain < 0.0
        if self.on and (loses or self.doubt <= self.UNBELIEVABLE):
            self.on = False
            self.gain = self.weight = self.doubt = 0.0
            self.waiting = 0
        elif not self.on and self.gain > 0.0:
            self.on = True

    def allows(self) -> bool:
        """True where a candidate may pass: the site is on, or it is time for a probe."""
        if self.on:
            return True
        self.waiting += 1
        if self.waiting < self.PROBE_EVERY:
            return False
        self.waiting = 0
        return True


@dataclass(slots=True)
class Sites:
    """The call sites of one (tenant, agent), bounded: the least recently used one is forgotten.

    Attributes:
        bound: Most sites.
        table: The sites, the least recently used first.
        off: How many of them are off.
    """

    bound: int = 4096
    table: dict[str, Site] = field(default_factory=dict)
    off: int = 0

    def get(self, key: str) -> Site:
        """The site's record, made new where there is none."""
        site = self.table.pop(key, None) or Site()
        self.table[key] = site
        if len(self.table) > self.bound:
            self.off -= not self.table.pop(next(iter(self.table))).on
        return site

    def learn(self, key: str, gain: float, *, probability: float, hit: bool) -> None:
        """Takes one ended speculation of a site; see `Site.learn`."""
        site = self.get(key)
        was_on = site.on
        site.learn(gain, probability=probability, hit=hit)
        self.off += was_on - site.on
