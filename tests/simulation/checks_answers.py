"""Invariants 4 and 6: every call has one answer, in time, and when all has stopped nothing is left."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.simulation.diary import Asked
from tests.simulation.evidence import Evidence, name_of
from tests.simulation.policy import TOOL_SECONDS

_SETTLE_SECONDS: Final = 16.0
_RESTART_SECONDS: Final = 16.0
_OFFLINE: Final = frozenset({"DEADLINE_EXCEEDED"})


def answers(evidence: Evidence) -> Iterator[str]:
    tap = evidence.tap
    for key, count in tap.answered.items():
        if count > tap.asks[key]:
            yield f"4: {key} was asked {tap.asks[key]} times and answered {count} times"
        different = set(tap.answers.get(key, ()))
        if len(different) > 1 and not evidence.forgetful:
            yield f"4: {key} was answered in {len(different)} ways: {sorted(map(str, different))}"
    if evidence.diary.open:
        yield f"4: {evidence.diary.open} calls are still open"


def deadlines(evidence: Evidence) -> Iterator[str]:
    for one in evidence.diary.asked:
        own = one.timeout_seconds
        bound = TOOL_SECONDS * one.calls if own is None else own
        # Each owner gives a call without a deadline of its own its tool's time anew.
        for outage in evidence.nemesis.outages:
            if outage.begin < one.answered_at and outage.end > one.asked_at:
                bound += outage.end - outage.begin + _RESTART_SECONDS + (0.0 if own is not None else bound)
        if one.answered_at - one.asked_at > bound + _SETTLE_SECONDS:
            yield f"4: {name_of(one)} took {one.answered_at - one.asked_at:.1f} s, its bound is {bound:.1f} s"
        if one.reason in _OFFLINE and not _away(evidence, one):
            yield f"4: {name_of(one)} got no answer of the platform although nothing was away"
        if one.status != "ok" and not one.reason:
            yield f"4: {name_of(one)} ended {one.status} without a reason"
        if not evidence.kinds and one.status == "unavailable":
            yield f"4: {name_of(one)} ended {one.status} ({one.reason}) although nothing went wrong"
    if not evidence.kinds and evidence.diary.lost:
        yield f"4: sessions were lost although nothing went wrong: {evidence.diary.lost}"


def _away(evidence: Evidence, one: Asked) -> bool:
    return any(
        outage.begin < one.answered_at and outage.end + _RESTART_SECONDS > one.asked_at
        for outage in evidence.nemesis.outages
    )


def remains(evidence: Evidence) -> Iterator[str]:
    if evidence.leaked:
        yield f"6: tasks are left: {evidence.leaked}"
    if left := sum(totals.sessions for totals in evidence.totals):
        yield f"6: {left} sessions are open although their clients are gone"
    if evidence.world.open:
        yield f"6: {evidence.world.open} executions are open"
    if evidence.broker.clients:
        yield f"6: bus connections are open: {[client.name for client in evidence.broker.clients]}"
    for name, stream in evidence.broker.streams.items():
        for consumer in stream.consumers.values():
            if consumer.takers:
                yield f"6: {name} is still consumed by {len(consumer.takers)}"
