"""Ledger lines that are owed to a broker that is away."""

from __future__ import annotations

import asyncio

import pytest

from forerun.core import limits
from forerun.orchestrator.ledger import Outbox
from forerun.runtime import metrics_table as m
from forerun.runtime.bus_memory import MemoryBroker, MemoryBus
from forerun.runtime.clock import LoopClock
from forerun.runtime.ids import SeededIds
from forerun.runtime.metrics import Metrics
from forerun.runtime.virtual import run_virtual

SUBJECT = "forerun.v1.ledger.t.s"


def test_lines_beyond_the_bound_are_dropped_counted_and_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(limits, "OUTBOX_MESSAGES", 5)

    async def main(clock: LoopClock, ids: SeededIds) -> None:
        bus, metrics = MemoryBus(MemoryBroker(clock), "owner"), Metrics("orchestrator")
        outbox = Outbox(bus, metrics)
        task = asyncio.ensure_future(outbox.run())
        bus.broker.go_down()
        for number in range(8):
            outbox.put(SUBJECT, b"line", f"line-{number}")
        assert (outbox.owed, metrics.value(m.DROPPED, bound="outbox")) == (5, 3)
        assert not await outbox.drain(3.0)
        bus.broker.come_up()
        assert await outbox.drain(30.0)
        assert len(await bus.read(SUBJECT, limit=100)) == 5
        task.cancel()
        await asyncio.wait([task])

    run_virtual(main)
    assert [record.message for record in caplog.records if "OUTBOX_MESSAGES" in record.message] == [
        "more ledger lines are owed than OUTBOX_MESSAGES allows: further ones are lost and counted"
    ]
