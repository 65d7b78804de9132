"""Generations of shared resources: counts, and resources that may still be written."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from forerun.core import limits
from forerun.core.freshness import UNSETTLED, dependencies
from forerun.core.resources import ROOT
from forerun.orchestrator.shared import SharedGenerations
from forerun.runtime.bus import Entry, KeyValue
from forerun.runtime.bus_memory import MemoryBroker, MemoryBus
from forerun.runtime.clock import Clock
from forerun.runtime.errors import Unavailable
from forerun.runtime.ids import Ids
from forerun.runtime.virtual import run_virtual

SEVEN, EIGHT = dependencies(["stock/7"]), dependencies(["stock/8"])
Scenario = Callable[[SharedGenerations, SharedGenerations, MemoryBroker], Awaitable[None]]


def run(scenario: Scenario) -> None:
    """Two replicas at one broker."""

    async def main(clock: Clock, ids: Ids) -> None:
        broker = MemoryBroker(clock)
        one, other = (SharedGenerations(MemoryBus(broker, name), clock.now) for name in ("one", "other"))
        await scenario(one, other, broker)

    run_virtual(main, epoch=1_700_000_000.0, seed=1)


def test_what_may_still_be_written_has_another_generation_at_every_look() -> None:
    async def scenario(writer: SharedGenerations, reader: SharedGenerations, _: MemoryBroker) -> None:
        await writer.bump("t", ["stock/7"])
        before = await reader.read("t", SEVEN)
        assert before == await reader.read("t", SEVEN)
        await writer.unsettle("t", ["stock/7"])
        looks = [await one.read("t", SEVEN) for one in (reader, writer, reader)]
        assert all(look["self:stock/7"] >= UNSETTLED for look in looks)
        assert len({look["self:stock/7"] for look in (looks[0], looks[2])}) == 2
        assert max((await reader.read("t", EIGHT)).values()) < UNSETTLED
        assert max((await reader.read("another", SEVEN)).values()) < UNSETTLED
        await writer.bump("t", ["stock/7"])
        await asyncio.sleep(limits.UNSETTLED_SECONDS)
        after = await reader.read("t", SEVEN)
        assert max(after.values()) < UNSETTLED and after["self:stock/7"] > before["self:stock/7"]

    run(scenario)


def test_each_resource_has_its_own_time_also_where_the_clock_is_set_back() -> None:
    async def scenario(writer: SharedGenerations, _: SharedGenerations, broker: MemoryBroker) -> None:
        now = 0.0
        reader = SharedGenerations(MemoryBus(broker, "reader"), lambda: now)
        registrar = SharedGenerations(MemoryBus(broker, "registrar"), lambda: now)
        await registrar.unsettle("t", ["stock/7"])
        now = 100.0
        await registrar.unsettle("t", ["stock/8"])

        async def seen() -> list[bool]:
            marks = await reader.read("t", ["self:stock/7", "self:stock/8"])
            return [mark >= UNSETTLED for mark in marks.values()]

        assert await seen() == [True, True]
        now = limits.UNSETTLED_SECONDS
        assert await seen() == [False, True]
        now = 200.0
        assert await seen() == [True, True]
        now = 100.0 + limits.UNSETTLED_SECONDS
        assert await seen() == [False, False]

    run(scenario)


def test_replicas_that_register_at_the_same_time_lose_nothing() -> None:
    async def scenario(one: SharedGenerations, other: SharedGenerations, _: MemoryBroker) -> None:
        writers = (one, other) * 3
        await asyncio.gather(*(writer.unsettle("t", [f"stock/{n}"]) for n, writer in enumerate(writers)))
        for number in range(len(writers)):
            mark = f"self:stock/{number}"
            assert (await one.read("t", [mark]))[mark] >= UNSETTLED

    run(scenario)


def test_so_many_that_they_count_as_one() -> None:
    async def scenario(one: SharedGenerations, other: SharedGenerations, _: MemoryBroker) -> None:
        for number in range(limits.UNSETTLED_KEYS + 1):
            await one.unsettle("t", [f"stock/{number}"])
        assert (await other.read("t", dependencies(["users/1"])))[f"self:{ROOT}"] >= UNSETTLED

    run(scenario)


def test_without_the_broker_nothing_is_known() -> None:
    async def scenario(one: SharedGenerations, other: SharedGenerations, broker: MemoryBroker) -> None:
        broker.go_down()
        with pytest.raises(Unavailable):
            await one.unsettle("t", ["stock/7"])
        with pytest.raises(Unavailable):
            await other.read("t", SEVEN)

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


def test_who_sees_the_count_of_a_write_sees_that_it_may_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(writer: SharedGenerations, reader: SharedGenerations, _: MemoryBroker) -> None:
        await writer.bump("t", ["stock/7"])
        await reader.read("t", SEVEN)
        late = LateIndex(reader._bucket)
        monkeypatch.setattr(reader, "_bucket", late)
        reading = asyncio.ensure_future(reader.read("t", SEVEN))
        await late.asked.wait()
        await writer.unsettle("t", ["stock/7"])
        await writer.bump("t", ["stock/7"])
        late.go_on.set()
        assert (await reading)["self:stock/7"] >= UNSETTLED

    run(scenario)
