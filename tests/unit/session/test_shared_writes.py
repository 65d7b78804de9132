"""Writes of shared resources: begun for all sessions before they start, and ended when nothing of them can follow."""

from __future__ import annotations

import pytest

from forerun.core.outcomes import CallStatus, Served
from forerun.core.session import ExecutionResult, Failure
from tests.unit.session.driver import Driver, asked, proposal

BROKEN = ExecutionResult(
    status=CallStatus.UNAVAILABLE, failure=Failure("TOOL_FAILED", ""), seconds=1.0, may_continue=True
)


def write(d: Driver, tool: str = "sell", *, timeout_seconds: float = 50.0) -> None:
    """Message 1 is a write of stock 1."""
    d.ask(1, asked(0, tool, id=1, v=1), timeout_seconds=timeout_seconds)


def cancel(d: Driver) -> None:
    """The agent takes it back."""
    d.do(d.machine.cancel((1, 0), d.now))


def served(d: Driver, *turns: int) -> list[Served]:
    """How reads of stock 1 are answered, one after the other."""
    for turn in turns:
        d.ask(turn, asked(0, "stock", id=1))
        d.run(until=d.now + 3.0)
    return [d.answers[(turn, 0)].served for turn in turns]


@pytest.mark.parametrize("tool", ["sell", "fill"])
def test_a_write_begins_before_it_runs_and_ends_with_its_answer(tool: str) -> None:
    d = Driver()
    write(d, tool)
    assert [one.seconds for one in d.begun.values()] == [50.0]
    d.run()
    steps = [line for line in d.log if line in {"begin stock/1", f"run {tool}", "count stock/1"}]
    assert steps == ["begin stock/1", f"run {tool}", "count stock/1"]
    assert not d.begun and not d.unsettled


def test_tries_of_one_call_are_one_write() -> None:
    d = Driver()
    d.results["fill"] = BROKEN
    write(d, "fill")
    d.run(until=3.0)
    begun = set(d.begun)
    assert len(begun) == 1 and d.log.count("begin stock/1") == 1
    del d.results["fill"]
    d.run(until=10.0)
    assert d.answers[(1, 0)].status is CallStatus.OK
    assert not d.begun and d.log[-2:].count("count stock/1 unsettled") == 1, "the first try may go on"


def test_nothing_starts_ahead_while_it_runs_and_reads_get_over_it() -> None:
    d = Driver()
    write(d)
    d.propose(proposal("stock", id=1), proposal("stock", id=2))
    d.run(until=1.9)
    assert d.refusals() == ["being_written"]
    assert sum(tool == "stock" for tool, _, _ in d.executed) == 1
    d.run(until=6.0)
    assert served(d, 2, 3, 4) == [Served.DIRECT, Served.DIRECT, Served.MEMO]


def test_what_was_told_to_stop_runs_until_it_has() -> None:
    d = Driver(stop_seconds=3.0)
    d.seconds["sell"] = 100.0
    write(d)
    d.run(until=1.0)
    cancel(d)
    d.run(until=2.0)
    assert d.answers[(1, 0)].status is CallStatus.OUTCOME_UNKNOWN and d.begun
    d.run(until=5.0)
    assert not d.begun and not d.unsettled, "it has really ended"


def test_what_may_go_on_after_it_was_told_to_stop_is_not_settled() -> None:
    d = Driver(stop_seconds=3.0, uncertain={"sell"})
    d.seconds["sell"] = 100.0
    write(d, timeout_seconds=1.0)
    d.run(until=5.0)
    assert not d.begun and "self:stock/1" in d.unsettled


def test_a_stopped_try_does_not_settle_an_earlier_one() -> None:
    d = Driver(stop_seconds=1.0)
    d.results["fill"] = BROKEN
    write(d, "fill")
    d.run(until=2.05)
    del d.results["fill"]
    d.seconds["fill"] = 100.0
    d.run(until=4.0)
    cancel(d)
    d.run(until=6.0)
    assert not d.begun and "self:stock/1" in d.unsettled


@pytest.mark.parametrize("how", ["cancel", "lose"])
def test_a_write_that_is_taken_back_while_it_begins_does_not_run_and_is_ended(how: str) -> None:
    d = Driver()
    d.do(d.machine.asked(1, (asked(0, "fill", id=1),), d.now))
    assert d.begun
    d.do(d.machine.cancel((1, 0), d.now) if how == "cancel" else d.machine.lose("taken over", d.now))
    d.run()
    assert not d.begun and not d.unsettled and not d.executed


def test_a_write_that_cannot_be_begun_does_not_run_and_is_ended() -> None:
    d = Driver()
    d.broker_up = False
    write(d)
    answer = d.answers[(1, 0)]
    assert (answer.status, answer.failure and answer.failure.reason) == (CallStatus.UNAVAILABLE, "BROKER_UNAVAILABLE")
    assert not d.begun and not d.unsettled and not d.executed


@pytest.mark.parametrize("results", [{}, {"fill": BROKEN}], ids=["running", "between two tries"])
def test_what_is_left_to_another_owner_may_go_on(results: dict[str, ExecutionResult]) -> None:
    d = Driver(results=results)
    d.seconds["fill"] = 1.0
    write(d, "fill")
    d.run(until=1.05 if results else 0.5)
    d.do(d.machine.lose("taken over", d.now))
    assert not d.begun and "self:stock/1" in d.unsettled


def test_what_was_told_to_stop_ends_also_when_the_session_is_somebody_elses() -> None:
    d = Driver(stop_seconds=3.0)
    d.seconds["sell"] = 100.0
    write(d)
    d.run(until=1.0)
    cancel(d)
    d.do(d.machine.lose("taken over", d.now))
    d.run(until=2.0)
    assert d.begun
    d.run(until=5.0)
    assert not d.begun and not d.unsettled
