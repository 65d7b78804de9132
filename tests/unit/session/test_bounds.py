"""Bounds of one session's machine."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from forerun.core import limits
from forerun.core.governor import Limits
from forerun.core.outcomes import CallStatus, Outcome
from forerun.core.session import ExecutionResult, Failure
from forerun.orchestrator.session import Recorded
from tests.unit.session.driver import POLICY, Driver, asked, proposal

GENEROUS = replace(POLICY, limits=Limits(concurrent=100, initial_credits=20.0, maximum_credits=1000.0))


def launched(d: Driver) -> int:
    return sum(ahead for _, _, ahead in d.executed)


def test_no_more_speculations_than_the_bound_are_open() -> None:
    d = Driver(policy=GENEROUS)
    d.propose(*[proposal("get", id=number) for number in range(limits.SPECULATIONS_PER_SESSION + 1)])
    assert (launched(d), d.refusals()) == (limits.SPECULATIONS_PER_SESSION, ["bound"])


def test_an_old_result_makes_room_for_a_new_candidate() -> None:
    d = Driver(policy=GENEROUS)
    d.propose(*[proposal("get", id=number) for number in range(limits.SPECULATIONS_PER_SESSION)])
    d.run(until=3.0)
    d.ask(1, asked(0, "get", id=1000))
    d.run(until=6.0)
    d.propose(proposal("get", id=2000))
    assert (launched(d), d.refusals()) == (limits.SPECULATIONS_PER_SESSION + 1, [])
    assert d.outcomes() == {Outcome.MISS: 1}


def test_a_tool_that_is_away_is_tried_so_often_with_growing_waits() -> None:
    away = ExecutionResult(status=CallStatus.UNAVAILABLE, failure=Failure("TOOL_FAILED", "no answer"))
    d = Driver(results={"get": away}, seconds={"get": 0.0})
    d.ask(1, asked(0, "get", id=1))
    d.run()
    assert len(d.executed) == limits.CALL_ATTEMPTS
    answer = d.answers[1, 0]
    assert answer.status is CallStatus.UNAVAILABLE and answer.failure is not None
    assert answer.failure.reason == "TOOL_FAILED"
    assert d.now == limits.RETRY_BACKOFF_INITIAL_SECONDS * (1 + 2)


def test_waits_for_a_platform_that_is_away_grow_up_to_the_bound() -> None:
    """The platform's own failures pass: those are tried until the deadline."""
    away = ExecutionResult(status=CallStatus.UNAVAILABLE, failure=Failure("PEER_UNAVAILABLE", ""), not_started=True)
    d = Driver(results={"get": away}, seconds={"get": 0.0})
    d.ask(1, asked(0, "get", id=1), timeout_seconds=limits.DEADLINE_MAX_SECONDS)
    starts: list[float] = []
    for _ in range(2_000):  # a long deadline has room for many, and no number may grow out of its type
        starts.append(d.now)
        due = d.machine.next_time()
        assert due is not None
        d.run(until=due)
    waits = [later - earlier for earlier, later in pairwise(starts)]
    assert max(waits) == limits.RETRY_BACKOFF_MAX_SECONDS
    assert waits[0] == limits.RETRY_BACKOFF_INITIAL_SECONDS and waits == sorted(waits)


def test_only_the_latest_ids_of_events_are_known() -> None:
    recorded = Recorded()
    for number in range(limits.EVENT_IDS_PER_SESSION + 1):
        recorded.add(f"id-{number}", number)
    assert recorded.number("id-0") is None
    assert recorded.number("id-1") == 1
    assert recorded.number(f"id-{limits.EVENT_IDS_PER_SESSION}") == limits.EVENT_IDS_PER_SESSION
