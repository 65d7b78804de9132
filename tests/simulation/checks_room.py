"""Invariant 7: slots and places come back when what had them has ended, whatever way it ended."""

from __future__ import annotations

from collections.abc import Iterator

from forerun.v1 import ledger_pb2
from tests.simulation.evidence import Evidence, end_of

_FRESH_SECONDS = 3.0
_LONGEST_SECONDS = 10.0
_WARM_UP_SECONDS = 10.0
_NEWS_SECONDS = 1.0


def room(evidence: Evidence) -> Iterator[str]:
    """When nothing runs everything is free, and nothing is refused for want of a slot that nobody has."""
    yield from _unused(evidence)
    if not evidence.kinds:
        yield from _needless(evidence)


def _unused(evidence: Evidence) -> Iterator[str]:
    now = evidence.quiet_at
    busy = any(end_of(one) > now - _FRESH_SECONDS for one in evidence.world.log if one.started_at <= now)
    calls, ahead = evidence.slots
    every = (calls + ahead, ahead)  # a call may take a slot from what runs ahead
    for heard_at, load in evidence.reports.loads.values():
        free = (load.authoritative_free, load.speculative_free)
        if not busy and heard_at > now - _FRESH_SECONDS and (free != every or load.authoritative_waiting):
            yield f"7: {load.worker} has {free} of {every} slots free while nothing runs"
    for heard_at, demand in evidence.reports.demands.values():
        if heard_at > now - _FRESH_SECONDS and demand.calls_in_flight:
            yield f"7: {demand.owner} has places for {demand.calls_in_flight} calls taken while nothing runs"


def _needless(evidence: Evidence) -> Iterator[str]:
    """Where nothing goes wrong, a speculation without a slot is one beside others, or calls have all of them."""
    begun = [
        at
        for execution, at in evidence.wiretap.begun_at.items()
        if execution in evidence.ahead or "." not in execution  # audits have ids of their own
    ]
    for line in evidence.lines:
        if line.kind != ledger_pb2.LEDGER_KIND_DECISION or line.reason != "no_slot":
            continue
        now = line.at_seconds - evidence.epoch_seconds
        if _at_work(evidence, now) >= sum(evidence.slots):
            continue
        if now > _WARM_UP_SECONDS and not any(abs(now - at) <= _LONGEST_SECONDS for at in begun):
            yield f"7: {line.session} was refused a slot at {now:.3f}, although nothing had run ahead for some time"


def _at_work(evidence: Evidence, now: float) -> int:
    """Executions that had a slot, or waited for one, by the last that a replica may have heard."""
    tap = evidence.wiretap
    return sum(
        at <= now and tap.ended_at.get(execution, now) >= now - _NEWS_SECONDS for execution, at in tap.begun_at.items()
    )
