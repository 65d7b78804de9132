"""Writes wait for the answers before them that an owner could take with it: run again, these would see the write."""

from __future__ import annotations

import pytest

from forerun.core.outcomes import CallStatus, Served
from tests.unit.session.driver import Driver, asked, proposal


def test_a_write_ahead_is_merged_when_the_read_before_it_is_stored() -> None:
    """The next owner would execute the read again, and it would see what the merge has brought."""
    d = Driver()
    d.propose(proposal("build", x=1), proposal("look", x=1))
    d.run(until=5.0)
    store = d.hold_journal()
    d.ask(1, asked(0, "look", x=1), asked(1, "build", x=1))
    assert d.answers[1, 0].served is Served.READY
    assert not d.merged
    store()
    d.settle()
    assert len(d.merged) == 1
    assert d.answers[1, 1].served is Served.READY


@pytest.mark.parametrize(("read", "write"), [("look", "build"), ("get", "put"), ("stock", "fill")])
def test_what_may_be_repeated_begins_when_the_read_before_it_is_stored(read: str, write: str) -> None:
    d = Driver()
    store = d.hold_journal()
    d.ask(1, asked(0, read, id=1), asked(1, write, id=1))
    d.run(until=5.0)
    assert d.answers[1, 0].status is CallStatus.OK
    assert [tool for tool, _, _ in d.executed] == [read]
    store()
    d.run()
    assert [tool for tool, _, _ in d.executed] == [read, write]
    assert d.answers[1, 1].status is CallStatus.OK


@pytest.mark.parametrize("tool", ["put", "fill"])
def test_a_write_that_may_be_repeated_is_stored_before_the_next_one_of_its_message_begins(tool: str) -> None:
    """Run again by the next owner it would come after that one, and undo it."""
    d = Driver()
    store = d.hold_journal()
    d.ask(1, asked(0, tool, id=1, v=1), asked(1, tool, id=1, v=2))
    d.run(until=10.0)
    assert d.answers[1, 0].status is CallStatus.OK
    assert len(d.executed) == 1
    store()
    d.run()
    assert len(d.executed) == 2
    assert d.answers[1, 1].status is CallStatus.OK


def test_a_later_message_says_nothing_of_the_answers_of_one_that_still_runs() -> None:
    """An agent that asks for several messages side by side may not have them."""
    d = Driver(seconds={"copy": 5.0})
    store = d.hold_journal()
    d.ask(1, asked(0, "get", id=1), asked(1, "copy", id=3, of=2), asked(2, "copy", id=1, of=3))
    d.run(until=3.0)
    d.ask(2, asked(0, "get", id=9))
    d.run(until=10.0)
    assert [tool for tool, _, _ in d.executed].count("copy") == 1
    store()
    d.run()
    assert d.answers[1, 2].status is CallStatus.OK


def test_a_write_waits_for_no_answers_but_those_that_it_could_change() -> None:
    d = Driver()
    d.hold_journal()
    d.ask(1, asked(0, "get", id=1), asked(1, "get", id=2))
    d.run(until=5.0)
    d.ask(1, asked(2, "put", id=3))  # of the same message, and nothing that they have read
    d.ask(2, asked(0, "put", id=1))  # who asks for this has the answers of the message before
    assert [tool for tool, _, _ in d.executed] == ["get", "get", "put", "put"]


def test_where_the_answers_cannot_be_stored_the_write_does_not_begin() -> None:
    d = Driver(journal_up=False)
    d.ask(1, asked(0, "look", x=1), asked(1, "build", x=1))
    d.run()
    assert [tool for tool, _, _ in d.executed] == ["look"]
    assert d.answers[1, 1].status is CallStatus.UNAVAILABLE
    failure = d.answers[1, 1].failure
    assert failure is not None and failure.reason == "BROKER_UNAVAILABLE"


@pytest.mark.parametrize("write", ["set", "put", "mystery"])
def test_a_write_does_not_begin_where_an_answer_before_it_that_it_could_change_is_lost(write: str) -> None:
    """Whether it may be repeated or not: the next owner would execute the read again, after it."""
    d = Driver(unstorable={"get"})
    d.ask(1, asked(0, "get", id=1), asked(1, "set", id=2), asked(2, write, id=1))
    d.run()
    assert sorted(tool for tool, _, _ in d.executed) == ["get", "set"]
    assert d.answers[1, 2].status is CallStatus.UNAVAILABLE
    failure = d.answers[1, 2].failure
    assert failure is not None and failure.reason == "BROKER_UNAVAILABLE"
    assert d.intents() == 1, "of the one that touches nothing of it"


def test_what_is_asked_for_beside_a_message_says_nothing_of_its_lost_answers() -> None:
    d = Driver(unstorable={"get"}, seconds={"copy": 9.0})
    d.ask(1, asked(0, "get", id=1), asked(1, "copy", id=3, of=2), asked(2, "copy", id=1, of=3))
    d.run(until=3.0)
    d.ask(2, asked(0, "stock", id=1), asked(1, "fill", id=1))  # stored, and what waits for that begins
    d.run()
    assert d.answers[2, 1].status is CallStatus.OK
    assert d.answers[1, 2].status is CallStatus.UNAVAILABLE


@pytest.mark.parametrize("write", ["set", "put"])
def test_who_asks_for_the_next_message_has_what_the_journal_has_lost(write: str) -> None:
    d = Driver(unstorable={"get"})
    d.ask(1, asked(0, "get", id=1))
    d.run()
    d.ask(2, asked(0, write, id=1))
    d.run()
    assert d.answers[2, 0].status is CallStatus.OK


def test_a_write_that_was_taken_back_while_it_waited_does_not_begin() -> None:
    d = Driver()
    store = d.hold_journal()
    d.ask(1, asked(0, "look", x=1), asked(1, "build", x=1))
    d.run(until=5.0)
    d.do(d.machine.cancel((1, 1), d.now))
    store()
    d.run()
    assert d.answers[1, 1].status is CallStatus.CANCELLED
    assert [tool for tool, _, _ in d.executed] == ["look"]
