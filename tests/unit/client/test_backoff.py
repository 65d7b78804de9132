"""The pauses between the connections of a session."""

import pytest

from forerun.client._backoff import BACKOFF_INITIAL_SECONDS, BACKOFF_MAX_SECONDS, Backoff


def _pauses(backoff: Backoff, count: int) -> list[float]:
    return [backoff.pause(None) for _ in range(count)]


def test_pauses_double_up_to_the_longest() -> None:
    pauses = _pauses(Backoff(0.0, lambda: 1.0), 8)
    assert pauses[:3] == pytest.approx([BACKOFF_INITIAL_SECONDS * factor for factor in (1, 2, 4)])
    assert pauses[-1] == BACKOFF_MAX_SECONDS


def test_jitter_takes_up_to_half_of_a_pause() -> None:
    assert Backoff(0.0, lambda: 0.0).pause(None) == pytest.approx(BACKOFF_INITIAL_SECONDS / 2)


def test_the_platform_may_ask_for_a_longer_pause_but_not_for_a_shorter_one() -> None:
    backoff = Backoff(0.0, lambda: 1.0)
    assert backoff.pause(30.0) == 30.0
    assert backoff.pause(0.001) == pytest.approx(2 * BACKOFF_INITIAL_SECONDS)


def test_a_good_connection_makes_the_next_pause_short_again_and_a_short_one_does_not() -> None:
    backoff = Backoff(0.0, lambda: 1.0)
    _pauses(backoff, 4)
    backoff.broke(started_at=10.0, now=11.0)
    assert backoff.pause(None) == pytest.approx(BACKOFF_INITIAL_SECONDS * 16)
    backoff.broke(started_at=20.0, now=26.0)
    assert backoff.pause(None) == pytest.approx(BACKOFF_INITIAL_SECONDS)


def test_only_after_a_minute_without_a_good_connection_it_waits_for_something_to_say() -> None:
    backoff = Backoff(0.0, lambda: 1.0)
    assert not backoff.idle(60.0)
    assert backoff.idle(60.1)
    backoff.broke(started_at=60.0, now=70.0)
    assert not backoff.idle(130.0)
