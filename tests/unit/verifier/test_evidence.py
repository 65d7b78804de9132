from __future__ import annotations

from dataclasses import replace

import pytest

from forerun.core.contracts import Contract, Effect, ResourceTemplate
from forerun.v1 import common_pb2, event_pb2
from forerun.verifier.evidence import Contracts, Journal, auditable, shared_marks, unprovable

READ = Contract("read", "s", Effect.READ, reads=(ResourceTemplate("files/{path:path}"),))
BASH = Contract("bash", "s", Effect.WRITE, staged=True, writes=(ResourceTemplate("files"),), shell_argument="command")
GROUP = Contract("db.*", "s", Effect.READ, reads=(ResourceTemplate("db"),))
CONTRACTS = Contracts([READ, BASH, GROUP])
HIT_AT = 100.0


def opened() -> event_pb2.SessionEvent:
    return event_pb2.SessionEvent(at_seconds=1.0, opened=event_pb2.SessionOpened())


def asked(turn: int, tool: str, arguments: bytes = b"{}", at: float = 90.0) -> event_pb2.SessionEvent:
    call = event_pb2.AskedCall(index=0, action=common_pb2.Action(tool=tool, arguments=arguments))
    return event_pb2.SessionEvent(at_seconds=at, calls_asked=event_pb2.CallsAsked(turn=turn, calls=[call]))


def finished(turn: int, at: float) -> event_pb2.SessionEvent:
    key = common_pb2.CallKey(turn=turn, index=0)
    return event_pb2.SessionEvent(at_seconds=at, call_finished=event_pb2.CallFinished(call=key))


def closed() -> event_pb2.SessionEvent:
    return event_pb2.SessionEvent(at_seconds=200.0, closed=event_pb2.SessionClosed())


def written(*events: event_pb2.SessionEvent, in_workspace: bool = False) -> str:
    journal = Journal((5, 0), HIT_AT, CONTRACTS, in_workspace=in_workspace)
    for event in events:
        journal.take(event)
    return journal.written


@pytest.mark.parametrize(
    "events",
    [
        [asked(1, "read"), finished(1, 99.0), asked(5, "read"), finished(5, 100.0)],
        [asked(1, "bash", b'{"command": "rm x"}'), finished(1, 99.0)],
        [asked(6, "read", at=101.0)],
        [asked(6, "db.query", at=101.0)],
        [asked(6, "bash", b'{"command": "cat notes.txt"}', at=101.0)],
        [closed()],
    ],
)
def test_nothing_was_written_since(events: list[event_pb2.SessionEvent]) -> None:
    assert written(opened(), *events) == ""


@pytest.mark.parametrize(
    "events",
    [
        [asked(6, "bash", b'{"command": "rm x"}', at=101.0), finished(6, 102.0)],
        [asked(6, "bash", b'{"command": "rm x"}', at=101.0)],
        [asked(4, "bash", b'{"command": "rm x"}', at=99.0), finished(4, 100.0)],
        [asked(4, "bash", b"not json", at=99.0), finished(4, 101.0)],
        [asked(6, "nobody knows it", at=101.0)],
    ],
)
def test_something_may_have_been_written_since(events: list[event_pb2.SessionEvent]) -> None:
    assert written(opened(), *events) != ""


def test_the_audited_call_itself_is_no_write() -> None:
    assert written(opened(), asked(5, "nobody knows it"), finished(5, 100.0)) == ""


def test_a_workspace_ends_with_its_session_and_a_missing_journal_proves_nothing() -> None:
    assert written(opened(), closed(), in_workspace=True) != ""
    assert written() != ""


def test_only_reads_are_executed_again() -> None:
    assert auditable(READ)
    assert auditable(replace(READ, effect=Effect.PURE))
    assert not auditable(BASH)
    assert not auditable(replace(READ, consuming=True))


def test_a_tool_with_an_age_limit_cannot_prove_a_difference() -> None:
    assert unprovable(READ) == ""
    assert unprovable(replace(READ, open_world=True)) != ""
    assert unprovable(replace(READ, max_staleness_seconds=3.0)) != ""


def test_shared_marks_are_found_by_their_prefix() -> None:
    assert shared_marks({"shared/self:orders/7": 4, "self:files": 2}) == {"self:orders/7": 4}


def test_shared_marks_have_one_order_whatever_the_message_gives() -> None:
    assert list(shared_marks({"shared/b": 1, "shared/c": 1, "shared/a": 1})) == ["a", "b", "c"]
