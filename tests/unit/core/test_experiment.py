"""What a hold-out says: the planted effect is found, nothing else is, and too little says nothing."""

import math
import random
from collections.abc import Callable

import pytest

from forerun.core.experiment import Finding, Unit, effect, student_quantile

SESSIONS, TASKS = 240, 60


def units(seed: int, *, factor: float = 1.0, by_task: bool = False) -> list[Unit]:
    """Sessions of very different length, whose tasks differ in how well their time is foreseen."""
    world, groups = random.Random("world"), random.Random(seed)
    surprise = [world.gauss(0.0, 0.05) for _ in range(TASKS)]
    of_task = [groups.random() < 0.5 for _ in range(TASKS)]
    made = []
    for number in range(SESSIONS):
        task = number % TASKS
        expected = math.exp(world.gauss(4.0, 1.0))
        seconds = expected * math.exp(surprise[task] + world.gauss(0.0, 0.05 * (1.0 + 4.0 / expected)))
        treated = of_task[task] if by_task else groups.random() < 0.5
        made.append(Unit(treated, seconds * factor if treated else seconds, expected, str(task)))
    return made


def count(finding: Finding, runs: int, make: Callable[[int], list[Unit]]) -> int:
    found = 0
    for seed in range(runs):
        one = effect(make(seed))
        assert one is not None
        found += one.finding is finding
    return found


@pytest.mark.parametrize("by_task", [False, True])
def test_the_interval_holds_what_it_promises(by_task: bool) -> None:
    quiet = count(Finding.NOTHING, 400, lambda seed: units(seed, by_task=by_task))
    assert 0.92 * 400 <= quiet <= 0.98 * 400


def test_a_harm_of_five_per_cent_and_a_gain_are_found() -> None:
    assert count(Finding.HARM, 50, lambda seed: units(seed, factor=1.05)) >= 40
    assert count(Finding.GAIN, 50, lambda seed: units(seed, factor=0.95)) >= 40


def test_the_estimate_is_the_planted_effect_and_says_what_a_precision_needs() -> None:
    one = effect(units(1, factor=1.10))
    assert one is not None
    assert one.low < -10.0 < one.high
    half = (one.high - one.low) / 2.0
    assert one.sessions_for(half) == SESSIONS
    assert one.sessions_for(half / 2.0) == 4 * SESSIONS


def test_too_few_or_too_alike_sessions_say_nothing() -> None:
    assert effect([]) is None
    assert effect([unit for unit in units(1) if unit.treated]) is None
    assert effect([Unit(number % 2 == 0, 10.0, 10.0, str(number)) for number in range(40)]) is None
    assert effect([Unit(number % 2 == 0, 1.0 + number, 1.0 + number**2, "one") for number in range(40)]) is None


@pytest.mark.parametrize(("degrees", "quantile"), [(6, 2.447), (10, 2.228), (30, 2.042), (1_000, 1.962)])
def test_students_quantile_is_that_of_the_tables(degrees: int, quantile: float) -> None:
    assert student_quantile(0.975, degrees) == pytest.approx(quantile, abs=0.003)
