"""What a hold-out says: the saving of treated sessions against held-out ones, with its interval. Pure.

Sessions differ far more in length than any platform changes them, so plain means of two groups would need tens of
thousands of sessions to see 5 %. The logarithm of a session's time is therefore explained by the logarithm of the time
to be expected from what the platform does not change - the seconds that its models thought, and its calls at the usual
time of each tool - and by the group: an analysis of covariance by least squares.

The interval is robust against unequal spread and against sessions of one task being alike: the sandwich estimator over
clusters with the small-sample factor CR1 (Liang and Zeger 1986; Cameron and Miller 2015).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import NormalDist
from typing import Final

_CONFIDENCE: Final = 0.95
_COLUMNS: Final = 3
_TREATED: Final = 1
# Below this share of its first size a pivot is rounding: the columns depend on each other.
_SINGULAR: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Unit:
    """One session of an experiment.

    Attributes:
        treated: Forerun worked; else it was held out.
        seconds: Its time, models and tools.
        expected_seconds: What it would be expected to take without Forerun, from its model steps and from the usual
            time of its calls. Its own tool times are no part of it: those are what the platform changes.
        cluster: What sessions share that makes them alike, such as their task.
    """

    treated: bool
    seconds: float
    expected_seconds: float
    cluster: str


class Finding(StrEnum):
    """What an interval says."""

    GAIN = "gain"
    HARM = "harm"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Effect:
    """The measured effect of being treated.

    Attributes:
        saved_pct: Per cent of a session's time that is saved (below zero: lost).
        low, high: The 95 % interval.
        treated, held_out: Sessions in each group.
    """

    saved_pct: float
    low: float
    high: float
    treated: int
    held_out: int

    @property
    def finding(self) -> Finding:
        """Gain or harm where the interval leaves zero out."""
        if self.low > 0.0:
            return Finding.GAIN
        return Finding.HARM if self.high < 0.0 else Finding.NOTHING

    def sessions_for(self, precision_pct: float) -> int:
        """Sessions, in the same proportion, for an interval of plus and minus that many per cent."""
        half = (self.high - self.low) / 2.0
        return math.ceil((self.treated + self.held_out) * (half / precision_pct) ** 2)


def effect(units: Sequence[Unit]) -> Effect | None:
    """The effect of being treated.

    Returns:
        None where nothing can be said: fewer than two sessions of a group or of clusters than unknowns, or sessions
        that are all alike.
    """
    usable = [unit for unit in units if unit.seconds > 0.0 and unit.expected_seconds > 0.0]
    treated = sum(unit.treated for unit in usable)
    clusters = {unit.cluster for unit in usable}
    if min(treated, len(usable) - treated) < 2 or len(clusters) <= _COLUMNS or len(usable) <= _COLUMNS:
        return None
    rows = [_row(unit) for unit in usable]
    times = [math.log(unit.seconds) for unit in usable]
    inverse = _inverse(_crossed(rows))
    if inverse is None:
        return None
    right = [sum(row[i] * time for row, time in zip(rows, times, strict=True)) for i in range(_COLUMNS)]
    estimates = [_dot(line, right) for line in inverse]
    residuals = [time - _dot(row, estimates) for row, time in zip(rows, times, strict=True)]
    error = math.sqrt(_robust_variance(rows, residuals, [unit.cluster for unit in usable], inverse[_TREATED]))
    half = student_quantile(0.5 + _CONFIDENCE / 2.0, len(clusters) - 1) * error
    slope = estimates[_TREATED]
    return Effect(_saved(slope), _saved(slope + half), _saved(slope - half), treated, len(usable) - treated)


def student_quantile(level: float, degrees: int) -> float:
    """Quantile of Student's distribution, by its expansion around the normal one.

    Abramowitz and Stegun, 26.7.5; from 5 degrees of freedom on right to two decimals.
    """
    z = NormalDist().inv_cdf(level)
    return (
        z
        + (z**3 + z) / (4.0 * degrees)
        + (5.0 * z**5 + 16.0 * z**3 + 3.0 * z) / (96.0 * degrees**2)
        + (3.0 * z**7 + 19.0 * z**5 + 17.0 * z**3 - 15.0 * z) / (384.0 * degrees**3)
    )


def _row(unit: Unit) -> tuple[float, ...]:
    return (1.0, float(unit.treated), math.log(unit.expected_seconds))


def _saved(slope: float) -> float:
    return 100.0 * (1.0 - math.exp(slope))


def _dot(left: Sequence[float], right: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))


def _crossed(rows: Sequence[Sequence[float]]) -> list[list[float]]:
    return [[sum(row[i] * row[j] for row in rows) for j in range(_COLUMNS)] for i in range(_COLUMNS)]


def _inverse(matrix: list[list[float]]) -> list[list[float]] | None:
    """Gauss and Jordan with pivots; None where the columns depend on each other."""
    size = len(matrix)
    work = [[*row, *(float(i == j) for j in range(size))] for i, row in enumerate(matrix)]
    scale = [max(map(abs, row)) for row in matrix]
    for column in range(size):
        pivot = max(range(column, size), key=lambda i: abs(work[i][column]))
        if abs(work[pivot][column]) <= _SINGULAR * max(scale[column], 1.0):
            return None
        work[column], work[pivot] = work[pivot], work[column]
        head = work[column][column]
        work[column] = [value / head for value in work[column]]
        for row in range(size):
            if row != column:
                factor = work[row][column]
                work[row] = [a - factor * b for a, b in zip(work[row], work[column], strict=True)]
    return [row[size:] for row in work]


def _robust_variance(
    rows: Sequence[Sequence[float]], residuals: Sequence[float], clusters: Sequence[str], line: Sequence[float]
) -> float:
    """Variance of one estimate: the sums over each cluster of its influence, squared."""
    influence: dict[str, float] = defaultdict(float)
    for row, residual, cluster in zip(rows, residuals, clusters, strict=True):
        influence[cluster] += _dot(line, row) * residual
    groups, sessions = len(influence), len(rows)
    factor = groups / (groups - 1) * (sessions - 1) / (sessions - _COLUMNS)
    return factor * sum(value * value for value in influence.values())
