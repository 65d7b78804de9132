"""The key-value store."""

from __future__ import annotations

import asyncio

import pytest

from forerun.runtime.bus import Bus, Entry, KeyValue
from forerun.runtime.bus_errors import KeyConflict, MessageTooLarge
from forerun.runtime.errors import Unavailable
from forerun.runtime.topology import BUDGETS, EPOCHS
from tests.contract.runtime_bus.platforms import Platform, eventually


async def test_compare_and_set(platform: Platform) -> None:
    kv = (await platform.bus()).kv(EPOCHS)
    assert await kv.get("session") is None
    first = await kv.create("session", b"1")
    assert await kv.get("session") == Entry(b"1", first)
    with pytest.raises(KeyConflict):
        await kv.create("session", b"2")
    second = await kv.update("session", b"2", first)
    assert second > first
    with pytest.raises(KeyConflict):
        await kv.update("session", b"3", first)
    with pytest.raises(KeyConflict):
        await kv.update("none", b"3", first)
    third = await kv.put("session", b"3")
    assert await kv.get("session") == Entry(b"3", third)


async def test_a_deleted_key_is_gone_and_can_be_created_again(platform: Platform) -> None:
    kv = (await platform.bus()).kv(EPOCHS)
    first = await kv.create("key", b"1")
    await kv.delete("key")
    await kv.delete("never there")
    assert await kv.get("key") is None
    assert await kv.keys() == []
    with pytest.raises(KeyConflict):
        await kv.update("key", b"2", first)
    again = await kv.create("key", b"2")
    assert again > first
    with pytest.raises(KeyConflict):
        await kv.delete("key", revision=first)
    await kv.delete("key", revision=again)
    assert await kv.get("key") is None


async def test_any_text_is_a_key(platform: Platform) -> None:
    kv = (await platform.bus()).kv(EPOCHS)
    keys = ["a b", "", "/", "a//b", "a.b", "*", ">", "ü/\r\n", "a=b", "$KV", "orders/{id}/x.y", "a/b", "ü"]
    entries = {key: Entry(key.encode(), await kv.put(key, key.encode())) for key in keys}
    assert {key: await kv.get(key) for key in keys} == entries
    assert await kv.keys() == sorted(keys)


async def test_prefixes_are_prefixes_of_the_text(platform: Platform) -> None:
    kv = (await platform.bus()).kv(EPOCHS)
    for key in ("a", "a/1", "a/12", "a/1/x", "ab/1", "b"):
        await kv.put(key, b"")
    assert await kv.keys("a/") == ["a/1", "a/1/x", "a/12"]
    assert await kv.keys("a/1") == ["a/1", "a/1/x", "a/12"]
    assert await kv.keys("a/1/") == ["a/1/x"]
    assert await kv.keys("a") == ["a", "a/1", "a/1/x", "a/12", "ab/1"]
    assert await kv.keys("c") == []


async def test_counting_with_compare_and_set_loses_nothing(platform: Platform) -> None:
    buses = [await platform.bus() for _ in range(3)]
    await buses[0].kv(BUDGETS).create("spent", b"0")

    async def add(bus: Bus) -> None:
        kv = bus.kv(BUDGETS)
        for _ in range(10):
            while True:
                entry = await kv.get("spent")
                assert entry is not None
                try:
                    await kv.update("spent", b"%d" % (int(entry.value) + 1), entry.revision)
                    break
                except KeyConflict:
                    continue

    await asyncio.gather(*(add(bus) for bus in buses))
    entry = await buses[0].kv(BUDGETS).get("spent")
    assert entry is not None
    assert entry.value == b"30"


async def test_a_value_above_the_buckets_limit_is_refused(platform: Platform) -> None:
    kv = (await platform.bus()).kv(EPOCHS)
    await kv.put("key", b"x" * 4096)
    with pytest.raises(MessageTooLarge):
        await kv.put("key", b"x" * 4097)


class Seen:
    def __init__(self) -> None:
        self.events: list[tuple[str, bytes | None]] = []

    async def __call__(self, key: str, entry: Entry | None) -> None:
        self.events.append((key, None if entry is None else entry.value))

    @property
    def state(self) -> dict[str, bytes]:
        state: dict[str, bytes] = {}
        for key, value in self.events:
            if value is None:
                state.pop(key, None)
            else:
                state[key] = value
        return state


async def test_a_watch_first_tells_what_is_there_then_what_changes(platform: Platform) -> None:
    kv, other = (await platform.bus()).kv(EPOCHS), (await platform.bus()).kv(EPOCHS)
    await kv.put("a/1", b"1")
    await kv.put("a/2", b"2")
    await kv.put("a/gone", b"x")
    await kv.delete("a/gone")
    await kv.put("b/1", b"no")
    seen = Seen()
    watch = await other.watch("a/", seen)
    assert seen.events == [("a/1", b"1"), ("a/2", b"2")]
    await kv.put("a/3", b"3")
    await kv.put("b/2", b"no")
    await kv.delete("a/1")
    await eventually(lambda: seen.events[2:] == [("a/3", b"3"), ("a/1", None)])
    await watch.close()
    await watch.close()
    await kv.put("a/4", b"no")
    assert seen.state == {"a/2": b"2", "a/3": b"3"}
    assert watch.dropped == 0


async def test_a_watch_of_nothing_returns_and_hears_the_first_key(platform: Platform) -> None:
    kv = (await platform.bus()).kv(EPOCHS)
    seen = Seen()
    await kv.watch("", seen)
    assert seen.events == []
    await kv.put("x", b"1")
    await eventually(lambda: seen.events == [("x", b"1")])


async def test_a_watch_survives_an_outage_and_has_the_truth_afterwards(platform: Platform) -> None:
    kv, other = (await platform.bus()).kv(EPOCHS), (await platform.bus()).kv(EPOCHS)
    for number in range(300):
        await kv.put(f"k/{number}", b"1")
    seen = Seen()
    watch = await other.watch("k/", seen)
    assert len(seen.state) == 300
    await platform.outage()
    with pytest.raises(Unavailable):
        await kv.get("k/1")
    with pytest.raises(Unavailable):
        await kv.put("k/1", b"2")
    await platform.recover()
    await kv.put("k/1", b"2")
    await kv.delete("k/2")
    await eventually(lambda: seen.state.get("k/1") == b"2" and "k/2" not in seen.state)
    assert len(seen.state) == 299
    assert watch.gaps >= 1


async def test_keys_expire_and_watchers_hear_of_it(platform: Platform) -> None:
    kv: KeyValue = (await platform.bus()).kv("short")
    seen = Seen()
    await kv.watch("", seen)
    await kv.create("worker", b"1")
    await eventually(lambda: seen.events == [("worker", b"1"), ("worker", None)])
    assert await kv.get("worker") is None
    assert await kv.keys() == []
    await kv.create("worker", b"2")
