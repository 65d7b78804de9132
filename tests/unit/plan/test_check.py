"""What is no plan is refused before anything runs, with the names of the tasks (case A17)."""

from __future__ import annotations

import time

import pytest

from forerun.core import limits
from forerun.core.plan import PlanError, PlanOptions, Task
from forerun.core.plan.check import check
from tests.unit.plan.driver import Driver, task


def refused(*tasks: Task, options: PlanOptions | None = None) -> PlanError:
    """What a plan is told; nothing of it may have run."""
    driver = Driver(options)
    began = time.perf_counter()
    with pytest.raises(PlanError) as caught:
        driver.machine.add(tasks, 0.0)
    assert time.perf_counter() - began < 5.0  # 0.1 s on an idle machine
    assert driver.complete() == [] and not driver.starts and driver.plans[0].results == ()
    return caught.value


def test_a_task_that_needs_itself() -> None:
    error = refused(task("a", q="$a.x"))
    assert error.reason == "self_reference" and error.problems[0].tasks == ("a",)
    assert str(error) == "task a, argument $.q: $a.x names the task itself"


def test_a_cycle_is_named_in_its_order() -> None:
    error = refused(task("a", q="$b"), task("b", q="see $c"), task("c", x={"y": ["$a[0]"]}), task("d", q="$c"))
    assert error.reason == "cycle" and str(error) == "tasks that wait for each other: a -> b -> c -> a"
    assert error.problems[0].tasks == ("a", "b", "c") and len(error.problems) == 1


def test_a_cycle_by_order_alone() -> None:
    assert "a -> b -> a" in str(refused(task("a", after=("b",)), task("b", q="$a")))


def test_a_task_that_is_not_there() -> None:
    error = refused(task("a", q="$zz"), task("b", after=("yy",)))
    assert [one.reason for one in error.problems] == ["unknown_reference"] * 2
    assert error.problems[0].tasks == ("a", "zz") and error.problems[1].tasks == ("b", "yy")
    assert "argument $.q: $zz names no task of the plan; $$ is a plain $" in str(error)


def test_a_later_task() -> None:
    error = refused(task("a", q="$b"), task("b"))
    assert error.reason == "forward_reference" and error.problems[0].tasks == ("a", "b")


def test_two_thousand_tasks() -> None:
    error = refused(*(task(f"t{number}", q=str(number)) for number in range(2_000)))
    assert error.reason == "too_many_tasks" and error.problems[0].tasks == ("t1000", "t1999")
    assert "PLAN_TASKS" in str(error)


def test_a_chain_of_two_thousand() -> None:
    tasks = [task("t0"), *(task(f"t{number}", q=f"$t{number - 1}") for number in range(1, 2_000))]
    error = refused(*tasks, options=PlanOptions(tasks=10_000))
    assert error.reason == "too_deep" and error.problems[0].tasks == ("t256",) and "PLAN_DEPTH" in str(error)


def test_a_cycle_of_two_thousand_is_found_and_shown_in_short() -> None:
    tasks = [task(f"t{number}", q=f"$t{(number + 1) % 2_000}") for number in range(2_000)]
    error = refused(*tasks, options=PlanOptions(tasks=10_000))
    assert error.reason == "cycle" and len(str(error)) < 200 and str(error).endswith("... -> t0")


def test_two_tasks_of_one_name() -> None:
    assert refused(task("a"), task("b"), task("a")).problems[0].tasks == ("a",)
    driver = Driver()
    driver.add(task("a"))
    with pytest.raises(PlanError, match="two tasks have the id a"):
        driver.add(task("b"), task("a"))
    assert list(driver.starts) == ["a"], "nothing of a refused part is taken"


@pytest.mark.parametrize(
    ("one", "reason"),
    [
        (task(""), "bad_id"),
        (task("a b"), "bad_id"),
        (task("a" * 300), "bad_id"),
        (task("a", ""), "bad_tool"),
        (Task(id="a", tool="t", arguments={}, timeout_seconds=0.0), "bad_timeout"),
        (Task(id="a", tool="t", arguments={}, timeout_seconds=float("nan")), "bad_timeout"),
        (Task(id="a", tool="t", arguments={"x": 1.5}), "bad_arguments"),  # type: ignore[dict-item]
        (Task(id="a", tool="t", arguments={"x": "y" * limits.ARGUMENTS_BYTES}), "bad_arguments"),
        (task("a", q="${"), "bad_reference"),
    ],
)
def test_tasks_that_are_none(one: Task, reason: str) -> None:
    error = refused(one)
    assert error.reason == reason and (one.id[:20] in str(error))


def test_every_problem_is_named_and_a_flood_is_counted() -> None:
    error = refused(*(task(f"t{number}", q="$nobody") for number in range(50)))
    assert len(error.problems) == 50 and str(error).endswith("and 40 more")


def test_references_are_bounded_over_the_whole_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PLAN_REFERENCES", 3)
    driver = Driver()
    driver.add(task("a"), task("b", q="$a $a"))
    with pytest.raises(PlanError, match="PLAN_REFERENCES"):
        driver.add(task("c", q="$a $b"))


def test_a_reference_to_a_task_that_came_before_is_fine() -> None:
    found = check([task("b", q="$a")], PlanOptions(), depths={"a": 3})
    assert (found[0].refers, found[0].depth) == (("a",), 4)


def test_options_are_bounded() -> None:
    for wrong in ({"tasks": 10_001}, {"tasks": 0}, {"in_flight": 0}, {"depth": 0}, {"replans": -1}):
        with pytest.raises(ValueError, match="must be"):
            PlanOptions(**wrong)  # type: ignore[arg-type]
