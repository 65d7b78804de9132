"""The plan machine, one behaviour at a time (cases A1-A5, A15, A19, J1)."""

from __future__ import annotations

import pytest

from forerun.core import limits
from forerun.core.contracts import Contract, Effect
from forerun.core.plan import (
    Cause,
    Early,
    FailurePolicy,
    PlanError,
    PlanMachine,
    PlanOptions,
    PlanStatus,
    Progress,
    Task,
    TaskEnd,
    TaskStatus,
)
from tests.unit.plan.driver import Driver, ended, ok, task

CUT = Cause("cut_off", "the stream broke")


# ---------------------------------------------------------------- inputs and order


def test_a_task_starts_the_moment_its_inputs_are_there_also_while_the_plan_streams() -> None:
    driver = Driver()
    assert driver.add(task("1", q="a")) == ["1"]
    assert driver.add(task("2", q="b"), task("3", "calc", x="$1.n", y="$2.n")) == ["2"]
    assert driver.end("2", ok({"n": 2})) == []
    assert driver.end("1", ok({"n": 10**20})) == ["3"]
    assert driver.starts["3"].arguments == b'{"x":100000000000000000000,"y":2}'
    assert driver.add(task("4", "calc", x="$3")) == []
    assert not driver.plans and driver.complete() == []
    assert driver.end("3", ok(7)) == ["4"]
    driver.end("4", ok(8))
    assert driver.plans[0].status is PlanStatus.OK
    assert [one.id for one in driver.plans[0].results] == ["1", "2", "3", "4"]


def test_results_are_in_call_order_whatever_the_order_of_ends_and_each_has_its_own_end() -> None:
    driver = Driver()
    driver.add(*(task(f"R{number}", q=str(number)) for number in range(1, 5)), complete=True)
    for now, one, end in ((0.04, "R4", ok(4)), (0.05, "R1", ok(1)), (0.06, "R3", ended(TaskStatus.ERROR))):
        driver.now = now
        driver.end(one, end)
    driver.now = 0.07
    driver.end("R2", ok(2))
    results = driver.plans[0].results
    assert [one.id for one in results] == ["R1", "R2", "R3", "R4"]
    assert [one.status.value for one in results] == ["ok", "ok", "error", "ok"]
    assert [one.seconds for one in results] == [0.05, 0.07, 0.06, 0.04]
    assert results[2].content == b"what it said" and driver.plans[0].status is PlanStatus.OK


def test_a_tool_that_reports_a_failure_aborts_nothing() -> None:
    driver = Driver(PlanOptions(failure=FailurePolicy.FAIL_FAST))
    driver.add(*(task(str(number), q=str(number)) for number in range(12)), complete=True)
    driver.end("5", ended(TaskStatus.ERROR))
    for number in range(12):
        if number != 5:
            driver.end(str(number))
    assert driver.plans[0].status is PlanStatus.OK and driver.statuses().count("ok") == 11


def test_reads_and_writes_of_one_resource_keep_call_order() -> None:
    driver = Driver()
    driver.add(
        task("1", "write", path="n.txt", text="1"),
        task("2", "read", path="./n.txt"),
        task("3", "write", path="/workspace/n.txt", old="1", new="2"),
        task("4", "write", path="n.txt", old="2", new="3"),
        task("5", "read", path="other.txt"),
        complete=True,
    )
    assert list(driver.starts) == ["1", "5"]
    assert driver.end("1") == ["2"]
    assert driver.end("2") == ["3"]
    assert driver.end("3") == ["4"]


def test_a_key_that_is_not_known_yet_may_be_anything_below_what_is_known() -> None:
    driver = Driver()
    driver.add(
        task("1", q="which file?"),
        task("2", "write", path="$1.path"),
        task("3", "read", path="a.txt"),
        task("4", q="elsewhere"),
        complete=True,
    )
    assert list(driver.starts) == ["1", "4"], "2 may write a.txt"
    assert driver.end("1", ok({"path": "b.txt"})) == ["2"]
    assert driver.end("2") == ["3"]


def test_a_tool_that_nobody_knows_runs_alone() -> None:
    driver = Driver()
    driver.add(task("1", q="a"), task("2", "mystery"), task("3", q="b"), complete=True)
    assert list(driver.starts) == ["1"]
    assert driver.end("1") == ["2"]
    assert driver.end("2") == ["3"]


def test_a_command_that_is_not_known_yet_runs_alone() -> None:
    driver = Driver()
    driver.add(task("1", "calc", x=1), task("2", "shell", command="cat $1"), task("3", q="b"), complete=True)
    assert list(driver.starts) == ["1"]
    assert driver.end("1", ok("file")) == ["2"]
    assert driver.starts["2"].value == {"command": "cat file"} and not driver.starts["2"].repeatable


def test_after_is_an_order_without_a_value() -> None:
    driver = Driver()
    driver.add(task("1", q="a"), task("2", after=("1",), q="b"), complete=True)
    assert list(driver.starts) == ["1"]
    assert driver.end("1", ended(TaskStatus.UNAVAILABLE)) == ["2"], "however it ended"


# ---------------------------------------------------------------- arguments


def test_a_models_own_arguments_run_as_they_were_sent() -> None:
    driver = Driver()
    text = b'{ "q" : "$1",  "n": 1.50 }'
    driver.add(Task(id="1", tool="search", arguments={"q": "$1"}, literal=True, text=text, provider_call_id="call_9"))
    assert driver.starts["1"].arguments == text
    driver.end("1")
    assert driver.settled["1"].provider_call_id == "call_9"


def test_an_escape_is_written_out() -> None:
    driver = Driver()
    driver.add(Task(id="1", tool="search", arguments={"q": "$$5"}, text=b'{"q":"$$5"}'))
    assert driver.starts["1"].arguments == b'{"q":"$5"}'


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (ok({"other": 1}), "no_such_value"),
        (TaskEnd(status=TaskStatus.OK, content=b"\x89", media_type="image/png"), "not_typed"),
        (TaskEnd(status=TaskStatus.OK, content=b"{", media_type="application/json"), "syntax"),
        (TaskEnd(status=TaskStatus.OK, media_type="application/json", stored_bytes=70_000_000), "not_held"),
        (ok({"n": "x" * limits.ARGUMENTS_BYTES}), "too_large"),
    ],
)
def test_arguments_that_cannot_be_built_are_a_typed_end(end: TaskEnd, reason: str) -> None:
    driver = Driver()
    driver.add(task("1", q="a"), task("2", "calc", x="$1.n"), task("3", "calc", x="$2"), complete=True)
    assert driver.end("1", end) == []
    assert driver.statuses() == ["ok", "rejected", "skipped"]
    assert driver.settled["2"].cause is not None and driver.settled["2"].cause.reason == reason
    cause = driver.settled["3"].cause
    assert cause is not None and (cause.reason, cause.task, cause.metadata) == ("input_failed", "2", {"reason": reason})


def test_results_above_the_bound_are_passed_on_and_not_held() -> None:
    driver = Driver(PlanOptions(held_bytes=10))
    driver.add(task("1", q="a"), task("2", q="b"), complete=False)
    driver.end("1", ok("x" * 6))
    driver.end("2", ok("y" * 6))
    driver.add(task("3", "calc", x="$1"), task("4", "calc", x="$2"), complete=True)
    driver.end("3")
    assert driver.settled["2"].content == b'"yyyyyy"'
    assert driver.statuses() == ["ok", "ok", "ok", "rejected"]
    assert (driver.plans[0].results[1].content, driver.plans[0].results[1].stored_bytes) == (b"", 8)
    assert "PLAN_HELD_BYTES" in str(driver.settled["4"].cause)


def test_values_that_were_read_are_forgotten_above_a_bound_and_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RESULT_BYTES", 10)
    driver = Driver()
    driver.add(task("1", q="a"), task("2", q="b"))
    driver.end("1", ok("x" * 6))
    driver.end("2", ok("y" * 6))
    driver.add(*(task(f"c{number}", "calc", x=f"${number % 2 + 1}", n=number) for number in range(6)))
    assert [driver.starts[f"c{number}"].value for number in range(6)] == [
        {"x": ("x" if number % 2 == 0 else "y") * 6, "n": number} for number in range(6)
    ]


# ---------------------------------------------------------------- equal tasks


def test_equal_idempotent_writes_run_once_until_another_comes_between() -> None:
    driver = Driver()
    writes = [task(str(number), "put", path="f", text=text) for number, text in enumerate("aaba")]
    driver.add(*writes, complete=True)
    assert list(driver.starts) == ["0"]
    assert driver.end("0", ok("a")) == ["2"]
    assert driver.settled["1"].shared_with == "0" and driver.settled["1"].content == b'"a"'
    assert driver.end("2") == ["3"]
    driver.end("3")
    assert driver.statuses() == ["ok"] * 4


def test_equal_references_are_equal_tasks() -> None:
    driver = Driver()
    driver.add(task("1", q="a"), task("2", "calc", x="$1"), task("3", "calc", x="$1"), complete=True)
    assert driver.end("1") == ["2"]
    driver.end("2", ok(5))
    assert driver.settled["3"].shared_with == "2" and driver.plans


def test_literal_and_escaped_dollars_are_compared_by_what_they_mean() -> None:
    driver = Driver()
    driver.add(
        Task(id="1", tool="calc", arguments={"x": "$$a"}),
        Task(id="2", tool="calc", arguments={"x": "$$a"}, literal=True),
        Task(id="3", tool="calc", arguments={"x": "$a"}, literal=True),
        complete=True,
    )
    assert list(driver.starts) == ["1", "2"]
    driver.end("1")
    assert driver.settled["3"].shared_with == "1"


@pytest.mark.parametrize("status", [TaskStatus.CANCELLED, TaskStatus.UNAVAILABLE, TaskStatus.TIMEOUT])
def test_without_an_outcome_one_of_the_others_runs(status: TaskStatus) -> None:
    driver = Driver()
    driver.add(task("1", q="a"), task("2", q="a"), task("3", q="a"), complete=True)
    assert list(driver.starts) == ["1"]
    assert driver.end("1", ended(status)) == ["2"]
    driver.end("2", ok(1))
    assert driver.statuses() == [status.value, "ok", "ok"] and driver.settled["3"].shared_with == "2"


def test_a_late_equal_task_shares_what_is_known_and_runs_after_a_failure() -> None:
    driver = Driver()
    driver.add(task("1", q="a"), task("2", q="b"))
    driver.end("1", ok(1))
    driver.end("2", ended(TaskStatus.UNAVAILABLE))
    assert driver.add(task("3", q="a"), task("4", q="b")) == ["4"]
    assert driver.settled["3"].shared_with == "1"


def test_a_task_whose_order_was_asked_for_shares_nothing() -> None:
    driver = Driver()
    assert driver.add(task("1", q="a"), task("2", q="b"), task("3", after=("2",), q="a")) == ["1", "2"]
    driver.end("1")
    assert driver.end("2") == ["3"]


# ---------------------------------------------------------------- failures


def test_isolated_failures_skip_only_what_refers_to_them() -> None:
    driver = Driver()
    driver.add(task("1", q="a"), task("2", "calc", x="$1"), task("3", "calc", x="$2"), task("4", q="b"), complete=True)
    away = Cause("PEER_UNAVAILABLE", "the provider is away", task="1", retry_after_seconds=7.0)
    driver.end("1", TaskEnd(status=TaskStatus.UNAVAILABLE, cause=away))
    driver.end("4")
    assert driver.statuses() == ["unavailable", "skipped", "skipped", "ok"]
    assert driver.plans[0].status is PlanStatus.OK
    cause = driver.settled["3"].cause
    assert cause is not None and (cause.task, cause.retry_after_seconds) == ("1", 7.0)
    assert "the provider is away" in cause.message


def test_fail_fast_cancels_what_runs_and_waits_for_it() -> None:
    driver = Driver(PlanOptions(failure=FailurePolicy.FAIL_FAST, in_flight=3))
    driver.add(
        task("1", q="a"),
        task("2", "write", path="f"),
        task("3", q="b"),
        task("4", q="c"),
        task("5", q="d"),
        complete=True,
    )
    driver.end("1", ended(TaskStatus.TIMEOUT))
    assert driver.cancels == ["2", "3"] and not driver.plans
    driver.end("3", ok("too late"))
    driver.end("2", TaskEnd(status=TaskStatus.CANCELLED))
    assert driver.statuses() == ["timeout", "outcome_unknown", "cancelled", "skipped", "skipped"]
    plan = driver.plans[0]
    assert plan.status is PlanStatus.FAILED and plan.cause is not None and plan.cause.task == "1"
    assert driver.settled["3"].content == b"", "a late result is never delivered"
    with pytest.raises(PlanError, match="takes no more"):
        driver.add(task("6"))


def test_waiting_for_all_lets_everything_end_and_then_fails() -> None:
    driver = Driver(PlanOptions(failure=FailurePolicy.WAIT_ALL))
    driver.add(task("1", q="a"), task("2", q="b"), task("3", "calc", x="$2"), complete=True)
    driver.end("1", ended(TaskStatus.UNAVAILABLE))
    driver.end("2")
    driver.end("3")
    assert driver.statuses() == ["unavailable", "ok", "ok"] and driver.plans[0].status is PlanStatus.FAILED


def test_a_task_may_have_a_failure_policy_of_its_own() -> None:
    driver = Driver()
    vital = Task(id="1", tool="search", arguments={"q": "a"}, on_failure=FailurePolicy.FAIL_FAST)
    driver.add(vital, task("2", q="b"), complete=True)
    driver.end("1", ended(TaskStatus.UNAVAILABLE))
    driver.end("2", TaskEnd(status=TaskStatus.CANCELLED))
    assert driver.plans[0].status is PlanStatus.FAILED


def test_an_end_without_a_cause_gets_one() -> None:
    driver = Driver()
    driver.add(task("1"), complete=True)
    driver.end("1", TaskEnd(status=TaskStatus.REJECTED))
    assert driver.settled["1"].cause == Cause("task_rejected", "task 1 ended rejected", task="1")
    with pytest.raises(ValueError, match="skipped"):
        driver.machine.finished("1", TaskEnd(status=TaskStatus.SKIPPED), 0.0)


# ---------------------------------------------------------------- time and cancellation


def test_a_task_that_is_late_is_told_to_stop_and_given_up_when_it_does_not() -> None:
    driver = Driver()
    slow = Task(id="1", tool="read", arguments={"path": "f"}, timeout_seconds=2.0)
    driver.add(slow, task("2", "write", path="f"), task("3", "calc", x="$1"), complete=True)
    assert driver.starts["1"].timeout_seconds == 2.0 and driver.machine.next_time() == 2.0
    assert driver.tick(2.0) == [] and driver.cancels == ["1"], "the write waits until the read has really stopped"
    assert driver.machine.next_time() == 2.0 + limits.CANCEL_SETTLE_SECONDS
    assert driver.tick(7.0) == ["2"]
    assert driver.settled["1"].unsettled and driver.settled["1"].status is TaskStatus.TIMEOUT
    assert driver.end("1", ok("late")) == [], "nobody waits for it any more"
    driver.end("2")
    assert driver.statuses() == ["timeout", "ok", "skipped"] and driver.machine.next_time() is None


def test_a_write_that_was_stopped_on_its_way_is_not_called_cancelled() -> None:
    driver = Driver()
    driver.add(task("1", "write", path="a"), task("2", "write", path="b"), task("3", "put", path="c"), complete=True)
    for one in ("1", "2", "3"):
        driver.take(driver.machine.cancel_task(one, 1.0))
    driver.end("1", TaskEnd(status=TaskStatus.CANCELLED))
    driver.end("2", TaskEnd(status=TaskStatus.CANCELLED, not_started=True))
    driver.end("3", TaskEnd(status=TaskStatus.CANCELLED))
    assert driver.statuses() == ["outcome_unknown", "cancelled", "cancelled"]
    cause = driver.settled["1"].cause
    assert cause is not None and cause.reason == "outcome_unknown" and "look at the tool" in cause.message


def test_a_task_can_be_taken_back_at_every_stage() -> None:
    driver = Driver(PlanOptions(in_flight=1))
    driver.add(task("1", q="a"), task("2", q="b"), task("3", "calc", x="$1"), task("4", q="a"), complete=True)
    for one in ("2", "3", "4", "nobody", "1", "1"):
        driver.take(driver.machine.cancel_task(one, 0.0))
    assert driver.cancels == ["1"]
    driver.end("1", ok())
    assert driver.statuses() == ["cancelled"] * 4 and list(driver.starts) == ["1"]


def test_a_task_that_is_taken_back_while_it_waits_keeps_its_place_in_the_order() -> None:
    driver = Driver()
    driver.add(*(task(str(number), "write", path="f", text=str(number)) for number in range(3)), complete=True)
    driver.take(driver.machine.cancel_task("1", 0.0))
    assert driver.end("0") == ["2"] and driver.settled["1"].status is TaskStatus.CANCELLED


def test_a_plan_that_is_taken_back_says_so_when_everything_has_stopped() -> None:
    driver = Driver()
    driver.add(task("1", q="a"), task("2", "calc", x="$1"))
    driver.take(driver.machine.cancel(0.0))
    assert driver.cancels == ["1"] and not driver.plans
    driver.tick(limits.CANCEL_SETTLE_SECONDS)
    assert driver.statuses() == ["cancelled", "cancelled"] and driver.plans[0].status is PlanStatus.CANCELLED
    assert driver.settled["1"].unsettled and not driver.settled["2"].unsettled
    assert driver.take(driver.machine.cancel(9.0)) == [] and len(driver.plans) == 1


# ---------------------------------------------------------------- caps and progress


def test_eight_hundred_tasks_run_sixteen_at_a_time_and_a_tool_within_its_cap() -> None:
    driver = Driver()
    tasks = [task(str(number), q=str(number)) for number in range(800)]
    tasks[3:3] = [task(f"r{number}", "read", path=str(number)) for number in range(100)]
    driver.add(*tasks, complete=True)
    running = list(driver.starts)
    assert running[:7] == ["0", "1", "2", "r0", "r1", "r2", "r3"] and running[7] == "3"
    most = 0
    while running:
        most = max(most, len(running))
        assert sum(one.startswith("r") for one in running) <= 4
        running += driver.end(running.pop(0))
    assert most == 16 and driver.statuses() == ["ok"] * 900


def test_progress_counts() -> None:
    machine = PlanMachine(lambda tool: Contract(tool, "", Effect.PURE), PlanOptions(in_flight=1))
    seen = machine.add([task("1", x=1), task("2", x=2)], 0.0)
    seen += machine.complete(0.0) + machine.finished("1", ok(), 1.0) + machine.finished("2", ok(), 2.0)
    assert [one for one in seen if isinstance(one, Progress)] == [
        Progress(2, 1, 0, complete=False),
        Progress(2, 1, 0, complete=True),
        Progress(2, 1, 1, complete=True),
        Progress(2, 0, 2, complete=True),
    ]
    assert machine.finished("2", ok(), 3.0) == []


def test_an_empty_plan_ends_at_once() -> None:
    driver = Driver()
    driver.complete()
    assert driver.plans[0].results == () and driver.plans[0].status is PlanStatus.OK


# ---------------------------------------------------------------- messages that arrive


def test_only_safe_reads_start_before_a_message_is_complete() -> None:
    driver = Driver(PlanOptions(early=Early.READS))
    driver.add(
        task("1", "write", path="a"),
        task("2", "read", path="a"),
        task("3", "read", path="b"),
        task("4", "take"),
        task("5", "buy"),
    )
    assert list(driver.starts) == ["3"], "2 waits for the write before it"
    driver.end("3")
    assert not driver.settled, "nothing is told before the message counts"
    assert driver.complete() == ["1", "4", "5"] and "3" in driver.settled
    assert driver.end("1") == ["2"]


def test_a_message_that_is_cut_off_commits_nothing() -> None:
    driver = Driver(PlanOptions(early=Early.READS))
    driver.add(task("1", q="a"), task("2", q="b"), task("3", "write", path="a"))
    driver.end("1", ok("secret"))
    driver.take(driver.machine.refuse(CUT, 0.0))
    assert driver.cancels == ["2"]
    driver.end("2", ok("secret"))
    plan = driver.plans[0]
    assert (plan.status, plan.cause) == (PlanStatus.REFUSED, CUT)
    assert driver.statuses() == ["cancelled", "cancelled", "skipped"]
    assert list(driver.starts) == ["1", "2"]
    assert all(one.content == b"" for one in (*plan.results, *driver.settled.values()))
    with pytest.raises(PlanError, match="takes no more"):
        driver.add(task("4"))


def test_a_plan_that_is_cut_off_keeps_what_has_ended_and_starts_nothing_more() -> None:
    driver = Driver()
    driver.add(task("1", q="a"), task("2", "calc", x="$1"))
    driver.end("1", ok(1))
    driver.take(driver.machine.refuse(CUT, 0.0))
    driver.end("2")
    assert driver.statuses() == ["ok", "cancelled"] and driver.plans[0].status is PlanStatus.REFUSED


# ---------------------------------------------------------------- replans


def test_a_plan_may_be_continued_a_few_times_and_refer_to_what_went_before() -> None:
    driver = Driver(PlanOptions(replans=1))
    driver.add(task("1", q="a"), task("2", q="b"), complete=True)
    driver.end("1", ok(5))
    driver.end("2", ended(TaskStatus.UNAVAILABLE))
    driver.take(driver.machine.reopen(1.0))
    started = driver.add(task("3", "calc", x="$1"), task("4", "calc", x="$2"), task("5", q="b"), task("6", q="a"))
    assert started == ["3", "5", "6"], "what was read in another round is read again"
    driver.complete()
    for one in started:
        driver.end(one)
    assert [one.round for one in driver.plans] == [0, 1]
    assert driver.statuses() == ["ok", "unavailable", "ok", "skipped", "ok", "ok"]
    with pytest.raises(PlanError, match="REPLANS"):
        driver.machine.reopen(2.0)


def test_a_failed_plan_may_be_continued_and_a_cancelled_one_may_not() -> None:
    driver = Driver(PlanOptions(failure=FailurePolicy.FAIL_FAST))
    driver.add(task("1", q="a"), complete=True)
    driver.end("1", ended(TaskStatus.UNAVAILABLE))
    driver.take(driver.machine.reopen(0.0))
    assert driver.add(task("2", q="a"), complete=True) == ["2"]
    driver.end("2")
    assert [one.status for one in driver.plans] == [PlanStatus.FAILED, PlanStatus.OK]
    other = Driver()
    with pytest.raises(PlanError, match="has ended"):
        other.machine.reopen(0.0)
    other.take(other.machine.cancel(0.0))
    with pytest.raises(PlanError, match="cancelled"):
        other.machine.reopen(0.0)
