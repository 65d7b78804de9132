"""What a pool gets under loads that a person would call by name."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pytest

from forerun.core.capacity import Decision, History, Reason, Rules, Signal, decide, first_history
from tests.bench.capacity.arrivals import Arrival
from tests.bench.capacity.figures import changes_under_swing, quantile, seconds_to_follow
from tests.bench.capacity.simulation import Pool


def play(rules: Rules, demands: Iterable[int | None], start: int = 1, **signal: float) -> list[Decision]:
    """One look a second; None is a second without a signal."""
    history: History = first_history(start, rules, 0.0)
    done: list[Decision] = []
    ready = start
    for second, demand in enumerate(demands):
        heard = Signal(
            at=float(second),
            age_seconds=None if demand is None else 1.0,
            running=min(demand or 0, ready * rules.slots_per_replica),
            waiting=max(0, (demand or 0) - ready * rules.slots_per_replica),
            ready_replicas=ready,
            gain=signal.get("gain", 1.0),
            speculative_wanted=int(signal.get("wanted", 0)),
        )
        history, decision = decide(history, heard, rules)
        ready = decision.replicas
        done.append(decision)
    return done


def test_an_outage_of_the_signal_keeps_ten_replicas_and_their_slots() -> None:
    rules = Rules(min_replicas=1, max_replicas=20, scale_down_seconds=60)
    before, *_, last = play(rules, [*[8] * 100, *[None] * 3_600], start=10)[99:]
    assert (last.replicas, last.speculative_slots) == (before.replicas, before.speculative_slots) == (10, 0)
    assert last.reason is Reason.UNKNOWN


def test_a_queued_call_wakes_a_pool_at_zero_with_the_next_look() -> None:
    rules = Rules(min_replicas=0, max_replicas=5, idle_seconds=30, scale_down_seconds=10)
    asleep, awake = play(rules, [*[0] * 60, 1], start=1)[-2:]
    assert (asleep.replicas, asleep.reason) == (0, Reason.IDLE)
    assert awake.replicas == 1


def test_a_pool_that_is_idle_for_a_moment_keeps_its_last_replica() -> None:
    rules = Rules(min_replicas=0, max_replicas=5, idle_seconds=600, scale_down_seconds=10)
    assert play(rules, [1, *[0] * 500])[-1].replicas == 1


def test_a_pool_that_may_sleep_at_once_does_not_sleep_while_it_works() -> None:
    rules = Rules(min_replicas=0, max_replicas=9, idle_seconds=0, scale_down_seconds=0)
    assert [one.replicas for one in play(rules, [4, 4, 0, 4], start=2)] == [5, 5, 0, 5]


def test_a_rise_is_followed_at_once_and_a_fall_after_the_window() -> None:
    rules = Rules(max_replicas=100, scale_down_seconds=60)
    done = play(rules, [*[8] * 10, *[40] * 10, *[8] * 200], start=10)
    assert done[10].replicas >= 50
    assert done[60].replicas >= 50
    assert done[-1].replicas <= 14


def test_work_in_progress_counts_as_much_as_what_waits() -> None:
    rules = Rules(max_replicas=100, scale_down_seconds=30)
    assert play(rules, [40] * 300, start=60)[-1].replicas >= 50


@pytest.mark.parametrize("fixed", [True, False])
def test_a_swing_of_ten_per_cent_changes_next_to_nothing(fixed: bool) -> None:
    found = [
        changes_under_swing(level, period, phase, fixed=fixed)
        for level in (1, 3, 5, 10, 30, 100, 500)
        for period in (10.0, 60.0, 300.0, 900.0)
        for phase in (0.0, math.pi / 2, 3 * math.pi / 2)
    ]
    assert max(found) <= 2


@pytest.mark.parametrize("rising", [True, False])
def test_slots_follow_a_step_within_fifteen_seconds(rising: bool) -> None:
    assert max(seconds_to_follow(low, high, rising=rising) for low, high in ((0, 10), (5, 20), (100, 200))) <= 15


def test_speculation_is_given_back_before_an_agent_waits() -> None:
    rules = Rules(fixed_replicas=40, speculative_slots_max=40)
    quiet, busy = play(rules, [*[5] * 60, *[36] * 3], start=40)[59::3]
    assert quiet.speculative_slots > 15
    assert busy.speculative_slots == 0
    assert busy.replicas == 40


def test_speculation_that_loses_gets_no_slots_and_unknown_gain_changes_nothing() -> None:
    rules = Rules(fixed_replicas=40, speculative_slots_max=40)
    assert play(rules, [5] * 30, start=40, gain=-0.1)[-1].speculative_slots == 0
    history = first_history(40, rules, 0.0)
    for second, gain in enumerate([1.0, 1.0, -0.1, None, None]):
        signal = Signal(at=float(second), age_seconds=1.0, running=5, gain=gain, ready_replicas=40)
        history, _ = decide(history, signal, rules)
    assert history.last.speculative_slots == 0


def test_replicas_for_speculation_are_bought_only_where_they_pay() -> None:
    rules = Rules(max_replicas=100, speculative_slots_max=50, speculative_share=0.2, slot_second_cost=1.0)
    paying = play(rules, [40] * 30, start=50, gain=2.0, wanted=50)[-1]
    losing = play(rules, [40] * 30, start=50, gain=0.5, wanted=50)[-1]
    assert (losing.replicas, losing.reason) == (50, Reason.LOAD)
    assert (paying.replicas, paying.reason) == (60, Reason.SPECULATION) or paying.replicas > losing.replicas


def test_drafts_get_shorter_with_the_load_and_none_when_agents_wait() -> None:
    rules = Rules(fixed_replicas=100, token_depth_max=8)
    depths = [play(rules, [demand] * 30, start=100)[-1].token_depth for demand in (0, 40, 70, 95, 120)]
    assert depths == [8, 8, 4, 0, 0]


def test_the_simulation_shows_the_harm_of_speculation_that_is_not_held_back() -> None:
    """The control: with every free slot lent, agents do wait longer, so a figure of no harm means something."""

    class Generous(Pool):
        def _report(self, now: float) -> None:
            super()._report(now)
            self._grant = 10_000

        def _happen(self, now: float, what: str, value: int) -> None:
            if what != "apply":
                super()._happen(now, what, value)

    arrivals = [Arrival(n * 0.5, 4.0 + (n * 7919 % 13) / 2) for n in range(4_000)]
    rules = Rules(fixed_replicas=24, speculative_slots_max=24)
    waits = {kind.__name__: quantile(kind(rules, 24).play(arrivals, 2_000.0).waits, 0.99) for kind in (Pool, Generous)}
    alone = quantile(Pool(Rules(fixed_replicas=24, speculative_slots_max=0), 24).play(arrivals, 2_000.0).waits, 0.99)
    assert waits["Pool"] <= alone * 1.02
    assert waits["Generous"] > alone * 1.02
