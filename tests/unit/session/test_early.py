"""Early issue: reads of a message that streams, used by what the complete message asks for and by nothing else."""

from forerun.core.ledger import EntryKind
from forerun.core.outcomes import CallStatus, Mode, Outcome, Served
from forerun.core.session import Certificate
from tests.unit.session.driver import Driver, asked, proposal


def partial(d: Driver, turn: int, *calls: object) -> None:
    d.do(d.machine.partial(turn, calls, d.now))  # type: ignore[arg-type]
    d.settle()


def executed(d: Driver) -> list[str]:
    return [tool for tool, _, _ in d.executed]


def early(d: Driver) -> list[Outcome | None]:
    return [entry.outcome for entry in d.entries if entry.kind is EntryKind.EARLY]


def test_a_read_runs_while_the_message_streams_and_answers_its_call_at_once() -> None:
    d = Driver(seconds={"get": 1.0})
    partial(d, 1, asked(0, "get", id=1))
    assert d.executed == [("get", b'{"id": 1}', False)]
    d.run(until=5.0)
    d.ask(1, asked(0, "get", id=1))
    answer = d.answers[1, 0]
    assert (answer.status, answer.served, answer.waited_seconds) == (CallStatus.OK, Served.EARLY, 0.0)
    assert executed(d) == ["get"]
    assert early(d) == [Outcome.READY]
    totals = d.machine.totals
    assert (totals.early_issued, totals.early_used, totals.launched, totals.executions) == (1, 1, 0, 1)
    assert totals.saved_seconds == 1.0


def test_a_call_joins_an_early_read_that_runs_without_any_promotion() -> None:
    d = Driver(seconds={"get": 4.0})
    partial(d, 1, asked(0, "get", id=1))
    d.run(until=1.0)
    d.ask(1, asked(0, "get", id=1))
    d.run()
    assert d.answers[1, 0].served is Served.EARLY
    assert d.answers[1, 0].waited_seconds == 3.0
    assert d.promoted == []


def test_what_the_complete_message_does_not_ask_for_is_stopped_and_shown_to_nobody() -> None:
    d = Driver(seconds={"get": 4.0})
    partial(d, 1, asked(0, "get", id=1))
    d.run(until=1.0)
    d.ask(1, asked(0, "get", id=2))
    d.run()
    assert d.cancelled
    assert early(d) == [Outcome.MISS]
    assert d.answers[1, 0].served is Served.DIRECT
    d.ask(2, asked(0, "get", id=1))
    d.run()
    assert d.answers[2, 0].served is Served.DIRECT, "what nobody asked for is not remembered either"


def test_a_message_that_is_cut_off_commits_nothing() -> None:
    d = Driver(seconds={"get": 4.0})
    partial(d, 1, asked(0, "get", id=1))
    d.do(d.machine.model_started(2, d.now))
    d.run()
    assert early(d) == [Outcome.MISS]
    assert d.answers == {}


def test_only_safe_reads_start_and_only_without_a_gap() -> None:
    d = Driver()
    partial(d, 1, asked(0, "set", id=1), asked(1, "nobody-knows", id=1), asked(2, "get", id=9), asked(4, "get", id=3))
    partial(d, 2, asked(0, "build", x=1), asked(1, "clock", x=1), asked(2, "web", url="http://x/?q=secret"))
    assert executed(d) == []
    partial(d, 3, asked(1, "get", id=1))
    assert executed(d) == []
    partial(d, 3, asked(0, "get", id=2))
    partial(d, 3, asked(1, "get", id=1), asked(0, "get", id=2))
    assert executed(d) == ["get", "get"]


def test_a_read_after_a_write_of_its_message_waits_and_one_beside_it_does_not() -> None:
    d = Driver()
    partial(d, 1, asked(0, "set", id=1), asked(1, "get", id=1), asked(2, "get", id=2))
    assert d.executed == [("get", b'{"id": 2}', False)]
    d.ask(1, asked(0, "set", id=1), asked(1, "get", id=1), asked(2, "get", id=2))
    d.run()
    assert [d.answers[1, i].served for i in range(3)] == [Served.DIRECT, Served.DIRECT, Served.EARLY]


def test_a_write_between_the_issue_and_the_ask_makes_an_early_read_stale() -> None:
    d = Driver(seconds={"get": 0.1, "set": 1.0})
    d.ask(1, asked(0, "set", id=1))
    partial(d, 2, asked(0, "get", id=1))
    d.run()
    d.ask(2, asked(0, "get", id=1))
    d.run()
    assert d.answers[2, 0].served is Served.DIRECT


def test_a_guess_that_runs_already_is_not_issued_again() -> None:
    d = Driver(seconds={"get": 4.0})
    d.do(d.machine.candidates([proposal("get", id=1)], based_on=0, expected_model_seconds=9.0, now=d.now))
    partial(d, 1, asked(0, "get", id=1))
    d.ask(1, asked(0, "get", id=1))
    d.run()
    assert executed(d) == ["get"]
    assert d.answers[1, 0].served is Served.JOINED


def test_equal_reads_of_a_message_share_one_early_execution() -> None:
    d = Driver()
    calls = (asked(0, "get", id=1), asked(1, "get", id=1))
    partial(d, 1, *calls)
    d.ask(1, *calls)
    d.run()
    assert executed(d) == ["get"]
    assert [d.answers[1, i].served for i in range(2)] == [Served.EARLY, Served.SHARED]


def test_switched_off_nothing_is_issued_and_what_runs_is_stopped() -> None:
    d = Driver(seconds={"get": 4.0})
    partial(d, 1, asked(0, "get", id=1))
    d.do(d.machine.set_mode(Mode.OFF, "switched off", d.now))
    partial(d, 1, asked(0, "get", id=1), asked(1, "get", id=2))
    assert executed(d) == ["get"]
    assert early(d) == [Outcome.CANCELLED]


def test_an_early_read_that_fails_is_executed_when_it_is_asked_for() -> None:
    d = Driver(verifier=Certificate(False, "stale"))
    partial(d, 1, asked(0, "get", id=1))
    d.run()
    d.ask(1, asked(0, "get", id=1))
    d.run()
    assert executed(d) == ["get", "get"]
    assert d.answers[1, 0].served is Served.DIRECT


def test_the_number_of_early_reads_of_a_message_has_a_bound() -> None:
    d = Driver(seconds={"get": 4.0})
    partial(d, 1, *(asked(index, "get", id=index) for index in range(40)))
    assert len(executed(d)) == 16
    d.ask(1, *(asked(index, "get", id=index) for index in range(40)))
    d.run()
    assert len(d.answers) == 40
    assert len(executed(d)) == 40
