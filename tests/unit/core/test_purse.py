"""The budget of one session."""

from __future__ import annotations

from forerun.core.governor import Limits, Purse


def test_a_purse_begins_with_no_more_than_it_may_hold() -> None:
    """It used to lose what was above its bound with the first call, and what was earned by that was below zero."""
    purse = Purse(Limits(initial_credits=1_000.0, maximum_credits=20.0, credits_per_call=0.5))
    assert purse.credits == 20.0
    purse.earn()
    assert (purse.credits, purse.earned) == (20.0, 0.0)
    purse.reserve(0.0)
    purse.earn()
    assert (purse.credits, purse.earned) == (19.5, 0.5)
