"""Laws of the intervals."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from forerun.core.statistics import Pair, percentile, saved_pct, saved_pct_interval

seconds = st.floats(min_value=0.001, max_value=1e6)
pairs = st.lists(st.builds(Pair, seconds, seconds), min_size=2, max_size=20)


@given(pairs, st.integers(0, 2**32))
def test_an_interval_is_ordered_lies_within_the_units_own_values_and_repeats(units: list[Pair], seed: int) -> None:
    first, again = (saved_pct_interval(units, random.Random(seed).random, resamples=50) for _ in range(2))
    assert first is not None
    assert first == again
    low, high = first
    own = [value for unit in units if (value := saved_pct([unit])) is not None]
    assert min(own) - 1e-6 * (1 + abs(min(own))) <= low <= high <= max(own) + 1e-6 * (1 + abs(max(own)))


@given(seconds, st.integers(2, 20))
def test_units_that_agree_leave_no_doubt(time: float, count: int) -> None:
    interval = saved_pct_interval([Pair(time, time / 2)] * count, random.Random(0).random, resamples=20)
    assert interval is not None
    assert all(abs(end - 50.0) < 1e-9 for end in interval)


@given(st.lists(seconds, min_size=1))
def test_percentiles_are_between_the_extremes(values: list[float]) -> None:
    assert percentile(values, 0.0) == min(values)
    assert percentile(values, 1.0) == max(values)
    middle = percentile(values, 0.5)
    assert middle is not None
    assert min(values) <= middle <= max(values)


def test_one_unit_says_nothing_about_spread_and_no_time_is_no_saving() -> None:
    assert saved_pct_interval([Pair(1.0, 0.5)], random.Random(0).random) is None
    assert saved_pct([]) is None
    assert percentile([], 0.5) is None
