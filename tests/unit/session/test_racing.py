"""Second attempts of slow reads: the first answer wins, the other is stopped and billed; breakers and retry budgets."""

from dataclasses import replace

import pytest

from forerun.core.ledger import FIRST_WON, SECOND_WON, EntryKind, LedgerEntry
from forerun.core.outcomes import CallStatus
from forerun.core.session import ExecutionResult, Failure, PreparedCall
from tests.unit.session.driver import POLICY, Driver, asked, proposal

AWAY = ExecutionResult(status=CallStatus.UNAVAILABLE, failure=Failure("TOOL_FAILED", "the host is away"))


def warmed(**seconds: float) -> Driver:
    """A session in which forty calls of the tool took a second each."""
    d = Driver(seconds={"race": 1.0})
    for turn in range(1, 41):
        d.ask(turn, asked(0, "race", id=turn))
        d.run()
    d.seconds = seconds
    d.executed.clear()
    return d


def races(d: Driver) -> list[LedgerEntry]:
    return [entry for entry in d.entries if entry.kind is EntryKind.RACE]


def test_a_call_that_takes_longer_than_most_gets_a_second_attempt_and_the_first_answer_wins() -> None:
    d = warmed(**{"race@0": 30.0, "race@1": 1.0})
    d.ask(41, asked(0, "race", id=0))
    d.run()
    answer = d.answers[41, 0]
    assert answer.status is CallStatus.OK
    assert answer.waited_seconds == pytest.approx(2.05)
    assert len(d.executed) == 2
    assert len(d.cancelled) == 1
    (race,) = races(d)
    assert (race.reason, race.status, race.explanation) == (SECOND_WON, CallStatus.CANCELLED, "")
    call = next(entry for entry in d.entries if entry.kind is EntryKind.CALL and entry.call == (41, 0))
    assert call.executions == 2, "both attempts are billed"
    totals = d.machine.totals
    assert (totals.races, totals.races_won_by_second, totals.executions) == (1, 1, 42)


def test_a_first_attempt_that_answers_after_all_stops_the_second() -> None:
    d = warmed(**{"race@0": 1.5, "race@1": 30.0})
    d.ask(41, asked(0, "race", id=0))
    d.run()
    assert d.answers[41, 0].waited_seconds == 1.5
    assert [race.reason for race in races(d)] == [FIRST_WON]
    assert d.running == {}


def test_an_attempt_that_fails_leaves_the_answer_to_the_other() -> None:
    d = warmed(**{"race@0": 1.5, "race@1": 3.0})
    d.results["race@0"] = AWAY
    d.ask(41, asked(0, "race", id=0))
    d.run()
    assert d.answers[41, 0].status is CallStatus.OK
    assert d.answers[41, 0].waited_seconds == pytest.approx(4.05)
    assert len(d.executed) == 2, "no retry beside the attempt that runs"


def test_a_race_that_nobody_wins_is_billed_beside_the_retry() -> None:
    d = warmed(**{"race@0": 1.5, "race@1": 1.0})
    d.results["race@0"] = d.results["race@1"] = AWAY
    d.ask(41, asked(0, "race", id=0))
    d.run(until=d.now + 2.06)
    assert d.running == {}, "both have failed"
    d.results.clear()
    d.run()
    assert d.answers[41, 0].status is CallStatus.OK
    call = next(entry for entry in d.entries if entry.kind is EntryKind.CALL and entry.call == (41, 0))
    assert call.executions == len(d.executed) == 4, "the retry is raced, too"


def test_what_keeps_state_with_its_connection_is_not_raced() -> None:
    d = warmed(**{"race@0": 30.0, "race@1": 1.0})
    one = asked(0, "race", id=0)
    assert isinstance(one.prepared, PreparedCall)
    d.ask(41, replace(one, prepared=replace(one.prepared, connection="server")))
    d.run()
    assert (d.answers[41, 0].waited_seconds, len(d.executed)) == (30.0, 1)


def test_answers_that_differ_are_reported() -> None:
    d = warmed(**{"race@0": 2.0, "race@1": 1.0})
    other = ExecutionResult(status=CallStatus.OK, content=b"other", digest="sha256:other", seconds=2.0)
    d.results["race@0"] = other
    d.ask(41, asked(0, "race", id=0))
    stopped = next(iter(d.running))
    d.run(until=d.now + 1.5)
    (second,) = set(d.running) - {stopped}
    effects = d.machine.execution_finished(second, ExecutionResult(status=CallStatus.OK, digest="sha256:one"), d.now)
    # The loser answers before it hears that it is not needed any more.
    d.do(d.machine.execution_finished(stopped, other, d.now))
    d.do(effects)
    assert [race.explanation for race in races(d)] == ["the other attempt answered sha256:other"]


def test_the_cap_on_extra_calls_holds_where_every_second_call_is_slow() -> None:
    d = Driver(seconds={"dash@1": 9.0})
    for turn in range(1, 201):
        d.seconds["dash@0"] = 1.0 if turn % 2 else 3.0
        d.ask(turn, asked(0, "dash", id=turn))
        d.run()
    assert 18 <= d.machine.totals.races <= 20, "half of the calls are slow; a tenth may be extra"


def test_tries_that_a_restarting_worker_refuses_allow_for_no_second_attempts() -> None:
    d = Driver(seconds={"race@0": 1.0, "race@1": 9.0})
    for turn in range(1, 21):
        d.ask(turn, asked(0, "race", id=turn))
        d.run()
    d.results["race@0"] = ExecutionResult(
        status=CallStatus.UNAVAILABLE, failure=Failure("SHUTTING_DOWN", ""), not_started=True
    )
    d.seconds["race@0"] = 0.0
    d.ask(21, asked(0, "race", id=21), timeout_seconds=120.0)
    d.run(until=d.now + 60.0)
    d.results.clear()
    d.run()
    assert len(d.executed) > 60, "it was tried again all the time"
    d.seconds["race@0"] = 3.0
    for turn in range(22, 28):
        d.ask(turn, asked(0, "race", id=turn))
        d.run()
    assert d.machine.totals.races == 2, "a tenth of the twenty-odd calls that reached the tool"


def test_what_is_young_has_no_second_attempts() -> None:
    d = Driver(seconds={"race@0": 1.0})
    for turn in range(1, 20):
        d.ask(turn, asked(0, "race", id=turn))
        d.run()
    d.seconds["race@0"] = 90.0
    d.ask(20, asked(0, "race", id=20))
    d.run(until=d.now + 50.0)
    assert len(d.executed) == 20


def test_a_call_that_is_taken_back_stops_both_attempts() -> None:
    d = warmed(**{"race@0": 30.0, "race@1": 30.0})
    d.ask(41, asked(0, "race", id=0))
    d.run(until=d.now + 2.0)
    assert len(d.running) == 2
    d.do(d.machine.cancel((41, 0), d.now))
    d.run()
    assert d.answers[41, 0].status is CallStatus.CANCELLED
    assert len(d.cancelled) == 2
    assert d.running == {}


def test_a_deadline_ends_both_attempts() -> None:
    d = warmed(**{"race@0": 900.0, "race@1": 900.0})
    d.ask(41, asked(0, "race", id=0), timeout_seconds=5.0)
    d.run()
    assert (d.answers[41, 0].status, d.answers[41, 0].waited_seconds) == (CallStatus.TIMEOUT, 5.0)
    assert d.running == {}


def test_other_tools_never_race() -> None:
    d = Driver(seconds={"get": 1.0, "set": 1.0})
    for turn in range(1, 61):
        if turn == 41:
            d.seconds = {"get": 50.0, "set": 50.0}
        d.ask(turn, asked(0, "get", id=turn), asked(1, "set", id=-turn))
        d.run()
    assert len(d.executed) == 120


def test_a_provider_that_is_down_gets_few_retries_and_every_call_its_one_attempt() -> None:
    d = Driver(seconds={"get": 0.1}, results={"get": AWAY})
    for turn in range(1, 101):
        d.ask(turn, asked(0, "get", id=turn))
        d.run()
    assert {answer.status for answer in d.answers.values()} == {CallStatus.UNAVAILABLE}
    assert 100 <= len(d.executed) <= 125, "the breaker of the agents' own calls refuses nothing and retries little"


def test_retries_have_a_budget_while_the_provider_mostly_works() -> None:
    d = Driver(seconds={"get": 0.1, "stock": 0.1}, results={"stock": AWAY})
    for turn in range(1, 101):
        d.ask(turn, *(asked(index, "get", id=10 * turn + index) for index in range(4)), asked(4, "stock", id=turn))
        d.run()
    retries = len(d.executed) - 500
    assert 40 <= retries <= 60, "ten at the start and one for ten calls, where each of a hundred would have had two"


def test_failing_guesses_stop_guesses_and_leave_the_calls_alone() -> None:
    rich = replace(POLICY, limits=replace(POLICY.limits, initial_credits=20.0))
    d = Driver(policy=rich, results={"get": AWAY, "stock": AWAY, "look": AWAY})
    for tool in ("get", "stock", "look"):
        for number in range(3):
            d.propose(proposal(tool, id=number))
            d.run()
    assert d.refusals() == ["provider_failing"] * 4, "five failures of two tools speak for their server"
    d.results.clear()
    d.ask(2, asked(0, "get", id=1))
    d.run()
    assert d.answers[2, 0].status is CallStatus.OK
