"""Intervals for measured savings. Pure: chance comes from the caller."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

RESAMPLES = 2_000
_LOW, _HIGH = 0.025, 0.975


@dataclass(frozen=True, slots=True)
class Pair:
    """Seconds of one unit (a task with all its sessions) without and with what is measured."""

    without_seconds: float
    with_seconds: float


def saved_pct(pairs: Sequence[Pair]) -> float | None:
    """Percent of the time that was saved, over all pairs; None where there was no time."""
    without = sum(pair.without_seconds for pair in pairs)
    return 100.0 * (without - sum(pair.with_seconds for pair in pairs)) / without if without > 0.0 else None


def saved_pct_interval(
    pairs: Sequence[Pair], fraction: Callable[[], float], *, resamples: int = RESAMPLES
) -> tuple[float, float] | None:
    """95 % percentile bootstrap interval of `saved_pct`, resampling whole units.

    Args:
        pairs: One for each unit. Sessions of one task belong together: they are no independent evidence.
        fraction: Uniform draws from [0, 1).
        resamples: How many samples are drawn.

    Returns:
        Low and high end; None for fewer than two units, from which nothing can be said about their spread.
    """
    if len(pairs) < 2 or saved_pct(pairs) is None:
        return None
    values: list[float] = []
    for _ in range(resamples):
        value = saved_pct([pairs[int(fraction() * len(pairs))] for _ in pairs])
        if value is not None:
            values.append(value)
    values.sort()
    return _at(values, _LOW), _at(values, _HIGH)


def percentile(values: Sequence[float], level: float) -> float | None:
    """The value at `level` (0..1) of `values`, by linear interpolation; None where there is none."""
    return _at(sorted(values), level) if values else None


def _at(ordered: Sequence[float], level: float) -> float:
    position = level * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])
