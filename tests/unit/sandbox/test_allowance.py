"""What the capacity of a pool allows its workers, and what they report of their load."""

from __future__ import annotations

import asyncio

import pytest

from forerun.runtime.bus_memory import MemoryBroker, MemoryBus
from forerun.runtime.clock import LoopClock, SystemClock
from forerun.runtime.errors import ResourceExhausted
from forerun.runtime.ids import SeededIds
from forerun.runtime.topology import CAPACITY
from forerun.runtime.virtual import run_virtual
from forerun.sandbox.allowance import Allowance
from forerun.sandbox.worker.slots import Priority, Slots
from forerun.v1 import capacity_pb2


def slots(*, authoritative: int = 1, speculative: int = 4) -> Slots:
    return Slots(authoritative=authoritative, speculative=speculative, queue=10, changed=lambda: None)


def nothing() -> None:
    """A seat whose execution does not mind to leave."""


def test_slots_beyond_what_is_allowed_are_not_given_and_those_in_use_end_by_themselves() -> None:
    seats = slots()
    taken = [seats.ahead("t", None, Priority.SPECULATIVE, nothing) for _ in range(3)]
    seats.allow(2)
    assert seats.speculative_free == 0
    with pytest.raises(ResourceExhausted):
        seats.ahead("t", None, Priority.SPECULATIVE, nothing)
    assert not any(seat.leaving for seat in taken)
    assert seats.refused == 1
    seats.release(taken[0])
    seats.release(taken[1])
    assert seats.speculative_free == 1


def test_nobody_allows_more_than_is_configured_or_less_than_nothing() -> None:
    seats = slots(speculative=4)
    seats.allow(100)
    assert seats.allowed == 4
    seats.allow(-3)
    assert (seats.allowed, seats.speculative_free) == (0, 0)


def test_authoritative_work_has_every_slot_whatever_is_allowed() -> None:
    async def scenario(_clock: LoopClock, _ids: SeededIds) -> None:
        seats = slots(authoritative=1, speculative=2)
        seats.allow(0)
        for _ in range(3):
            await seats.authoritative("t", None, nothing)
        waiting = asyncio.ensure_future(seats.authoritative("t", None, nothing))
        await asyncio.sleep(2.5)
        assert seats.oldest_wait_seconds == pytest.approx(2.5)
        waiting.cancel()

    run_virtual(scenario)


async def test_a_worker_gets_its_share_of_its_own_pool_and_keeps_it() -> None:
    bus = MemoryBus(MemoryBroker(SystemClock()), "worker")
    heard: list[int] = []
    allowance = Allowance(bus, "pool", 8, heard.append)
    store = bus.kv(CAPACITY)
    await store.put("pool", capacity_pb2.PoolCapacity(speculative_slots=11, workers=3).SerializeToString())
    await store.put("pool-2", capacity_pb2.PoolCapacity(speculative_slots=50, workers=1).SerializeToString())
    await allowance.start()
    assert heard == [3]
    await store.put("pool", b"\xff")
    await store.put("pool", capacity_pb2.PoolCapacity(speculative_slots=2, workers=0).SerializeToString())
    await store.delete("pool")
    for _ in range(20):
        await asyncio.sleep(0)
    assert heard == [3, 2, 8]
    await allowance.stop()


async def test_a_worker_without_a_pool_listens_to_nobody() -> None:
    bus = MemoryBus(MemoryBroker(SystemClock()), "worker")
    heard: list[int] = []
    allowance = Allowance(bus, "", 8, heard.append)
    await bus.kv(CAPACITY).put("p", capacity_pb2.PoolCapacity(speculative_slots=1).SerializeToString())
    await allowance.start()
    assert heard == []
    await allowance.stop()
