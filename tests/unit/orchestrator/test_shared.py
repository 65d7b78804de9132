"""Generations of shared resources: counts, and resources that a write may be changing."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from forerun.core import limits
from forerun.core.freshness import UNSETTLED, dependencies
from forerun.core.resources import ROOT
from forerun.orchestrator.shared import SharedGenerations
from forerun.runtime.bus import Entry, KeyValue
from forerun.runtime.bus_memory import MemoryBroker, MemoryBus
from forerun.runtime.bus_memory_faults import AppendFault, Faults
from forerun.runtime.clock import Clock
from forerun.runtime.errors import Unavailable
from forerun.runtime.ids import Ids
from forerun.runtime.virtual import run_virtual

SEVEN, EIGHT = dependencies(["stock/7"]), dependencies(["stock/8"])
AFTER = limits.UNSETTLED_SECONDS + limits.CLOCK_SKEW_SECONDS
Scenario = Callable[[SharedGenerations, SharedGenerations, MemoryBroker], Awaitable[None]]


def run(scenario: Scenario, *, latency_seconds: float = 0.0) -> None:
    """Two replicas at one broker."""

    async def main(clock: Clock, ids: Ids) -> None:
        broker = MemoryBroker(clock, latency_seconds=latency_seconds)
        one, other = (SharedGenerations(MemoryBus(broker, name), name, clock.now) for name in ("one", "other"))
        await scenario(one, other, broker)

    run_virtual(main, epoch=1_700_000_000.0, seed=1)


async def trusted(replica: SharedGenerations, *numbers: int) -> list[bool]:
    """Whether what is read of some stocks may be kept."""
    looks = [await replica.read("t", dependencies([f"stock/{number}"])) for number in numbers]
    return [max(look.values()) < UNSETTLED for look in looks]


async def begin(replica: SharedGenerations, number: int, *, seconds: float = 30.0) -> None:
    """A write of a stock begins."""
    await replica.begin("t", f"write-{number}", (f"stock/{number}",), seconds)


async def end(replica: SharedGenerations, number: int, *, unsettled: bool = False) -> None:
    """A write of a stock ends."""
    await replica.end("t", f"write-{number}", (f"stock/{number}",), unsettled=unsettled)


class Counted:
    """A bucket that counts what is done to the index, and the most of it at the same time."""

    def __init__(self, replica: SharedGenerations) -> None:
        self._bucket: KeyValue = replica._bucket
        self.calls: Counter[str] = Counter()
        self.running = self.most = 0
        self.get, self.put = self._bucket.get, self._bucket.put

    async def create(self, key: str, value: bytes) -> int:
        return await self._counted("create", self._bucket.create(key, value))

    async def update(self, key: str, value: bytes, revision: int) -> int:
        return await self._counted("update", self._bucket.update(key, value, revision))

    async def _counted(self, name: str, work: Awaitable[int]) -> int:
        self.calls[name] += 1
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            return await work
        finally:
            self.running -= 1


# ---------------------------------------------------------------- writes that run


def test_from_its_start_to_its_end_a_write_has_another_generation_at_every_look() -> None:
    async def scenario(writer: SharedGenerations, reader: SharedGenerations, _: MemoryBroker) -> None:
        before = await reader.read("t", SEVEN)
        assert before == await reader.read("t", SEVEN)
        await begin(writer, 7)
        looks = [await one.read("t", SEVEN) for one in (reader, writer, reader)]
        assert all(look["self:stock/7"] >= UNSETTLED for look in looks)
        assert looks[0] != looks[2]
        assert await trusted(reader, 8) == [True]
        assert max((await reader.read("another", SEVEN)).values()) < UNSETTLED
        await end(writer, 7)
        after = await reader.read("t", SEVEN)
        assert after == await writer.read("t", SEVEN)
        assert before["self:stock/7"] < after["self:stock/7"] < UNSETTLED

    run(scenario)


def test_it_is_counted_at_its_start_and_at_its_end() -> None:
    async def scenario(writer: SharedGenerations, _: SharedGenerations, broker: MemoryBroker) -> None:
        counts = [_revision(broker)]
        for step in (begin, end):
            await step(writer, 7)
            counts.append(_revision(broker))
        assert counts == sorted(set(counts))

    run(scenario)


def _revision(broker: MemoryBroker) -> int:
    entry = broker.buckets["generations"].get("t/self:stock/7")
    return 0 if entry is None else entry.revision


def test_a_resource_is_trusted_when_its_last_write_has_ended() -> None:
    async def scenario(one: SharedGenerations, other: SharedGenerations, _: MemoryBroker) -> None:
        await one.begin("t", "a", ("stock/7",), 30.0)
        await one.begin("t", "b", ("stock/7",), 30.0)
        await other.begin("t", "a", ("stock/7",), 30.0)
        seen = []
        for replica, write in ((one, "a"), (other, "a"), (one, "b")):
            seen += await trusted(other, 7)
            await replica.end("t", write, ("stock/7",), unsettled=False)
        assert seen == [False] * 3 and await trusted(one, 7) == await trusted(other, 7) == [True]

    run(scenario)


def test_what_a_dead_replica_has_begun_is_not_trusted_until_nothing_of_it_can_follow() -> None:
    async def scenario(dead: SharedGenerations, other: SharedGenerations, _: MemoryBroker) -> None:
        await begin(dead, 7, seconds=30.0)
        await begin(other, 8)
        await end(other, 8)
        await asyncio.sleep(29.0 + AFTER)
        assert await trusted(other, 7, 8) == [False, True]
        await asyncio.sleep(2.0)
        assert await trusted(other, 7) == [True]

    run(scenario)


def test_a_write_that_everything_belongs_to_blocks_the_tenant_while_it_runs() -> None:
    async def scenario(writer: SharedGenerations, reader: SharedGenerations, _: MemoryBroker) -> None:
        await writer.begin("t", "w", (ROOT,), 3_600.0)
        assert await trusted(reader, 7, 8) == [False, False]
        await writer.end("t", "w", (ROOT,), unsettled=False)
        assert await trusted(reader, 7, 8) == [True, True]

    run(scenario)


# ---------------------------------------------------------------- updates of the index


def test_what_one_replica_begins_and_ends_at_the_same_time_is_few_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(writer: SharedGenerations, reader: SharedGenerations, _: MemoryBroker) -> None:
        counted = Counted(writer)
        monkeypatch.setattr(writer, "_bucket", counted)
        await asyncio.gather(*(begin(writer, number) for number in range(20)))
        assert counted.calls.total() == 2
        assert not any(await trusted(reader, *range(20)))
        counted.calls.clear()
        await asyncio.gather(*(end(writer, number) for number in range(20)))
        assert counted.calls.total() == 1 and counted.most == 1
        assert all(await trusted(reader, *range(20)))
        counted.calls.clear()
        await begin(writer, 1)
        await end(writer, 1)
        assert counted.calls == {"update": 2}, "and nothing is read before it"

    run(scenario, latency_seconds=0.01)


def test_replicas_that_register_at_the_same_time_lose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(one: SharedGenerations, other: SharedGenerations, _: MemoryBroker) -> None:
        counts = [Counted(replica) for replica in (one, other)]
        for replica, counted in zip((one, other), counts, strict=True):
            monkeypatch.setattr(replica, "_bucket", counted)
        await asyncio.gather(*(begin((one, other)[number % 2], number) for number in range(20)))
        assert not any(await trusted(one, *range(20)))
        await asyncio.gather(*(end((one, other)[number % 2], number) for number in range(0, 20, 3)))
        assert await trusted(other, *range(20)) == [number % 3 == 0 for number in range(20)]
        assert sum(counted.calls.total() for counted in counts) <= 16

    run(scenario, latency_seconds=0.01)


def test_who_is_cancelled_while_it_stores_holds_nobody_up() -> None:
    async def scenario(writer: SharedGenerations, reader: SharedGenerations, _: MemoryBroker) -> None:
        first, second = (asyncio.ensure_future(begin(writer, number)) for number in (1, 2))
        await asyncio.sleep(0.005)
        first.cancel()
        await second
        await end(writer, 1)
        assert await trusted(reader, 1, 2) == [True, False]

    run(scenario, latency_seconds=0.01)


def test_so_many_that_they_count_as_one_until_there_are_fewer() -> None:
    async def scenario(one: SharedGenerations, other: SharedGenerations, _: MemoryBroker) -> None:
        for number in range(limits.UNSETTLED_KEYS + 1):
            await begin(one, number)
        assert (await other.read("t", dependencies(["users/1"])))[f"self:{ROOT}"] >= UNSETTLED
        await end(one, 0)
        assert max((await other.read("t", dependencies(["users/1"]))).values()) < UNSETTLED
        assert await trusted(other, 0, 1) == [True, False]

    run(scenario)


def test_tenants_whose_writes_have_ended_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(one: SharedGenerations, other: SharedGenerations, _: MemoryBroker) -> None:
        monkeypatch.setattr("forerun.orchestrator.shared._TENANTS", 4)
        await begin(one, 7)
        for number in range(10):
            await one.begin(f"t{number}", "w", ("stock/7",), 30.0)
            await one.end(f"t{number}", "w", ("stock/7",), unsettled=False)
        assert len(one._parts) <= 4
        assert await trusted(other, 7) == [False]
        await end(one, 7)
        assert await trusted(other, 7) == [True]

    run(scenario)


def test_without_the_broker_nothing_is_known() -> None:
    async def scenario(one: SharedGenerations, other: SharedGenerations, broker: MemoryBroker) -> None:
        broker.go_down()
        with pytest.raises(Unavailable):
            await begin(one, 7)
        with pytest.raises(Unavailable):
            await other.read("t", SEVEN)
        broker.come_up()
        await begin(one, 8)
        await end(one, 7)
        assert await trusted(other, 7, 8) == [True, False]

    run(scenario)


# ---------------------------------------------------------------- writes that may go on


def test_what_may_go_on_is_not_trusted_for_as_long_as_it_may() -> None:
    async def scenario(writer: SharedGenerations, reader: SharedGenerations, _: MemoryBroker) -> None:
        await begin(writer, 7)
        await end(writer, 7, unsettled=True)
        await writer.end("t", "", ("stock/8",), unsettled=True)
        await end(writer, 7)
        assert await trusted(reader, 7, 8) == [False, False]
        await asyncio.sleep(AFTER - 1.0)
        assert await trusted(reader, 7, 8) == [False, False]
        await asyncio.sleep(1.0)
        assert await trusted(reader, 7, 8) == [True, True]

    run(scenario)


def test_each_resource_has_its_own_time_also_where_the_clock_is_set_back() -> None:
    async def scenario(_: SharedGenerations, __: SharedGenerations, broker: MemoryBroker) -> None:
        now = 0.0
        reader, writer = (SharedGenerations(MemoryBus(broker, name), name, lambda: now) for name in ("r", "w"))
        await end(writer, 7, unsettled=True)
        now = 100.0
        await end(writer, 8, unsettled=True)
        assert await trusted(reader, 7, 8) == [False, False]
        now = AFTER
        assert await trusted(reader, 7, 8) == [True, False]
        now = 200.0
        assert await trusted(reader, 7, 8) == [False, False]
        now = 100.0 + AFTER
        assert await trusted(reader, 7, 8) == [True, True]

    run(scenario)


class LateIndex:
    """A bucket whose first answer about the index is overtaken by everything else."""

    def __init__(self, bucket: KeyValue) -> None:
        self.get_soon = bucket.get
        self.asked, self.go_on = asyncio.Event(), asyncio.Event()

    async def get(self, key: str) -> Entry | None:
        entry = await self.get_soon(key)
        if key.endswith("/unsettled") and not self.asked.is_set():
            self.asked.set()
            await self.go_on.wait()
        elif not self.go_on.is_set():
            await self.go_on.wait()
            entry = await self.get_soon(key)
        return entry


@pytest.mark.parametrize("step", [begin, lambda writer, number: end(writer, number, unsettled=True)])
def test_who_sees_the_count_of_a_write_sees_that_it_runs_or_may_go_on(
    monkeypatch: pytest.MonkeyPatch, step: Callable[[SharedGenerations, int], Awaitable[None]]
) -> None:
    async def scenario(writer: SharedGenerations, reader: SharedGenerations, _: MemoryBroker) -> None:
        await end(writer, 7)
        await reader.read("t", SEVEN)
        late = LateIndex(reader._bucket)
        monkeypatch.setattr(reader, "_bucket", late)
        reading = asyncio.ensure_future(reader.read("t", SEVEN))
        await late.asked.wait()
        await step(writer, 7)
        late.go_on.set()
        assert (await reading)["self:stock/7"] >= UNSETTLED

    run(scenario)


def test_a_count_that_fails_leaves_nothing_behind_that_still_counts() -> None:
    class FirstRefusedThenLost(Faults):
        asked = 0

        def append(self, client: str, subject: str) -> AppendFault:
            self.asked += 1
            return AppendFault.REFUSED if self.asked == 1 else AppendFault.LOST

    async def main(clock: Clock, ids: Ids) -> None:
        shared = SharedGenerations(MemoryBus(MemoryBroker(clock, faults=FirstRefusedThenLost())), "one", clock.now)
        with pytest.raises(Unavailable):
            await end(shared, 7)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run_virtual(main)
