"""Writes that end without an answer of their tool: what is known of their resources is not served after them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from forerun.core import limits
from forerun.core.outcomes import CallStatus, Mode, Outcome, Served
from forerun.core.session import AskedCall, CallAnswer, CallFinished, Closed, ExecutionResult, Failure, SessionOpened
from forerun.core.session.failures import CANCELLED, TIMED_OUT
from forerun.core.session.lingering import Lingering
from tests.unit.session.driver import Driver, asked, prepared, proposal

BROKEN = ExecutionResult(
    status=CallStatus.OUTCOME_UNKNOWN, failure=Failure("TOOL_FAILED", ""), seconds=1.0, may_continue=True
)


def served(d: Driver, turn: int, tool: str, number: int) -> Served:
    """How a call is answered that is asked for now."""
    d.ask(turn, asked(0, tool, id=number))
    d.run(until=d.now + 3.0)
    return d.answers[(turn, 0)].served


def cut_off(d: Driver, tool: str, how: str) -> None:
    """Message 1 is a write of number 1 that gets no answer of its tool."""
    d.seconds[tool] = 100.0
    d.ask(1, asked(0, tool, id=1, v=1), timeout_seconds=2.0 if how == "timeout" else 50.0)
    d.run(until=1.0)
    if how == "cancel":
        d.do(d.machine.cancel((1, 0), d.now))
    d.run(until=3.0)


@pytest.mark.parametrize("how", ["timeout", "cancel"])
@pytest.mark.parametrize("tool", ["set", "put"])
def test_what_depends_on_a_write_that_may_go_on_is_always_executed(tool: str, how: str) -> None:
    d = Driver(uncertain={tool})
    cut_off(d, tool, how)
    d.propose(proposal("get", id=1), proposal("get", id=2))
    d.run(until=6.0)
    assert [served(d, turn, "get", 1) for turn in (2, 3)] == [Served.DIRECT] * 2
    assert [served(d, turn, "get", 2) for turn in (4, 5)] == [Served.READY, Served.MEMO]
    assert d.refusals() == ["being_written"]
    finished = [event.answer for event in d.journal if isinstance(event, CallFinished)]
    assert [answer.may_continue for answer in finished] == [True, False, False, False, False]


def test_reads_of_it_that_are_asked_for_side_by_side_do_not_wait_for_each_other() -> None:
    d = Driver(uncertain={"set"})
    cut_off(d, "set", "timeout")
    d.ask(2, asked(0, "get", id=1))
    d.ask(3, asked(0, "get", id=1))
    d.run()
    assert [d.answers[(turn, 0)].served for turn in (2, 3)] == [Served.DIRECT] * 2
    assert sum(tool == "get" for tool, _, _ in d.executed) == 2


def test_a_write_whose_tool_has_really_ended_leaves_nothing_behind() -> None:
    d = Driver(stop_seconds=5.5)
    cut_off(d, "set", "timeout")
    assert d.answers[(1, 0)].status is CallStatus.OUTCOME_UNKNOWN, "the agent does not wait for the real end"
    assert [served(d, turn, "get", 1) for turn in (2, 3)] == [Served.DIRECT] * 2, "not before it has"
    assert [served(d, turn, "get", 1) for turn in (4, 5)] == [Served.DIRECT, Served.MEMO]


@pytest.mark.parametrize("how", ["timeout", "cancel"])
@pytest.mark.parametrize(("first", "then"), [("set", "get"), ("set", "mystery"), ("put", "get"), ("mystery", "get")])
def test_what_must_not_run_beside_a_write_of_its_message_waits_until_that_has_really_stopped(
    first: str, then: str, how: str
) -> None:
    d = Driver(stop_seconds=3.0, seconds={first: 1000.0})
    limit = prepared(first).contract.timeout_seconds
    stopped_at = limit if how == "timeout" else 1.0
    d.ask(1, asked(0, first, id=1, v=1), asked(1, then, id=1))
    if how == "cancel":
        d.run(until=stopped_at)
        d.do(d.machine.cancel((1, 0), d.now))
    d.run(until=stopped_at + 2.9)
    assert (1, 0) in d.answers, "the agent does not wait for the real end"
    assert [tool for tool, _, _ in d.executed] == [first]
    d.run(until=stopped_at + 3.0)
    assert [tool for tool, _, _ in d.executed] == [first, then]
    d.run()
    assert d.answers[(1, 1)].status is CallStatus.OK


def test_a_write_waits_until_one_of_its_message_has_really_stopped_that_could_still_read_what_it_changes() -> None:
    d = Driver(stop_seconds=3.0, seconds={"copy": 1000.0})
    d.ask(1, asked(0, "copy", id=1, of=2), asked(1, "put", id=2, v=1))
    d.run(until=1.0)
    d.do(d.machine.cancel((1, 0), d.now))
    d.run(until=3.9)
    assert [tool for tool, _, _ in d.executed] == ["copy"]
    d.run()
    assert [tool for tool, _, _ in d.executed] == ["copy", "put"]


def test_what_ran_ahead_is_not_merged_while_a_write_of_its_message_is_stopped_that_could_see_it() -> None:
    d = Driver(stop_seconds=3.0, seconds={"ship": 1000.0})
    d.propose(proposal("build", x=1))
    d.run(until=5.0)
    d.ask(1, asked(0, "ship", id=1), asked(1, "build", x=1))
    d.run(until=6.0)
    d.do(d.machine.cancel((1, 0), d.now))
    d.run(until=8.9)
    assert not d.merged and (1, 1) not in d.answers
    d.run()
    assert d.answers[(1, 1)].status is CallStatus.OK


def test_what_touches_nothing_of_a_write_that_is_being_stopped_does_not_wait_for_it() -> None:
    d = Driver(stop_seconds=4.0, seconds={"set": 1000.0})
    d.ask(1, asked(0, "set", id=1, v=1), asked(1, "put", id=2, v=1), asked(2, "get", id=2), asked(3, "get", id=1))
    d.run(until=0.5)
    d.do(d.machine.cancel((1, 0), d.now))
    d.run(until=2.0)
    assert [(tool, json.loads(arguments)["id"]) for tool, arguments, _ in d.executed] == [
        ("put", 2),
        ("set", 1),
        ("get", 2),
    ]
    d.run()
    assert d.answer_order == [(1, 0), (1, 1), (1, 2), (1, 3)]


def test_a_call_that_waits_for_a_write_to_stop_can_be_taken_back_and_keeps_its_deadline() -> None:
    d = Driver(stop_seconds=4.0, seconds={"set": 1000.0})
    d.ask(1, asked(0, "set", id=1, v=1), asked(1, "get", id=1), asked(2, "mystery"), timeout_seconds=3.0)
    d.run(until=1.0)
    d.do(d.machine.cancel((1, 0), d.now))
    d.run(until=2.0)
    d.do(d.machine.cancel((1, 1), d.now))
    assert d.answers[(1, 1)].status is CallStatus.CANCELLED
    d.run(until=3.0)
    assert d.answers[(1, 2)].status is CallStatus.TIMEOUT
    d.run()
    assert [tool for tool, _, _ in d.executed] == ["set"], "and is not begun after that"


def test_calls_of_a_message_that_are_asked_for_one_by_one_wait_for_it_too() -> None:
    """As the tasks of a plan are."""
    d = Driver(stop_seconds=3.0, seconds={"set": 1000.0})
    d.ask(1, asked(0, "set", id=1, v=1))
    d.run(until=1.0)
    d.do(d.machine.cancel((1, 0), d.now))
    d.ask(1, asked(1, "get", id=1))
    d.run(until=3.9)
    assert [tool for tool, _, _ in d.executed] == ["set"]
    d.ask(2, asked(0, "get", id=1))  # its agent knows of that end
    assert [tool for tool, _, _ in d.executed] == ["set", "get"]
    d.run()
    assert [tool for tool, _, _ in d.executed] == ["set", "get", "get"]


def test_a_read_that_is_taken_back_is_not_waited_for() -> None:
    d = Driver(stop_seconds=50.0, uncertain={"get"})
    cut_off(d, "get", "cancel")
    assert d.cancelled and not d.answers[(1, 0)].may_continue
    d.seconds["get"] = 1.0
    assert [served(d, turn, "get", 1) for turn in (2, 3)] == [Served.DIRECT, Served.MEMO]


def test_an_answer_that_is_no_end_counts_like_none() -> None:
    d = Driver()
    d.results["set"] = ExecutionResult(status=CallStatus.OK, digest="sha256:1", may_continue=True)
    d.ask(1, asked(0, "set", id=1, v=1))
    d.run()
    assert d.answers[(1, 0)].status is CallStatus.OK
    assert [served(d, turn, "get", 1) for turn in (2, 3)] == [Served.DIRECT] * 2


def test_a_try_that_may_go_on_counts_although_the_next_one_is_answered() -> None:
    d = Driver()
    d.results["put"] = BROKEN
    d.ask(1, asked(0, "put", id=1, v=1))
    d.run(until=2.05)
    del d.results["put"]
    d.run(until=8.0)
    assert (d.answers[(1, 0)].status, d.answers[(1, 0)].may_continue) == (CallStatus.OK, True)
    assert [served(d, turn, "get", 1) for turn in (2, 3)] == [Served.DIRECT] * 2


def test_a_try_that_may_have_had_its_effect_is_not_denied_where_the_next_one_finds_the_state_lost() -> None:
    d = Driver()
    d.results["put"] = BROKEN
    d.ask(1, asked(0, "put", id=1, v=1))
    d.run(until=2.05)
    lost = Failure("STATE_LOST", "the connection is gone")
    d.results["put"] = ExecutionResult(status=CallStatus.REJECTED, failure=lost, not_started=True)
    d.run()
    answer = d.answers[(1, 0)]
    assert (answer.status, answer.failure) == (CallStatus.OUTCOME_UNKNOWN, lost)


def test_a_staged_write_that_is_done_again_settles_its_earlier_tries() -> None:
    d = Driver()
    d.results["build"] = BROKEN
    d.ask(1, asked(0, "build", id=1))
    d.run(until=2.05)
    del d.results["build"]
    d.run(until=8.0)
    assert (d.answers[(1, 0)].status, d.answers[(1, 0)].may_continue) == (CallStatus.OK, False)
    assert [served(d, turn, "look", 1) for turn in (2, 3)] == [Served.DIRECT, Served.MEMO]


def test_a_write_that_is_given_up_between_two_tries_may_go_on() -> None:
    d = Driver()
    d.results["put"] = replace(BROKEN, failure=Failure("TOOL_FAILED", "", retry_after_seconds=5.0))
    d.ask(1, asked(0, "put", id=1, v=1), timeout_seconds=10.0)
    d.run(until=3.0)
    d.do(d.machine.cancel((1, 0), d.now))
    d.run(until=4.0)
    assert (d.answers[(1, 0)].status, d.answers[(1, 0)].may_continue) == (CallStatus.CANCELLED, True)
    assert [served(d, turn, "get", 1) for turn in (2, 3)] == [Served.DIRECT] * 2


def test_what_never_reached_its_tool_leaves_nothing_behind() -> None:
    d = Driver()
    d.results["set"] = ExecutionResult(status=CallStatus.REJECTED, failure=Failure("QUEUE_FULL", ""), not_started=True)
    d.ask(1, asked(0, "set", id=1, v=1))
    d.run()
    assert [served(d, turn, "get", 1) for turn in (2, 3)] == [Served.DIRECT, Served.MEMO]


def test_above_the_bound_it_is_everything() -> None:
    lingering = Lingering()
    for number in range(limits.LINGERING_WRITES):
        lingering.add((1, number), (f"orders/{number}",))
    assert lingering.touches(["orders/7"]) and not lingering.touches(["users/1"])
    lingering.settled((1, 7))
    assert not lingering.touches(["orders/7"])
    for number in range(2):
        lingering.add((2, number), (f"more/{number}",))
    assert lingering.touches(["users/1"]) and not lingering.touches([])


# ---------------------------------------------------------------- shared resources


@pytest.mark.parametrize("how", ["timeout", "cancel"])
def test_other_sessions_are_told_before_the_agent_hears_of_the_end(how: str) -> None:
    d = Driver(uncertain={"sell"})
    d.propose(proposal("stock", id=1))
    d.run(until=3.0)
    d.seconds["sell"] = 100.0
    d.ask(1, asked(0, "sell", id=1, v=1), timeout_seconds=2.0)
    d.run(until=4.0)
    if how == "cancel":
        d.do(d.machine.cancel((1, 0), d.now))
    d.run(until=6.0)
    assert d.log.count("count stock/1 unsettled") == 1
    assert [served(d, turn, "stock", 1) for turn in (2, 3)] == [Served.DIRECT] * 2
    assert d.outcomes() == {Outcome.STALE: 1}


def test_nothing_starts_ahead_that_depends_on_a_shared_resource_that_may_be_written() -> None:
    d = Driver()
    d.unsettled.update({"self:stock/1"})
    d.propose(proposal("stock", id=1), proposal("stock", id=2))
    d.run(until=3.0)
    assert d.refusals() == ["being_written"]
    assert [arguments for _, arguments, _ in d.executed] == [b'{"id": 2}']


def test_who_loses_a_session_says_what_it_leaves_running() -> None:
    d = Driver()
    d.seconds["sell"] = 100.0
    d.ask(1, asked(0, "sell", id=1, v=1))
    d.run(until=1.0)
    d.do(d.machine.lose("taken over", d.now))
    assert d.log[-1] == "count stock/1 unsettled"


# ---------------------------------------------------------------- the next owner


def restored(answered: Failure | None = None, /, **calls: AskedCall) -> Driver:
    """A machine that goes on: `unknown` was about to start, `lingering` was answered so or may be repeated."""
    d = Driver()
    closed = {}
    if answered is not None:
        one = calls["lingering"]
        answer = CallAnswer(
            call=(1, 0), tool=one.tool, status=CallStatus.OUTCOME_UNKNOWN, result=None, failure=answered,
            served=Served.DIRECT, may_continue=True,
        )  # fmt: skip
        closed[1, 0] = Closed(one.tool, one.arguments, answer, repeatable=False)
    effects = d.machine.restore(
        SessionOpened((), Mode.EXACT, False, "test", ""),
        number=7,
        last_turn=1,
        closed=closed,
        unknown={(1, 0): calls["unknown"]} if "unknown" in calls else {},
        lingering={(1, 0): calls["lingering"]} if "lingering" in calls else {},
        journalled=[(1, 0)],
        user_texts=[],
        now=0.0,
    )
    d.do(effects)
    return d


@pytest.mark.parametrize("kind", ["unknown", "lingering"])
def test_the_next_owner_knows_what_may_still_happen(kind: str) -> None:
    d = restored(**{kind: asked(0, "set", id=1, v=1)})
    assert [served(d, turn, "get", 1) for turn in (2, 3)] == [Served.DIRECT] * 2
    assert [served(d, turn, "get", 2) for turn in (4, 5)] == [Served.DIRECT, Served.MEMO]
    shared = restored(**{kind: asked(0, "sell", id=1, v=1)})
    assert "count stock/1 unsettled" in shared.log


def test_a_call_that_cannot_be_prepared_any_more_may_have_written_anything() -> None:
    gone = AskedCall(0, "", "gone", b"{}", Failure("TOOL_NOT_FOUND", "no such tool"))
    d = restored(unknown=gone)
    assert [served(d, turn, "get", 1) for turn in (2, 3)] == [Served.DIRECT] * 2
    assert "count * unsettled" in d.log


@pytest.mark.parametrize("why", [CANCELLED, TIMED_OUT])
@pytest.mark.parametrize("first", ["set", "put", "mystery", "copy", "gone"])
def test_the_next_owner_waits_for_what_was_being_stopped_as_the_first_one_would(first: str, why: Failure) -> None:
    gone = AskedCall(0, "", "gone", b"{}", Failure("TOOL_NOT_FOUND", "no such tool"))
    d = restored(why, lingering=gone if first == "gone" else asked(0, first, id=1, of=2))
    d.ask(1, asked(1, "put" if first == "copy" else "get", id=2 if first == "copy" else 1), timeout_seconds=30.0)
    d.run(until=limits.CANCEL_SETTLE_SECONDS - 0.1)
    assert d.executed == []
    d.run(until=limits.CANCEL_SETTLE_SECONDS)
    assert len(d.executed) == 1
    d.run()
    assert d.answers[(1, 1)].status is CallStatus.OK


def test_the_next_owner_lets_nothing_else_wait_for_what_was_being_stopped() -> None:
    d = restored(CANCELLED, lingering=asked(0, "set", id=1))
    d.ask(1, asked(1, "get", id=2), asked(2, "get", id=1))
    d.ask(2, asked(0, "put", id=1))  # its agent knows of that end
    assert [tool for tool, _, _ in d.executed] == ["get", "put"]
    d.run(until=limits.CANCEL_SETTLE_SECONDS + 1.0)
    d.ask(1, asked(3, "put", id=1))
    assert [tool for tool, _, _ in d.executed] == ["get", "put", "get", "put"]
    d.run()
    assert d.machine.next_time() is None
    assert {answer.status for answer in d.answers.values()} == {CallStatus.OK}


def test_what_had_ended_by_itself_is_not_waited_for_by_the_next_owner() -> None:
    for answered in (None, Failure("TOOL_FAILED", "")):
        d = restored(answered, lingering=asked(0, "put", id=1))
        d.ask(1, asked(1, "get", id=1))
        assert [tool for tool, _, _ in d.executed] == ["get"]


def test_a_call_that_waits_for_what_was_being_stopped_can_be_taken_back_and_keeps_its_deadline() -> None:
    d = restored(CANCELLED, lingering=asked(0, "set", id=1))
    d.ask(1, asked(1, "get", id=1), asked(2, "mystery"), timeout_seconds=3.0)
    d.run(until=1.0)
    d.do(d.machine.cancel((1, 1), d.now))
    d.run()
    assert [d.answers[(1, number)].status for number in (1, 2)] == [CallStatus.CANCELLED, CallStatus.TIMEOUT]
    assert d.executed == []


def test_a_staged_write_that_is_sent_again_to_the_next_owner_settles_it() -> None:
    d = restored(lingering=asked(0, "build", id=1))
    assert [served(d, turn, "look", 1) for turn in (2, 3)] == [Served.DIRECT] * 2
    d.ask(1, asked(0, "build", id=1))
    d.run()
    assert [served(d, turn, "look", 1) for turn in (4, 5)] == [Served.DIRECT, Served.MEMO]


def test_reads_do_not_write() -> None:
    assert not prepared("get", id=1).writes and prepared("sell", id=1).writes
