"""Recorded ends count in their order, new ones as they come, and nothing that does not come holds up others."""

from __future__ import annotations

from forerun.core.plan import FailurePolicy, PlanOptions, RecordedEnds, TaskStatus
from tests.unit.plan.driver import Driver, ended, task

ALL = frozenset(range(9))


def test_an_end_waits_for_those_that_were_recorded_before_it() -> None:
    ends: RecordedEnds[str] = RecordedEnds([2, 0, 1])
    ends.add(0, "zero")
    assert ends.next(ALL.__contains__) is None
    ends.add(1, "one")
    ends.add(2, "two")
    assert [ends.next(ALL.__contains__) for _ in range(4)] == ["two", "zero", "one", None]


def test_a_new_end_waits_for_none_and_known_ones_come_first() -> None:
    ends: RecordedEnds[str] = RecordedEnds([2, 0])
    ends.add(5, "new")
    assert ends.next(ALL.__contains__) == "new"
    ends.add(5, "another")
    ends.add(2, "two")
    assert [ends.next(ALL.__contains__) for _ in range(2)] == ["two", "another"]


def test_what_does_not_come_holds_up_nobody_and_may_come_later() -> None:
    ends: RecordedEnds[str] = RecordedEnds([2, 0])
    ends.add(0, "zero")
    assert ends.next({0}.__contains__) == "zero"
    ends.add(2, "two")
    assert ends.next({0}.__contains__) == "two"


def test_a_plan_expects_what_runs_and_what_its_round_may_still_bring() -> None:
    driver = Driver(PlanOptions(in_flight=1))
    driver.add(task("runs"), task("waits", path="b"))
    assert [driver.machine.expects(place) for place in range(3)] == [True, False, True]
    driver.complete()
    assert [driver.machine.expects(place) for place in range(3)] == [True, False, False]
    driver.end("runs")
    assert [driver.machine.expects(place) for place in range(2)] == [False, True]


def test_what_is_told_to_a_plan_that_has_failed_is_skipped() -> None:
    driver = Driver(PlanOptions(failure=FailurePolicy.FAIL_FAST))
    driver.add(task("bad"))
    driver.end("bad", ended(TaskStatus.UNAVAILABLE))
    assert driver.statuses() == ["unavailable"]
    assert driver.add(task("late", path="b"), complete=True) == []
    assert driver.settled["late"].status is TaskStatus.SKIPPED
    assert len(driver.plans) == 1, "its end was told already"


def test_a_late_task_whose_execution_ended_at_that_moment_ends_as_it_did() -> None:
    driver = Driver()
    driver.add(task("write", "write", path="a"), task("read", path="b"), complete=True)
    due = driver.machine.next_time()
    assert due is not None
    driver.tick(due)
    assert driver.cancels == ["write", "read"], "both have the same limit"
    driver.end("write")
    driver.end("read", ended(TaskStatus.CANCELLED))
    assert driver.statuses() == ["ok", "timeout"]
