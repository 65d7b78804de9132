"""Laws of the capacity function that hold for every history of a load."""

from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from forerun.core.capacity import Decision, History, Reason, Rules, Signal, decide, first_history


@st.composite
def rules(draw: st.DrawFn) -> Rules:
    least = draw(st.integers(0, 5))
    return Rules(
        min_replicas=least,
        max_replicas=draw(st.integers(max(1, least), 60)),
        fixed_replicas=draw(st.none() | st.none() | st.integers(0, 20)),
        slots_per_replica=draw(st.sampled_from([1, 2, 8])),
        target_utilisation=draw(st.sampled_from([0.1, 0.5, 0.8, 1.0])),
        scale_down_seconds=draw(st.sampled_from([0.0, 5.0, 300.0])),
        idle_seconds=draw(st.sampled_from([0.0, 10.0, 600.0])),
        speculative_slots_max=draw(st.integers(0, 50)),
        speculative_share=draw(st.sampled_from([0.0, 0.2, 1.0])),
        token_depth_max=draw(st.none() | st.integers(0, 16)),
    )


def looks() -> st.SearchStrategy[list[Signal]]:
    one = st.builds(
        Signal,
        at=st.floats(0.5, 30.0),  # since the one before
        age_seconds=st.none() | st.sampled_from([0.0, 1.0, 9.0, 11.0, 1e6]),
        running=st.integers(0, 60),
        waiting=st.integers(0, 5) | st.just(0),
        speculative_wanted=st.integers(0, 60),
        gain=st.none() | st.floats(-2.0, 5.0),
        ready_replicas=st.integers(0, 60),
    )
    return st.lists(one, min_size=1, max_size=60).map(_in_time)


def _in_time(signals: list[Signal]) -> list[Signal]:
    now, placed = 0.0, []
    for signal in signals:
        now += signal.at
        placed.append(replace(signal, at=now))
    return placed


def played(rules: Rules, signals: list[Signal], start: int) -> list[tuple[Signal, History, Decision]]:
    history, done = first_history(start, rules, 0.0), []
    for signal in signals:
        history, decision = decide(history, signal, rules)
        done.append((signal, history, decision))
    return done


@given(rules(), looks(), st.integers(0, 60))
def test_nothing_is_decided_beyond_the_limits(rules: Rules, signals: list[Signal], start: int) -> None:
    start = max(rules.min_replicas, min(start, rules.max_replicas))
    for _, _, decision in played(rules, signals, start):
        if rules.fixed_replicas is not None:
            assert decision.replicas == rules.fixed_replicas
        else:
            assert rules.min_replicas <= decision.replicas <= rules.max_replicas
        assert 0 <= decision.speculative_slots <= rules.speculative_slots_max
        if rules.token_depth_max is None:
            assert decision.token_depth is None
        else:
            assert decision.token_depth is not None
            assert 0 <= decision.token_depth <= rules.token_depth_max


@given(rules(), looks(), st.integers(0, 60))
def test_an_unknown_signal_changes_nothing(rules: Rules, signals: list[Signal], start: int) -> None:
    before = first_history(start, rules, 0.0).last
    for signal, _, decision in played(rules, signals, start):
        if signal.age_seconds is None or signal.age_seconds > rules.stale_after_seconds:
            assert decision.reason is Reason.UNKNOWN
            assert decision.speculative_slots == before.speculative_slots
            assert decision.token_depth == before.token_depth
            assert decision.replicas == (before.replicas if rules.fixed_replicas is None else rules.fixed_replicas)
        before = decision


@given(rules(), looks(), st.integers(0, 60))
def test_speculation_never_gets_a_slot_that_agents_wait_for_or_use(
    rules: Rules, signals: list[Signal], start: int
) -> None:
    for signal, _, decision in played(rules, signals, start):
        if decision.reason is Reason.UNKNOWN:
            continue
        slots = signal.ready_replicas * rules.slots_per_replica
        assert decision.speculative_slots + signal.running <= max(slots, signal.running)
        if signal.waiting:
            assert decision.speculative_slots == 0


@given(rules(), looks(), st.integers(0, 60))
def test_replicas_are_taken_away_only_when_the_load_was_lower_for_long(
    rules: Rules, signals: list[Signal], start: int
) -> None:
    if rules.fixed_replicas is not None or rules.scale_down_seconds == 0.0:
        return
    start = max(rules.min_replicas, min(start, rules.max_replicas))
    heard: list[Signal] = []
    before = start
    for signal, history, decision in played(rules, signals, start):
        if decision.reason is Reason.UNKNOWN:
            continue
        heard.append(signal)
        if decision.replicas < before and decision.reason is not Reason.IDLE:
            recent = [one for one in heard if signal.at - one.at <= rules.scale_down_seconds]
            needed = math.ceil(max(one.demand for one in recent) / rules.slots_per_replica)
            assert decision.replicas >= min(needed, rules.max_replicas)
        before = decision.replicas
        assert len(history.needs.steps) <= 21
        assert len(history.levels.steps) <= 8


@given(rules(), looks(), st.integers(0, 60))
def test_the_same_history_gives_the_same_decisions(rules: Rules, signals: list[Signal], start: int) -> None:
    assert played(rules, signals, start) == played(rules, signals, start)


@given(rules(), looks())
def test_work_wakes_a_pool_at_zero_at_once(rules: Rules, signals: list[Signal]) -> None:
    if rules.fixed_replicas is not None:
        return
    history = first_history(0, rules, 0.0)
    for signal in signals:
        known = replace(signal, age_seconds=1.0)
        history, decision = decide(history, known, rules)
        if known.demand > 0:
            assert decision.replicas >= 1
