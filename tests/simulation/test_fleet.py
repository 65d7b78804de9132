"""A run is bounded, and a bound that was reached is said as such, wherever the run was at that moment."""

from __future__ import annotations

import signal

import pytest

from tests.simulation import fleet


# The first signal may come up in a callback of the collector, where nothing can be raised; the next one ends the run.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("seconds", [0.03, 0.08, 0.13, 0.18, 0.23, 0.28])
def test_a_run_that_takes_too_long_ends_and_says_nothing_else(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    handlers = [signal.getsignal(number) for number in (signal.SIGPROF, signal.SIGALRM)]
    monkeypatch.setattr(fleet, "_PROCESSOR_SECONDS", seconds)
    report = fleet.bounded(30, twice=[30])
    assert report.violations == [f"the run failed: it takes more than {seconds:g} seconds of processor time"]
    assert [signal.getsignal(number) for number in (signal.SIGPROF, signal.SIGALRM)] == handlers


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_after_a_run_that_was_ended_another_one_is_what_it_was_before(monkeypatch: pytest.MonkeyPatch) -> None:
    before = fleet.bounded(30)
    for seconds in (0.04, 0.07, 0.1, 0.13, 0.16, 0.19):  # other things are in the middle each time
        with monkeypatch.context() as patch:
            patch.setattr(fleet, "_REAL_SECONDS", seconds)
            ended = fleet.bounded(30)
        assert ended.violations == [f"the run failed: it takes more than {seconds:g} seconds of real time"]
        again = fleet.bounded(30)
        assert (again.digest, again.violations) == (before.digest, []), seconds
