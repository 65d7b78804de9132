"""Discounted counts that notice a change: two memories of one distribution, and a test between them.

The slow memory gives precise probabilities while nothing changes. The fast one follows a change within some tens of
observations. A running log likelihood ratio (CUSUM) of fast against slow says when the slow memory is out of date; it
then starts again from what the fast one knows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from forerun.predictor.engine.state import State, number, numbers
from forerun.predictor.engine.tuning import MAX_OUTCOMES, Tuning

_FLOOR = 0.02  # a faded count below this is dropped
_SMOOTH = 0.02  # smallest probability that the change test uses


class Counts:
    """Discounted counts of outcomes in one context."""

    __slots__ = ("drift", "fast", "fast_total", "slow", "slow_total")

    def __init__(self) -> None:
        self.slow: dict[str, float] = {}
        self.slow_total = 0.0
        self.fast: dict[str, float] = {}
        self.fast_total = 0.0
        self.drift = 0.0

    def add(self, outcome: str, tuning: Tuning) -> None:
        """Counts one outcome."""
        if self.fast_total >= 4.0:
            quick = max(self.fast.get(outcome, 0.0) / self.fast_total, _SMOOTH)
            steady = max(self.slow.get(outcome, 0.0) / self.slow_total, _SMOOTH)
            self.drift = max(0.0, self.drift + math.log(quick / steady))
        self.slow_total = _fade(self.slow, outcome, 1.0 - 1.0 / tuning.slow_memory)
        self.fast_total = _fade(self.fast, outcome, 1.0 - 1.0 / tuning.fast_memory)
        if self.drift > tuning.change_evidence:
            self.slow, self.slow_total = dict(self.fast), self.fast_total
            self.drift = 0.0

    def probabilities(self, lower: Mapping[str, float]) -> dict[str, float]:
        """Probabilities of outcomes, backing off to `lower` by the number of different outcomes (Witten-Bell)."""
        slow = self.slow
        back_off = 0.5 + 0.5 * len(slow)
        total = self.slow_total + back_off
        return {outcome: (slow.get(outcome, 0.0) + back_off * share) / total for outcome, share in lower.items()}

    def to_state(self) -> list[State]:
        """Plain values for persistence."""
        return [self.slow, self.slow_total, self.fast, self.fast_total, self.drift]

    @classmethod
    def from_state(cls, state: Sequence[State]) -> Counts:
        """The inverse of `to_state`.

        Raises:
            ValueError: The state is not one that `to_state` gives.
        """
        counts = cls()
        slow, slow_total, fast, fast_total, drift = state
        counts.slow, counts.fast = numbers(slow), numbers(fast)
        counts.slow_total, counts.fast_total, counts.drift = number(slow_total), number(fast_total), number(drift)
        return counts


def _fade(table: dict[str, float], outcome: str, keep: float) -> float:
    total = 0.0
    gone = []
    for name, value in table.items():
        value *= keep
        table[name] = value
        if value < _FLOOR:
            gone.append(name)
        else:
            total += value
    for name in gone:
        del table[name]
    if len(table) >= MAX_OUTCOMES and outcome not in table:
        rarest = min(table, key=lambda name: table[name])
        total -= table.pop(rarest)
    table[outcome] = table.get(outcome, 0.0) + 1.0
    return total + 1.0
