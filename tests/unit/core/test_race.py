"""When a second attempt starts, and what bounds their number."""

import random

import pytest

from forerun.core.race import Pace, Paces, Race


def test_nothing_is_added_while_too_little_is_known() -> None:
    pace = Pace()
    for _ in range(19):
        assert pace.delay(Race()) is None
        pace.observe(1.0)
    pace.observe(1.0)
    assert pace.delay(Race()) == 1.05


def test_the_delay_is_the_quantile_of_the_recent_calls() -> None:
    pace = Pace()
    for number in range(1, 101):
        pace.observe(float(number))
    assert pace.delay(Race(after_quantile=0.95)) == pytest.approx(1.05 * 95.0)
    assert pace.delay(Race(after_quantile=0.5)) == pytest.approx(1.05 * 50.0)
    for _ in range(512):
        pace.observe(3.0)
    assert pace.delay(Race(after_quantile=0.99)) == pytest.approx(3.15), "what is long ago does not count"


def test_the_cap_holds_for_any_number_of_calls() -> None:
    pace, race = Pace(), Race(most_extra=0.05)
    for _ in range(1_000):
        pace.calls += 1
        if pace.may_add(race):
            pace.extra += 1
        assert pace.extra <= 0.05 * pace.calls
    assert pace.extra == 50


@pytest.mark.parametrize("seed", range(5))
def test_two_stragglers_in_a_hundred_no_longer_make_the_tail(seed: int) -> None:
    """Of a tool with 2 % of calls at 20 times its median: the 99th percentile falls to at most 3 medians."""
    draw = random.Random(seed)
    pace, race = Pace(), Race()

    def seconds() -> float:
        usual = draw.lognormvariate(0.0, 0.2)
        return 20.0 * usual if draw.random() < 0.02 else usual

    waited = []
    for _ in range(4_000):
        pace.calls += 1
        first, delay = seconds(), pace.delay(race)
        if delay is None or first <= delay or not pace.may_add(race):
            pace.observe(first)
            waited.append(first)
            continue
        pace.extra += 1
        end = min(first, delay + seconds())
        pace.observe(end)
        waited.append(end)
    waited = sorted(waited[500:])
    assert waited[int(0.99 * len(waited))] <= 3.0 * waited[len(waited) // 2]
    assert pace.extra <= 0.05 * pace.calls


def test_the_table_forgets_the_least_recently_used_tool() -> None:
    paces = Paces(bound=2)
    first = paces.of("t", "a")
    paces.of("t", "b")
    assert paces.of("t", "a") is first
    paces.of("u", "a")
    assert list(paces.table) == [("t", "a"), ("u", "a")]
