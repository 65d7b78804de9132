"""The figures: harm to the queue at every load, how fast speculation follows, and how calm everything is."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from forerun.core.capacity import Rules, Signal, decide, first_history
from tests.bench.capacity.arrivals import Arrival, offered
from tests.bench.capacity.simulation import Pool, Run

LOADS: Final = (0.1, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1)
"""Average load of a fixed pool, as a share of its slots."""

SWING: Final = 0.1
WATCHED_SECONDS: Final = 900.0


@dataclass(frozen=True, slots=True)
class Harm:
    """One load of one recording, with and without speculation."""

    slots: int
    p99_without: float
    p99_with: float
    waits: int
    speculative_share: float

    @property
    def holds(self) -> bool:
        """The queue's p99 is within 2 % of what it is without speculation."""
        return self.p99_with <= self.p99_without * 1.02


def harm(arrivals: list[Arrival], load: float) -> Harm:
    """A pool of fixed size whose average load is `load`."""
    slots = max(1, math.ceil(offered(arrivals) / load))
    seconds = arrivals[-1].at
    rules = Rules(fixed_replicas=slots, max_replicas=slots, speculative_slots_max=slots)
    without = Pool(replace(rules, speculative_slots_max=0), slots).play(arrivals, seconds)
    beside = Pool(rules, slots).play(arrivals, seconds)
    return Harm(
        slots=slots,
        p99_without=quantile(without.waits, 0.99),
        p99_with=quantile(beside.waits, 0.99),
        waits=len(beside.waits),
        speculative_share=beside.speculative_seconds / (slots * seconds),
    )


def scaled(arrivals: list[Arrival], *, speculation: bool) -> Run:
    """A pool that follows the load of a recording."""
    rules = Rules(min_replicas=1, max_replicas=500, speculative_slots_max=100 if speculation else 0)
    return Pool(rules, math.ceil(offered(arrivals))).play(arrivals, arrivals[-1].at)


def quantile(values: list[float], share: float) -> float:
    """The value that `share` of the values do not exceed."""
    return sorted(values)[min(len(values) - 1, math.ceil(share * len(values)) - 1)] if values else 0.0


def changes_under_swing(level: float, period_seconds: float, phase: float = 0.0, *, fixed: bool = True) -> int:
    """Changes in 15 minutes in which demand swings by 10 %: of slots for speculation or of replicas, what is more.

    A pool of fixed size has twice the slots that the demand needs; one that follows begins at the size that it needs.
    """
    replicas = math.ceil(level * 2) if fixed else math.ceil(level / 0.8)
    rules = Rules(
        max_replicas=10_000, fixed_replicas=replicas if fixed else None, speculative_slots_max=100_000,
    )  # fmt: skip
    history = first_history(replicas, rules, 0.0)
    slots: list[int] = []
    sizes: list[int] = []
    for second in range(int(WATCHED_SECONDS)):
        demand = round(level * (1 + SWING * math.sin(2 * math.pi * second / period_seconds + phase)))
        signal = Signal(
            at=float(second), age_seconds=1.0, running=demand, speculative_wanted=0, gain=1.0, ready_replicas=replicas
        )
        history, decision = decide(history, signal, rules)
        if not fixed:
            replicas = decision.replicas
        slots.append(decision.speculative_slots)
        sizes.append(decision.replicas)
    return max(_changes(slots), _changes(sizes))


def _changes(values: list[int]) -> int:
    return sum(one != other for one, other in pairwise(values))


def seconds_to_follow(low: int, high: int, *, rising: bool) -> float:
    """From a step of the demand until slots for speculation are what they stay at."""
    slots = high * 2
    rules = Rules(fixed_replicas=slots, speculative_slots_max=slots)
    history = first_history(slots, rules, 0.0)
    before, after = (low, high) if rising else (high, low)
    granted: list[int] = []
    for second in range(240):
        demand = before if second < 120 else after
        signal = Signal(at=float(second), age_seconds=1.0, running=demand, gain=1.0, ready_replicas=slots)
        history, decision = decide(history, signal, rules)
        granted.append(decision.speculative_slots)
    settled = granted[-1]
    return next(float(n) for n in range(120) if all(one == settled for one in granted[120 + n :]))


def longest_behind(run: Run, rules: Rules) -> float:
    """The longest time in one stretch that slots for speculation were not what the demand of that time allowed.

    What is allowed is a range as wide as the steps that are ignored on purpose; a pool that is short of slots
    gives none, which is right at any demand.
    """
    longest, since = 0.0, None
    grants, position = run.grants, 0
    for at, demand, slots in run.demands:
        while position + 1 < len(grants) and grants[position + 1][0] <= at:
            position += 1
        granted = grants[position][1]
        spread = 0.45 * demand + 7.0 * math.sqrt(max(1, demand)) + 2
        most = min(slots - demand, rules.speculative_slots_max)
        least = min(slots - demand - spread, rules.speculative_slots_max)
        if max(0.0, least) <= granted <= max(0.0, most):
            since = None
        else:
            since = at if since is None else since
            longest = max(longest, at - since)
    return longest
