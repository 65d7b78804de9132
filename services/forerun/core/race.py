"""Races: a second attempt of a slow call at an equivalent provider; the first answer wins. Pure.

After J. Dean and L. A. Barroso, "The Tail at Scale" (2013): the second attempt starts when the first has taken longer
than most calls of its tool do, so that few calls need one, and a cap on extra calls holds whatever happens.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Final

from forerun.core import limits

_SAMPLES: Final = 512
_MINIMUM_SAMPLES: Final = 20
# Above the quantile: a tool whose calls all take the same time would race at every call otherwise.
_MARGIN: Final = 1.05
_TAIL_SAMPLES: Final = 64


@dataclass(frozen=True, slots=True)
class Race:
    """When a second attempt is worth it; part of a tool's contract.

    Attributes:
        after_quantile: It starts when the first has taken longer than this share of the tool's calls, in (0, 1).
        most_extra: Second attempts for each call, at most, in (0, 1].
    """

    after_quantile: float = 0.95
    most_extra: float = 0.05


def race_problems(race: Race) -> list[str]:
    """What makes a race unusable; empty where it may be used."""
    found = []
    if not 0.0 < race.after_quantile < 1.0:
        found.append("race.after_quantile: must be between 0 and 1")
    if not 0.0 < race.most_extra <= 1.0:
        found.append("race.most_extra: must be above 0 and at most 1")
    return found


@dataclass(slots=True)
class Pace:
    """How long the calls of one tool take, and how many second attempts they had.

    What was stopped because the other attempt had won counts with the time that it had run: it is longer than the
    quantile that let the second one start, so the quantile stays right although its end was never seen.

    Attributes:
        calls: Attempts that reached their provider, which allow for second ones.
        extra: Second attempts.
    """

    calls: int = 0
    extra: int = 0
    _recent: deque[float] = field(default_factory=deque)
    _ordered: list[float] = field(default_factory=list)
    _tail: deque[tuple[float, bool]] = field(default_factory=lambda: deque(maxlen=_TAIL_SAMPLES))

    def observe(self, seconds: float) -> None:
        """Takes the time of one attempt."""
        if len(self._recent) == _SAMPLES:
            del self._ordered[bisect_left(self._ordered, self._recent.popleft())]
        self._recent.append(seconds)
        insort(self._ordered, seconds)

    def delay(self, race: Race) -> float | None:
        """Seconds after which a second attempt is worth it; None while too little is known."""
        if len(self._ordered) < _MINIMUM_SAMPLES:
            return None
        place = math.ceil(race.after_quantile * len(self._ordered)) - 1
        return _MARGIN * self._ordered[min(len(self._ordered) - 1, max(0, place))]

    def outlived(self, seconds: float, *, seen_to_end: bool) -> None:
        """Takes by how much an attempt has outlived the delay of a second one, up to its end or to its stop."""
        self._tail.append((seconds, seen_to_end))

    def hidden_seconds(self) -> float:
        """Waiting that a second attempt hides, on average; infinite while every one of them was stopped.

        What goes on after the delay is taken as memoryless, whose mean is all time over the ends that were seen: so it
        is not biased by attempts that were stopped because they had lost.
        """
        if not self._ordered or not self._tail:
            return math.inf
        ends = sum(seen for _, seen in self._tail)
        left = sum(seconds for seconds, _ in self._tail) / ends if ends else math.inf
        return max(0.0, left - self._ordered[len(self._ordered) // 2])

    def may_add(self, race: Race) -> bool:
        """One more second attempt stays under the cap."""
        return self.extra + 1 <= race.most_extra * self.calls


@dataclass(slots=True)
class Paces:
    """The paces of all tools of a replica, bounded: the least recently used one is forgotten."""

    bound: int = limits.RACED_TOOLS
    table: OrderedDict[tuple[str, str], Pace] = field(default_factory=OrderedDict)

    def of(self, tenant: str, tool: str) -> Pace:
        """The pace of a tenant's tool, made new where there is none."""
        key = (tenant, tool)
        pace = self.table.pop(key, None) or Pace()
        self.table[key] = pace
        if len(self.table) > self.bound:
            self.table.popitem(last=False)
        return pace
