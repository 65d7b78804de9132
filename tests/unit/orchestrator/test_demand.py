"""What an orchestrator tells of its demand."""

from __future__ import annotations

import asyncio

from forerun.core.governor import Refusal
from forerun.core.ledger import EntryKind, LedgerEntry
from forerun.core.outcomes import Outcome
from forerun.orchestrator.demand import Demand
from forerun.orchestrator.places import Places
from forerun.runtime import subjects
from forerun.runtime.bus import Message
from forerun.runtime.bus_memory import MemoryBroker, MemoryBus
from forerun.runtime.clock import SystemClock
from forerun.v1 import capacity_pb2


def speculation(outcome: Outcome, seconds: float, saved: float) -> LedgerEntry:
    return LedgerEntry(kind=EntryKind.SPECULATION, tool="t", outcome=outcome, seconds=seconds, saved_seconds=saved)


async def test_a_report_holds_calls_that_run_and_wait_and_what_speculation_gave() -> None:
    bus = MemoryBus(MemoryBroker(SystemClock()), "one")
    heard: list[capacity_pb2.DemandReport] = []

    async def hear(message: Message) -> None:
        heard.append(capacity_pb2.DemandReport.FromString(message.data))

    await bus.subscribe(subjects.demands(), hear, pending_messages=10)
    places = Places(calls_per_tenant=1)
    demand = Demand("one", bus, places, lambda: 3)
    await places.take("t")
    waiting = asyncio.ensure_future(places.take("t"))
    await asyncio.sleep(0)
    demand.recorded(speculation(Outcome.READY, 2.0, 1.5))
    demand.recorded(speculation(Outcome.MISS, 3.0, 0.0))
    demand.recorded(LedgerEntry(kind=EntryKind.DECISION, tool="t", reason=Refusal.NO_SLOT))
    demand.recorded(LedgerEntry(kind=EntryKind.DECISION, tool="t", reason=Refusal.COLD))
    await demand.tell()
    for _ in range(10):
        await asyncio.sleep(0)
    (report,) = heard
    assert (report.owner, report.sessions_open, report.calls_in_flight) == ("one", 3, 2)
    assert (report.saved_seconds, report.speculative_seconds) == (1.5, 5.0)
    assert report.speculations_without_slot == 1
    waiting.cancel()
