"""What a bus counts about itself is the same on every bus."""

from __future__ import annotations

import asyncio

import pytest

from forerun.runtime import metrics_table, subjects
from forerun.runtime.bus import ConsumerSpec, Message
from forerun.runtime.bus_errors import Poison, SequenceMismatch
from forerun.runtime.metrics import Metrics
from forerun.runtime.topology import AUDITS
from tests.contract.runtime_bus.platforms import Platform, eventually


async def test_appends_drops_dead_letters_are_counted(platform: Platform) -> None:
    metrics = Metrics("verifier")
    bus = await platform.bus("admin", metrics)
    work, load = subjects.audit("t"), subjects.load("w")

    async def give_up(_: Message) -> None:
        raise Poison("unreadable")

    async def stuck(_: Message) -> None:
        await asyncio.Event().wait()

    await bus.append(work, b"1", expected_last_sequence=0, timeout_seconds=3.0)
    with pytest.raises(SequenceMismatch):
        await bus.append(work, b"2", expected_last_sequence=0, timeout_seconds=3.0)
    consumption = await bus.consume(ConsumerSpec(AUDITS, "v", (work,)), give_up)
    await eventually(lambda: consumption.dead_lettered == 1)
    subscription = await bus.subscribe(load, stuck, pending_messages=1)
    for _ in range(5):
        await bus.notify(load, b"")
    await eventually(lambda: subscription.dropped >= 3)
    # The dead letter is an append of its own.
    assert metrics.value(metrics_table.BUS_APPENDS, result="ok") == 2
    assert metrics.value(metrics_table.BUS_APPENDS, result="failed") == 1
    assert metrics.value(metrics_table.BUS_APPEND_SECONDS) == 2
    assert metrics.value(metrics_table.DEAD_LETTERS, stream=AUDITS) == 1
    assert metrics.value(metrics_table.DROPPED, bound="notifications") == subscription.dropped
    assert metrics.value(metrics_table.BUS_CONNECTED) == 1


async def test_the_connection_is_a_gauge(platform: Platform) -> None:
    metrics = Metrics("verifier")
    await platform.bus("admin", metrics)
    states = [metrics.value(metrics_table.BUS_CONNECTED)]
    await platform.outage()
    states.append(metrics.value(metrics_table.BUS_CONNECTED))
    await platform.recover()
    states.append(metrics.value(metrics_table.BUS_CONNECTED))
    assert states == [1, 0, 1]
