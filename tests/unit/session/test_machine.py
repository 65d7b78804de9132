"""The way of a call: order, memo, the eight outcomes, cancellation, keys, budget."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from forerun.core.governor import Limits
from forerun.core.outcomes import CallStatus, Mode, Outcome, Served
from forerun.core.session import AskedCall, Certificate, ExecutionResult, Failure
from tests.unit.session.driver import POLICY, Driver, asked, prepared, proposal


def refused(index: int) -> AskedCall:
    return AskedCall(index, "", "nope", b"{}", Failure("TOOL_NOT_FOUND", "no such tool"))


def test_reads_of_a_message_run_together_and_a_write_waits_for_them() -> None:
    d = Driver()
    d.ask(1, asked(0, "get", id=1), asked(1, "get", id=2), asked(2, "set", id=1, v=1), asked(3, "get", id=1))
    d.run()
    assert d.now == pytest.approx(6.0)
    assert [d.answers[(1, i)].status for i in range(4)] == [CallStatus.OK] * 4
    last = json.loads(d.answers[(1, 3)].result.content)  # type: ignore[union-attr]
    assert last[2] == {"orders/1": 1}


def test_an_unknown_tool_runs_alone() -> None:
    d = Driver()
    d.ask(1, asked(0, "get", id=1), asked(1, "mystery", x=1), asked(2, "get", id=2))
    d.run()
    assert d.now == pytest.approx(6.0)


def test_what_may_not_be_repeated_is_in_the_journal_before_it_runs() -> None:
    d = Driver()
    d.ask(1, asked(0, "set", id=1, v=1), asked(1, "put", id=2, v=1))
    d.run()
    assert d.intents() == 1
    assert d.log.index("CallIntent") < d.log.index("run set")


def test_an_intent_follows_its_message_whatever_is_answered_beside_it() -> None:
    d = Driver()
    d.ask(1, asked(0, "get", id=1))
    d.run()
    d.ask(2, asked(0, "get", id=1), asked(1, "set", id=2, v=1), asked(2, "get", id=1))
    d.run()
    assert [d.answers[(2, i)].served for i in (0, 1, 2)] == [Served.MEMO, Served.DIRECT, Served.SHARED]
    kinds = [type(event).__name__ for event in d.journal]
    assert kinds[-5:] == ["CallsAsked", "CallIntent", "CallFinished", "CallFinished", "CallFinished"]


def test_a_write_whose_intent_cannot_be_stored_does_not_start() -> None:
    d = Driver(journal_up=False)
    d.ask(1, asked(0, "set", id=1, v=1))
    d.run()
    assert d.executed == []
    assert d.answers[(1, 0)].status is CallStatus.UNAVAILABLE


def test_a_ready_hit_answers_at_once_and_the_same() -> None:
    d, direct = Driver(), Driver()
    d.propose(proposal("get", id=1))
    d.run(until=5.0)
    d.ask(1, asked(0, "get", id=1))
    assert d.now == 5.0
    answer = d.answers[(1, 0)]
    direct.ask(1, asked(0, "get", id=1))
    direct.run()
    assert answer.served is Served.READY
    assert answer.result is not None and direct.answers[(1, 0)].result is not None
    assert answer.result.content == direct.answers[(1, 0)].result.content
    assert d.outcomes() == {Outcome.READY: 1}
    assert len(d.executed) == 1


def test_a_running_speculation_is_promoted_and_joined() -> None:
    d = Driver()
    d.propose(proposal("get", id=1))
    d.run(until=1.0)
    d.ask(1, asked(0, "get", id=1))
    assert len(d.promoted) == 1
    d.run()
    assert d.now == pytest.approx(2.0)
    assert d.answers[(1, 0)].served is Served.JOINED
    assert d.outcomes() == {Outcome.JOINED: 1}


def test_what_nobody_asked_for_is_a_miss_at_the_end() -> None:
    d = Driver()
    d.propose(proposal("get", id=1))
    d.run(until=5.0)
    d.ask(1, asked(0, "get", id=2))
    d.run(until=8.0)
    d.do(d.machine.close("done", d.now))
    assert d.outcomes() == {Outcome.MISS: 1}


@pytest.mark.parametrize("write", ["set", "mystery"])
def test_a_write_makes_it_stale_also_when_the_write_fails(write: str) -> None:
    d = Driver()
    d.results[write] = ExecutionResult(status=CallStatus.UNAVAILABLE, failure=Failure("TOOL_FAILED", ""))
    d.propose(proposal("get", id=1))
    d.run(until=3.0)
    d.ask(1, asked(0, write, id=1, v=2))
    d.run(until=6.0)
    d.ask(2, asked(0, "get", id=1))
    d.run()
    assert d.outcomes() == {Outcome.STALE: 1}
    assert d.answers[(2, 0)].served is Served.DIRECT


def test_a_speculation_that_starts_during_a_write_is_not_served_after_it() -> None:
    d = Driver(seconds={"set": 4.0, "get": 1.0})
    d.ask(1, asked(0, "set", id=1, v=2))
    d.run(until=1.0)
    d.propose(proposal("get", id=1))
    d.run(until=5.0)
    d.ask(2, asked(0, "get", id=1))
    d.run()
    assert d.outcomes() == {Outcome.STALE: 1}
    assert json.loads(d.answers[(2, 0)].result.content)[2] == {"orders/1": 1}  # type: ignore[union-attr]


def test_preempted_speculation_and_the_call_that_had_joined_it() -> None:
    d = Driver()
    d.propose(proposal("get", id=1))
    d.run(until=1.0)
    d.ask(1, asked(0, "get", id=1))
    execution = d.promoted[0]
    d.running.pop(execution)
    preempted = ExecutionResult(status=CallStatus.CANCELLED, preempted=True, seconds=1.0)
    d.do(d.machine.execution_finished(execution, preempted, d.now))
    d.run()
    assert d.outcomes() == {Outcome.PREEMPTED: 1}
    assert d.answers[(1, 0)].status is CallStatus.OK
    assert [ahead for _, _, ahead in d.executed] == [True, False]


def test_results_expire() -> None:
    d = Driver(policy=replace(POLICY, expiry_seconds=30.0))
    d.propose(proposal("get", id=1))
    d.run()
    assert d.outcomes() == {Outcome.EXPIRED: 1}
    assert d.now == pytest.approx(30.0)


def test_open_world_results_live_ten_seconds() -> None:
    d = Driver()
    d.do(d.machine.user_turn("read news", 0.0))
    d.propose(proposal("web", q="news"))
    assert d.refusals() == ["tainted"], "without a schema the key is not trusted either"


def test_a_failed_speculation_is_retried_as_real() -> None:
    d = Driver()
    d.results["get"] = ExecutionResult(status=CallStatus.OK, content=b"no", tool_error=True, seconds=2.0)
    d.propose(proposal("get", id=1))
    d.run(until=1.0)
    d.ask(1, asked(0, "get", id=1))
    d.run(until=2.0)
    del d.results["get"]
    d.run()
    assert d.outcomes() == {Outcome.FAILED: 1}
    assert d.answers[(1, 0)].served is Served.DIRECT
    assert d.answers[(1, 0)].result is not None and d.answers[(1, 0)].result.content != b"no"


def test_without_the_verifier_nothing_is_committed() -> None:
    d = Driver(verifier=Certificate(certified=False, reachable=False))
    d.propose(proposal("get", id=1))
    d.run(until=1.0)
    d.ask(1, asked(0, "get", id=1))
    d.run()
    assert d.outcomes() == {Outcome.FAILED: 1}
    assert d.answers[(1, 0)].served is Served.DIRECT


def test_the_switch_cancels_what_nobody_waits_for() -> None:
    d = Driver()
    d.propose(proposal("get", id=1), proposal("get", id=2))
    d.run(until=1.0)
    d.ask(1, asked(0, "get", id=1))
    d.do(d.machine.set_mode(Mode.OFF, "off", d.now))
    d.run()
    assert d.outcomes() == {Outcome.CANCELLED: 1, Outcome.JOINED: 1}
    assert d.answers[(1, 0)].status is CallStatus.OK


def test_memo_answers_a_repeated_read_until_it_is_written() -> None:
    d = Driver()
    for turn in (1, 2):
        d.ask(turn, asked(0, "get", id=1))
        d.run()
    d.ask(3, asked(0, "set", id=1, v=5))
    d.run()
    d.ask(4, asked(0, "get", id=1))
    d.run()
    served = [d.answers[(turn, 0)].served for turn in (1, 2, 4)]
    assert served == [Served.DIRECT, Served.MEMO, Served.DIRECT]
    assert d.machine.totals.memo_hits == 1


def test_what_the_agent_wrote_past_the_platform_makes_everything_stale() -> None:
    d = Driver()
    d.ask(1, asked(0, "get", id=1))
    d.run()
    d.propose(proposal("get", id=2))
    d.run(until=d.now + 5.0)
    d.do(d.machine.wrote_directly(d.now, unsettled=False))
    for turn, order in ((2, 1), (3, 2)):
        d.ask(turn, asked(0, "get", id=order))
        d.run()
    assert [d.answers[(turn, 0)].served for turn in (1, 2, 3)] == [Served.DIRECT] * 3
    assert d.outcomes() == {Outcome.STALE: 1}


def test_what_may_still_be_written_past_the_platform_is_never_answered_from_memory() -> None:
    d = Driver()
    d.do(d.machine.wrote_directly(d.now, unsettled=True))
    for turn in (1, 2):
        d.ask(turn, asked(0, "get", id=1))
        d.run()
    assert [d.answers[(turn, 0)].served for turn in (1, 2)] == [Served.DIRECT] * 2


def test_errors_are_not_remembered() -> None:
    d = Driver()
    d.results["get"] = ExecutionResult(status=CallStatus.OK, content=b"no", tool_error=True)
    for turn in (1, 2):
        d.ask(turn, asked(0, "get", id=1))
        d.run()
    assert len(d.executed) == 2


def test_another_session_writes_a_shared_resource() -> None:
    d = Driver()
    d.propose(proposal("stock", id=1))
    d.run(until=5.0)
    d.shared["self:stock/1"] = d.shared.get("self:stock/1", 0) + 1
    d.ask(1, asked(0, "stock", id=1))
    d.run()
    assert d.outcomes() == {Outcome.STALE: 1}
    assert d.answers[(1, 0)].served is Served.DIRECT


def test_a_shared_write_is_counted_before_and_after() -> None:
    d = Driver()
    d.ask(1, asked(0, "sell", id=1))
    assert d.shared["self:stock/1"] == 1
    d.run()
    assert d.shared["self:stock/1"] == 2


def test_a_staged_write_ahead_is_merged_on_commit_and_dropped_otherwise() -> None:
    d = Driver()
    d.propose(proposal("build", x=1), proposal("build", x=2))
    d.run(until=5.0)
    d.ask(1, asked(0, "build", x=1))
    d.run()
    assert len(d.merged) == 1 and len(d.dropped) == 1
    assert d.answers[(1, 0)].served is Served.READY
    assert d.outcomes() == {Outcome.READY: 1, Outcome.STALE: 1}


def test_a_staged_write_ahead_is_merged_as_the_call_that_takes_it() -> None:
    """So that whoever executes the call after its owner was lost meets the merge under the name of its own fork."""
    direct, ahead = Driver(), Driver()
    direct.do(direct.machine.asked(3, [asked(2, "build", x=1)], direct.now))
    (execution,) = direct.running.values()
    assert execution.merge_on_success
    ahead.propose(proposal("build", x=1))
    ahead.run(until=5.0)
    ahead.ask(3, asked(2, "build", x=1))
    assert [name for _, name in ahead.merged] == [execution.fork]


def test_a_merge_that_is_refused_means_a_real_execution() -> None:
    d = Driver(merges=False)
    d.propose(proposal("build", x=1))
    d.run(until=5.0)
    d.ask(1, asked(0, "build", x=1))
    d.run()
    assert d.answers[(1, 0)].served is Served.DIRECT
    assert d.outcomes() == {Outcome.STALE: 1}


def test_plain_writes_and_unknown_tools_are_never_run_ahead() -> None:
    d = Driver()
    d.propose(proposal("set", id=1, v=1), proposal("mystery"), proposal("put", id=1, v=2))
    d.run()
    assert d.executed == []
    assert d.refusals() == ["not_allowed"] * 3


def test_identical_calls_share_one_execution_and_an_intended_repeat_runs() -> None:
    d = Driver()
    d.ask(
        1,
        asked(0, "put", id=1, v="a"),
        asked(1, "put", id=1, v="a"),
        asked(2, "put", id=1, v="b"),
        asked(3, "put", id=1, v="a"),
    )
    d.run()
    assert [json.loads(arguments)["v"] for _, arguments, _ in d.executed] == ["a", "b", "a"]
    assert d.answers[(1, 1)].served is Served.SHARED
    assert len(d.answers) == 4


def test_cancelling_one_of_two_sharing_calls_leaves_the_other() -> None:
    d = Driver()
    d.ask(1, asked(0, "get", id=1), asked(1, "get", id=1))
    d.run(until=1.0)
    d.do(d.machine.cancel((1, 0), d.now))
    d.run()
    assert d.answers[(1, 0)].status is CallStatus.CANCELLED
    assert d.answers[(1, 1)].status is CallStatus.OK


def test_the_same_key_never_runs_twice_and_another_payload_is_a_conflict() -> None:
    d = Driver()
    d.ask(1, asked(0, "set", id=1, v=1))
    d.run(until=1.0)
    d.ask(1, asked(0, "set", id=1, v=1))
    d.run()
    d.ask(1, asked(0, "set", id=1, v=1))
    assert len(d.executed) == 1
    assert d.answer_order == [(1, 0), (1, 0)]
    other = Driver()
    other.ask(1, asked(0, "set", id=1, v=1))
    other.run()
    effects = other.machine.asked(1, [asked(0, "set", id=2, v=1)], other.now)
    answers = [effect.answer for effect in effects if hasattr(effect, "answer")]
    assert [answer.failure.reason for answer in answers if answer.failure] == ["CALL_KEY_CONFLICT"]
    assert len(other.executed) == 1


@pytest.mark.parametrize(("tool", "status"), [("get", CallStatus.TIMEOUT), ("set", CallStatus.OUTCOME_UNKNOWN)])
def test_a_tool_that_never_answers(tool: str, status: CallStatus) -> None:
    d = Driver(seconds={tool: 10_000.0})
    d.ask(1, asked(0, tool, id=1), timeout_seconds=3.0)
    d.run(until=3.0)
    assert d.answers[(1, 0)].status is status
    assert len(d.cancelled) == 1


def test_refused_calls_are_answered_and_the_others_run() -> None:
    d = Driver()
    d.ask(1, refused(0), asked(1, "get", id=1), refused(2))
    d.run()
    statuses = [d.answers[(1, i)].status for i in range(3)]
    assert statuses == [CallStatus.REJECTED, CallStatus.OK, CallStatus.REJECTED]


def test_eight_hundred_reads_run_sixteen_at_a_time() -> None:
    d = Driver()
    d.ask(1, *(asked(i, "get", id=i) for i in range(800)))
    assert len(d.running) == 16
    most = 0
    while d.running:
        most = max(most, len(d.running))
        d.run(until=d.now + 1.0)
    assert most == 16
    assert len(d.answers) == 800


def test_hundreds_of_memo_answers_need_no_recursion() -> None:
    d = Driver()
    d.ask(1, *(asked(i, "get", id=i) for i in range(500)))
    d.run()
    d.ask(2, *(asked(i, "get", id=i) for i in range(500)))
    assert all(d.answers[(2, i)].served is Served.MEMO for i in range(500))


def test_cold_sites_and_poor_odds_launch_nothing() -> None:
    d = Driver()
    d.propose(proposal("get", evidence=1.0, id=1), proposal("get", probability=0.05, id=2))
    assert d.executed == []
    assert sorted(d.refusals()) == ["cold", "not_worth"]


def test_credits_bound_the_waste() -> None:
    d = Driver(policy=replace(POLICY, limits=Limits(concurrent=100, initial_credits=2.0, credits_per_call=0.3)))
    for turn in range(1, 41):
        d.propose(proposal("get", id=1000 + turn))
        d.run(until=d.now + 3.0)
        d.ask(turn, asked(0, "get", id=turn))
        d.run(until=d.now + 3.0)
    wasted = sum(ahead for _, _, ahead in d.executed)
    assert 2 <= wasted <= 2 + 0.3 * 40
    assert "no_credit" in d.refusals() or "site_off" in d.refusals()


def test_a_site_that_loses_turns_off_and_says_so() -> None:
    d = Driver(policy=replace(POLICY, limits=Limits(concurrent=100, initial_credits=100.0, maximum_credits=100.0)))
    for turn in range(1, 30):
        d.propose(proposal("get", id=1000 + turn))
        d.run(until=d.now + 3.0)
        d.ask(turn, asked(0, "set", id=1000 + turn, v=1))
        d.run(until=d.now + 3.0)
    assert "site_off" in d.refusals()
    assert sum(ahead for _, _, ahead in d.executed) < 10


def test_shadow_decides_and_executes_nothing() -> None:
    d = Driver(mode=Mode.SHADOW)
    d.propose(proposal("get", id=1))
    d.run()
    assert d.executed == []
    assert d.refusals() == ["shadow"]


def test_off_neither_speculates_nor_remembers() -> None:
    d = Driver(mode=Mode.OFF)
    d.propose(proposal("get", id=1))
    for turn in (1, 2):
        d.ask(turn, asked(0, "get", id=1))
        d.run()
    assert [ahead for _, _, ahead in d.executed] == [False, False]


def test_withheld_candidates_carry_their_propensity() -> None:
    d = Driver(policy=replace(POLICY, withhold=0.6))
    d.propose(proposal("get", id=1))
    entry = next(entry for entry in d.entries if entry.reason == "withheld")
    assert entry.propensity == pytest.approx(0.4)


def test_what_is_faster_than_the_way_to_it_is_not_run_ahead() -> None:
    d = Driver(seconds={"get": 2.0})
    d.results["get"] = ExecutionResult(status=CallStatus.OK, content=b"{}", seconds=0.1)
    for turn in range(1, 8):
        d.ask(turn, asked(0, "get", id=turn))
        d.run()
    d.propose(proposal("get", id=100, seconds=1.0), proposal("get", id=101, seconds=4.0))
    assert d.refusals() == ["too_fast"]
    assert [json.loads(arguments)["id"] for _, arguments, ahead in d.executed if ahead] == [101]


def test_time_dependent_tools_are_not_run_ahead() -> None:
    d = Driver()
    d.propose(proposal("clock"))
    assert d.refusals() == ["not_allowed"]


def test_a_changed_policy_commits_nothing_of_the_old_one() -> None:
    d = Driver()
    d.propose(proposal("get", id=1))
    d.run(until=3.0)
    d.do(d.machine.set_policy(replace(POLICY, version="2"), d.now))
    d.ask(1, asked(0, "get", id=1))
    d.run()
    assert d.outcomes() == {Outcome.CANCELLED: 1}
    assert d.answers[(1, 0)].served is Served.DIRECT


def test_late_candidates_are_ignored() -> None:
    d = Driver()
    based_on = d.machine.number
    d.ask(1, asked(0, "set", id=9, v=1))
    d.do(d.machine.candidates([proposal("get", id=1)], based_on=based_on, expected_model_seconds=9.0, now=d.now))
    d.settle()
    assert all(not ahead for _, _, ahead in d.executed)


def test_every_launch_has_one_outcome_and_the_books_balance() -> None:
    d = Driver()
    for turn in range(1, 20):
        d.propose(proposal("get", id=turn), proposal("get", id=turn + 1), proposal("look"))
        d.run(until=d.now + (turn % 4))
        d.ask(turn, asked(0, "get", id=turn), asked(1, "set", id=turn + 1, v=turn))
        d.run(until=d.now + 2.0)
    d.do(d.machine.close("done", d.now))
    d.run()
    launched = sum(ahead for _, _, ahead in d.executed)
    assert sum(d.outcomes().values()) == launched == d.machine.totals.launched
    assert d.machine.totals.executions == len(d.executed)


def test_a_commit_that_fails_after_the_end_of_its_session_executes_nothing() -> None:
    d = Driver(merges=False)
    d.propose(proposal("build", id=1))
    d.run(until=5.0)
    d.do(d.machine.asked(1, [asked(0, "build", id=1)], d.now))
    assert len(d.merged) == 1, "it is being committed"
    d.do(d.machine.close("done", d.now))
    assert (1, 0) not in d.answers, "the end of a commit is waited for"
    d.run()
    assert d.answers[(1, 0)].status is CallStatus.CANCELLED
    assert d.answers[(1, 0)].failure == Failure("SESSION_ENDED", "the session has ended")
    assert len(d.executed) == 1


def test_identity_holds_for_another_order_of_keys() -> None:
    first, second = prepared("get", id=1, x={"b": 1, "a": [1, 2]}), prepared("get", x={"a": [1, 2], "b": 1}, id=1)
    assert first.identity == second.identity
    assert first.identity != prepared("get", id=1, x={"b": 1, "a": [2, 1]}).identity


def test_a_call_whose_outcome_is_being_stored_needs_no_tick() -> None:
    d = Driver(seconds={"set": 1.0})
    d.ask(1, asked(0, "set", id=1, v=1), timeout_seconds=3.0)
    d.run(until=0.9)
    store = d.hold_journal()
    d.run(until=1.5)
    assert d.machine.next_time() is None
    store()
    d.run()
    assert d.answers[(1, 0)].status is CallStatus.OK


def test_nothing_is_answered_after_the_session_was_lost() -> None:
    d = Driver()
    d.propose(proposal("get", id=1))
    d.run(until=1.0)
    store = d.hold_journal()
    d.ask(1, asked(0, "get", id=1), asked(1, "set", id=2, v=1), asked(2, "get", id=3))
    d.do(d.machine.lose("taken over", d.now))
    store()
    d.run()
    assert d.answers == {}
    assert d.outcomes() == {Outcome.CANCELLED: 1}
    assert ("set", prepared("set", id=2, v=1).arguments, False) not in d.executed


def test_one_prediction_that_names_a_call_twice_runs_it_once() -> None:
    d = Driver()
    d.propose(proposal("get", id=1), proposal("get", id=1))
    d.run(until=5.0)
    assert len(d.executed) == 1
    assert d.refusals() == ["duplicate"]


@pytest.mark.parametrize(("tool", "tries"), [("get", 3), ("put", 3), ("set", 1)])
def test_a_broken_connection_is_unknown_only_for_what_may_not_be_repeated(tool: str, tries: int) -> None:
    broken = ExecutionResult(status=CallStatus.OUTCOME_UNKNOWN, failure=Failure("TOOL_FAILED", ""), seconds=1.0)
    d = Driver(results={tool: broken})
    d.ask(1, asked(0, tool, id=1))
    d.run()
    assert len(d.executed) == tries
    assert d.answers[(1, 0)].status is (CallStatus.OUTCOME_UNKNOWN if tries == 1 else CallStatus.UNAVAILABLE)


def test_taking_back_a_waiting_call_lets_nobody_overtake_what_it_waited_for() -> None:
    d = Driver()
    d.ask(1, asked(0, "mystery", x=1), asked(1, "mystery", x=2), asked(2, "set", id=1, v=1))
    d.do(d.machine.cancel((1, 1), d.now))
    d.run(until=1.0)
    assert [tool for tool, _, _ in d.executed] == ["mystery"]
    d.run()
    assert [tool for tool, _, _ in d.executed] == ["mystery", "set"]


def test_the_heir_of_a_waiting_call_waits_in_its_place() -> None:
    d = Driver()
    d.ask(1, asked(0, "set", id=1, v=1), asked(1, "get", id=1), asked(2, "get", id=1))
    d.do(d.machine.cancel((1, 1), d.now))
    d.run(until=1.0)
    assert [tool for tool, _, _ in d.executed] == ["set"]
    d.run()
    assert d.answers[(1, 2)].result is not None
    assert json.loads(d.answers[(1, 2)].result.content)[2] == {"orders/1": 1}


def test_a_shared_write_counts_and_stores_its_end_at_the_same_time() -> None:
    d = Driver(seconds={"sell": 1.0})
    d.ask(1, asked(0, "sell", id=1))
    d.run(until=0.5)
    before = sum(d.shared.values())
    store = d.hold_journal()
    d.run(until=2.0)
    assert sum(d.shared.values()) > before
    assert d.answers == {}
    store()
    d.run()
    assert d.answers[(1, 0)].status is CallStatus.OK
