"""Probabilities that mean what they say, and the evidence behind them.

What was predicted is compared with what came, whether anything was launched or not. A correction is kept for knots on
the logit scale; between knots it is interpolated. Old corrections fade.
"""

from __future__ import annotations

import hashlib
import math
from functools import lru_cache

from forerun.predictor.engine.state import State, items, number, numbers, table
from forerun.predictor.engine.tuning import MAX_SITES, NAMES_KEPT, Tuning

_KNOTS = (-5.0, -4.0, -3.0, -2.2, -1.5, -0.8, -0.2, 0.4, 1.0, 1.6, 2.3, 3.0, 4.0, 5.0)
_STRENGTH = 25.0  # scored candidates that the uncorrected value is worth
_FLOOR, _CEILING = 0.001, 0.995


def _position(probability: float) -> list[tuple[int, float]]:
    bounded = min(max(probability, 1e-6), 1.0 - 1e-6)
    logit = math.log(bounded / (1.0 - bounded))
    if logit <= _KNOTS[0]:
        return [(0, 1.0)]
    for index in range(1, len(_KNOTS)):
        if logit <= _KNOTS[index]:
            part = (logit - _KNOTS[index - 1]) / (_KNOTS[index] - _KNOTS[index - 1])
            return [(index - 1, 1.0 - part), (index, part)]
    return [(len(_KNOTS) - 1, 1.0)]


class Curve:
    """The correction of one rank."""

    __slots__ = ("knots",)

    def __init__(self) -> None:
        # For each knot: effective number of scored candidates, sum of hits minus predicted probabilities.
        self.knots = [[0.0, 0.0] for _ in _KNOTS]

    def correct(self, probability: float) -> float:
        """The corrected probability."""
        shift = sum(
            part * self.knots[index][1] / (self.knots[index][0] + _STRENGTH) for index, part in _position(probability)
        )
        return min(_CEILING, max(_FLOOR, probability + shift))

    def add(self, probability: float, hit: bool, keep: float) -> None:
        """Scores one candidate."""
        for index, part in _position(probability):
            knot = self.knots[index]
            fade = 1.0 - part * (1.0 - keep)
            knot[0] = knot[0] * fade + part
            knot[1] = knot[1] * fade + part * ((1.0 if hit else 0.0) - probability)


class Calibration:
    """Corrections by rank, evidence by call site."""

    __slots__ = ("curves", "exact", "judged", "scored", "sites", "tuning")

    def __init__(self, tuning: Tuning) -> None:
        self.tuning = tuning
        self.curves: dict[str, Curve] = {}
        self.sites: dict[str, float] = {}
        self.scored = 0
        self.exact = 0
        # Of the latest step: what was claimed for each of its candidates, and whether it came.
        self.judged: tuple[tuple[float, bool], ...] = ()

    def correct(self, rank: str, probability: float) -> float:
        """The calibrated probability of a candidate of that rank."""
        curve = self.curves.get(rank)
        return curve.correct(probability) if curve is not None else min(_CEILING, max(_FLOOR, probability))

    def add(self, rank: str, probability: float, hit: bool) -> None:
        """Scores one candidate by its uncorrected probability."""
        curve = self.curves.setdefault(rank, Curve())
        curve.add(probability, hit, 1.0 - 1.0 / self.tuning.calibration_memory)

    def evidence(self, site: str) -> float:
        """Effective number of scored candidates of a call site."""
        return self.sites.get(site, 0.0)

    def witness(self, site: str) -> None:
        """Counts one more scored candidate of a call site."""
        value = self.sites.pop(site, 0.0) * (1.0 - 1.0 / self.tuning.slow_memory) + 1.0
        if len(self.sites) >= MAX_SITES:
            del self.sites[next(iter(self.sites))]
        self.sites[site] = value

    def to_state(self) -> dict[str, State]:
        """Plain values for persistence."""
        return {
            "curves": {rank: [list(knot) for knot in curve.knots] for rank, curve in self.curves.items()},
            "sites": dict(self.sites),
            "scored": self.scored,
            "exact": self.exact,
        }

    def load(self, state: State) -> None:
        """The inverse of `to_state`.

        Raises:
            MalformedState: The state is not one that `to_state` gives.
        """
        fields = table(state)
        for rank, knots in table(fields["curves"]).items():
            curve = self.curves.setdefault(rank, Curve())
            curve.knots = [[number(part) for part in items(knot)] for knot in items(knots)]
        self.sites = numbers(fields["sites"])
        self.scored, self.exact = int(number(fields["scored"])), int(number(fields["exact"]))


@lru_cache(NAMES_KEPT)
def site_of(agent: str, signature: str, tool: str) -> str:
    """The name of a call site: a digest of agent, context signature and tool."""
    text = "\x1e".join((agent, signature, tool))
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
