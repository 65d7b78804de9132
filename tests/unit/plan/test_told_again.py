"""Plans that are told again after a broken stream, and go on from their journal after a crash."""

from __future__ import annotations

import pytest

from forerun.core.plan import (
    Cause,
    Early,
    FailurePolicy,
    PlanJournal,
    PlanOptions,
    PlanStatus,
    TaskEnd,
    TaskStatus,
)
from tests.unit.plan.driver import Driver, ended, ok, task

CUT = Cause("cut_off", "the stream broke")


def test_what_a_failure_had_stopped_is_asked_for_its_end_when_the_plan_is_told_again() -> None:
    """Told one by one, the failure is known before the tasks that it had stopped; one of them had never begun."""
    driver = Driver(PlanOptions(failure=FailurePolicy.FAIL_FAST, in_flight=1), begun=[0, 1, 2])
    driver.add(task("1", q="a"))
    driver.end("1", ended(TaskStatus.REJECTED))
    assert not driver.plans, "tasks that had begun are still to come"
    assert driver.add(task("2", "write", path="f")) == ["2"]
    assert driver.add(task("3", q="b")) == ["3"]
    assert driver.cancels == ["2", "3"]
    driver.end("2", TaskEnd(status=TaskStatus.OUTCOME_UNKNOWN))
    assert not driver.plans
    driver.end("3", TaskEnd(status=TaskStatus.CANCELLED))
    assert driver.statuses() == ["rejected", "outcome_unknown", "cancelled"]
    assert driver.add(task("4", q="c"), complete=True) == []
    assert driver.settled["4"].status is TaskStatus.SKIPPED


def test_what_is_held_back_of_a_plan_that_is_told_again_may_still_end() -> None:
    """Its recorded end comes once the message is complete, so those that were recorded after it wait until then."""
    driver = Driver(PlanOptions(failure=FailurePolicy.FAIL_FAST, early=Early.READS), begun=[0, 1])
    assert driver.add(task("1", "write", path="f"), task("2", q="a")) == ["2"]
    assert driver.machine.expects(0)
    assert driver.complete() == ["1"] and driver.machine.expects(0)
    driver.end("1")
    assert not driver.machine.expects(0)
    driver.end("2", ended(TaskStatus.REJECTED))
    assert driver.statuses() == ["ok", "rejected"]


def test_what_is_held_back_of_a_message_that_is_cut_off_does_not_end_any_more() -> None:
    driver = Driver(PlanOptions(early=Early.READS), begun=[0, 1])
    driver.add(task("1", "write", path="f"), task("2", q="a"))
    driver.take(driver.machine.refuse(CUT, 0.0))
    assert not driver.machine.expects(0)


@pytest.mark.parametrize(
    "options",
    [
        PlanOptions(failure=FailurePolicy.FAIL_FAST, early=Early.READS),
        PlanOptions(failure=FailurePolicy.FAIL_FAST, in_flight=1),
    ],
    ids=["held", "offered"],
)
def test_what_a_failure_had_stopped_is_asked_for_its_end_also_where_it_had_to_wait(options: PlanOptions) -> None:
    """Skipped means that it never ran."""
    driver = Driver(options, begun=[0, 1])
    driver.add(task("1", q="a"), task("2", "write", path="f"), task("3", "write", path="g"))
    assert driver.end("1", ended(TaskStatus.REJECTED)) == ["2"]
    assert driver.cancels == ["2"] and not driver.plans
    driver.end("2", TaskEnd(status=TaskStatus.OUTCOME_UNKNOWN))
    assert driver.statuses() == ["rejected", "outcome_unknown", "skipped"]


def test_what_had_shared_an_outcome_has_it_again_also_where_the_plan_has_failed_since() -> None:
    driver = Driver(PlanOptions(failure=FailurePolicy.FAIL_FAST), begun=[0, 1, 2])
    driver.add(task("1", q="a"), task("2", q="b"))
    driver.end("1", ok("one"))
    driver.end("2", ended(TaskStatus.REJECTED))
    assert driver.add(task("3", q="a"), complete=True) == []
    assert driver.statuses() == ["ok", "rejected", "ok"]
    assert driver.settled["3"].shared_with == "1"


def test_a_plan_that_is_told_again_and_ends_earlier_waits_for_nothing() -> None:
    driver = Driver(PlanOptions(failure=FailurePolicy.FAIL_FAST), begun=[0, 1])
    driver.add(task("1", q="a"))
    driver.end("1", ended(TaskStatus.REJECTED))
    driver.complete()
    assert driver.statuses() == ["rejected"]


@pytest.mark.parametrize("refused", [False, True], ids=["cancelled", "refused"])
def test_a_failed_plan_that_is_cut_off_waits_for_no_task_that_had_begun(refused: bool) -> None:
    """Those of its next round had begun too, or those of another message that had its number."""
    driver = Driver(PlanOptions(failure=FailurePolicy.FAIL_FAST), begun=[0, 1])
    driver.add(task("1", q="a"))
    driver.end("1", ended(TaskStatus.REJECTED))
    assert not driver.plans, "the second one may still be to come"
    driver.take(driver.machine.refuse(CUT, 0.0) if refused else driver.machine.cancel(0.0))
    assert [plan.status for plan in driver.plans] == [PlanStatus.FAILED]
    assert driver.statuses() == ["rejected"]
    driver.take(driver.machine.reopen(0.0))
    assert driver.add(task("2", q="b")) == ["2"]
    driver.end("2", ended(TaskStatus.REJECTED))
    assert [plan.round for plan in driver.plans] == [0, 1]


def test_a_round_after_one_that_was_cut_off_waits_for_what_had_begun_of_it() -> None:
    driver = Driver(PlanOptions(failure=FailurePolicy.FAIL_FAST), begun=[0, 1, 2])
    driver.add(task("1", q="a"))
    driver.end("1", ended(TaskStatus.REJECTED))
    driver.take(driver.machine.refuse(CUT, 0.0))
    driver.take(driver.machine.reopen(0.0))
    driver.add(task("2", q="b"))
    driver.end("2", ended(TaskStatus.REJECTED))
    assert [plan.round for plan in driver.plans] == [0], "the third one had begun"
    assert driver.add(task("3", q="c")) == ["3"]
    driver.end("3", TaskEnd(status=TaskStatus.CANCELLED))
    assert driver.statuses() == ["rejected", "rejected", "cancelled"]


@pytest.mark.parametrize("again", [False, True])
def test_what_was_late_when_another_one_failed_is_what_was_recorded(again: bool) -> None:
    driver = Driver(PlanOptions(failure=FailurePolicy.FAIL_FAST))
    driver.add(task("1", q="a"), task("2", q="b"), task("3", q="c"), complete=True)
    if not again:
        driver.tick(driver.machine.next_time() or 0.0)  # all of them are late
    driver.end("1", ended(TaskStatus.TIMEOUT))
    driver.end("2", ended(TaskStatus.TIMEOUT))
    driver.end("3", ok("at that moment"))
    assert driver.statuses() == ["timeout", "timeout", "cancelled"]


# ---------------------------------------------------------------- after a crash


def test_a_plan_goes_on_from_its_journal() -> None:
    tasks = (
        task("1", "write", path="ledger"),
        task("2", q="approval"),
        task("3", "write", path="b", text="$2"),
        task("4", "write", path="c"),
        task("5", "calc", x="$4"),
    )
    before = Driver()
    before.add(*tasks, complete=True)
    before.end("1", ok("appended"))
    journal = PlanJournal(rounds=(tasks,), settled=before.settled, started=frozenset(before.starts))
    after = Driver()
    assert after.take(after.machine.restore(journal, 50.0)) == ["2"], "the finished write is not repeated"
    assert after.settled["4"].status is TaskStatus.OUTCOME_UNKNOWN and "may not be repeated" in str(
        after.settled["4"].cause
    )
    assert "1" not in after.settled, "it was told before"
    assert after.end("2", ok("yes")) == ["3"]
    after.end("3")
    assert after.statuses() == ["ok", "ok", "ok", "outcome_unknown", "skipped"]
    assert after.plans[0].results[0].content == b'"appended"'


def test_a_plan_that_was_stopped_stays_stopped_after_a_crash() -> None:
    tasks = (task("1", q="a"), task("2", "write", path="x"), task("3", q="b"))
    journal = PlanJournal(rounds=(tasks,), started=frozenset({"1", "2"}), stopped=CUT, status=PlanStatus.CANCELLED)
    driver = Driver()
    assert driver.take(driver.machine.restore(journal, 0.0)) == []
    assert driver.statuses() == ["cancelled", "outcome_unknown", "cancelled"]
    assert driver.plans[0].status is PlanStatus.CANCELLED and driver.plans[0].cause == CUT


def test_a_later_round_goes_on_after_a_crash_whatever_failed_in_an_earlier_one() -> None:
    first = Driver(PlanOptions(failure=FailurePolicy.FAIL_FAST))
    first.add(task("1", q="a"), complete=True)
    first.end("1", ended(TaskStatus.UNAVAILABLE))
    second = (task("2", q="b"), task("3", "calc", x="$2"))
    journal = PlanJournal(rounds=((task("1", q="a"),), second), settled=first.settled, complete=False)
    driver = Driver(PlanOptions(failure=FailurePolicy.FAIL_FAST))
    assert driver.take(driver.machine.restore(journal, 0.0)) == ["2"]
    driver.end("2", ok(1))
    assert driver.add(task("4", q="c"), complete=True) == ["4"]
