"""How long tools take: quantiles from a histogram on a logarithmic scale, old values fading."""

from __future__ import annotations

import math

from forerun.predictor.engine.state import State, numbers, table

_STEP = math.log(1.25)
_SHORTEST_SECONDS = 0.0005
_BINS = 80  # up to about 8 hours
_FADE = 0.99
_MAX_NAMES = 1_000


class Durations:
    """Durations by name."""

    __slots__ = ("bins",)

    def __init__(self) -> None:
        self.bins: dict[str, dict[str, float]] = {}

    def add(self, name: str, seconds: float) -> None:
        """Remembers one duration. Negative ones and what is no number are ignored."""
        if not (0.0 <= seconds < math.inf):
            return
        index = int(math.log(max(seconds, _SHORTEST_SECONDS) / _SHORTEST_SECONDS) / _STEP)
        if name not in self.bins and len(self.bins) >= _MAX_NAMES:
            del self.bins[next(iter(self.bins))]
        row = self.bins.setdefault(name, {})
        for key in row:
            row[key] *= _FADE
        key = str(min(index, _BINS))
        row[key] = row.get(key, 0.0) + 1.0

    def quantile(self, name: str, share: float) -> float | None:
        """The duration in seconds that a `share` of the runs does not exceed; None where nothing is known."""
        row = self.bins.get(name)
        if not row:
            return None
        rest = share * sum(row.values())
        for index in sorted(row, key=int):
            rest -= row[index]
            if rest <= 0:
                return _SHORTEST_SECONDS * math.exp((int(index) + 0.5) * _STEP)
        return _SHORTEST_SECONDS * math.exp((max(map(int, row)) + 0.5) * _STEP)

    def to_state(self) -> dict[str, State]:
        """Plain values for persistence."""
        return {name: dict(row) for name, row in self.bins.items()}

    def load(self, state: State) -> None:
        """The inverse of `to_state`.

        Raises:
            MalformedState: The state is not one that `to_state` gives.
        """
        self.bins = {name: numbers(row) for name, row in table(state).items()}
