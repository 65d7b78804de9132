"""How many drafted tokens are accepted, as it is seen: what the depth is decided from.

Acceptance is accepted drafted tokens over proposed ones, counted raw elsewhere. Here it is split by position, because
the chance of the second token matters only where the first was accepted.
"""

from __future__ import annotations

from typing import Final

PRIOR_RATE: Final = 0.6
_PRIOR_EVIDENCE: Final = 8.0
_SHRINK: Final = 32.0  # observations of a position at which it counts as much as all positions together
_SLOW: Final = 1.0 / 256.0
_FAST: Final = 1.0 / 32.0
_CHANGED: Final = 4.0  # standard deviations of the fast average
_POSITIONS: Final = 64


class _Average:
    """A mean that becomes an exponential average, with a fast one beside it that notices changes."""

    __slots__ = ("evidence", "fast", "slow")

    def __init__(self) -> None:
        self.slow = self.fast = PRIOR_RATE
        self.evidence = _PRIOR_EVIDENCE

    def add(self, value: float) -> None:
        self.evidence = min(self.evidence + 1.0, 1.0 / _SLOW)
        self.slow += (value - self.slow) / self.evidence
        self.fast += (value - self.fast) * _FAST
        deviation = (max(0.01, self.slow * (1.0 - self.slow)) * _FAST / (2.0 - _FAST)) ** 0.5
        if abs(self.fast - self.slow) > _CHANGED * deviation and self.evidence > 2.0 / _FAST:
            self.slow, self.evidence = self.fast, 1.0 / _FAST


class Acceptance:
    """Acceptance of one source of drafts with one target."""

    def __init__(self) -> None:
        self._all = _Average()
        self._positions: list[_Average] = []

    @property
    def rate(self) -> float:
        """Of a token whose predecessors were accepted, over all positions."""
        return self._all.slow

    def observe(self, drafted: int, accepted: int) -> None:
        """How a draft ended. It may have been compared with what came, without having been verified."""
        for position in range(min(drafted, accepted + 1, _POSITIONS)):
            if position == len(self._positions):
                self._positions.append(_Average())
            value = 1.0 if position < accepted else 0.0
            self._positions[position].add(value)
            self._all.add(value)

    def tokens_per_pass(self, depth: int) -> float:
        """Expected tokens of a pass: the accepted ones and the one that the target gives in any case."""
        total, reach = 1.0, 1.0
        for position in range(depth):
            reach *= self._conditional(position)
            total += reach
        return total

    def _conditional(self, position: int) -> float:
        if position >= len(self._positions):
            return self._all.slow
        own = self._positions[position]
        return (own.slow * own.evidence + self._all.slow * _SHRINK) / (own.evidence + _SHRINK)
