"""Keys and objects when consumers vanish and uploads collide."""

from __future__ import annotations

import asyncio
import os

from forerun.runtime.bus import Entry
from forerun.runtime.bus_nats_api import call
from forerun.runtime.topology import EPOCHS, RESULTS
from tests.contract.runtime_bus.platforms import NatsPlatform, eventually


async def test_a_watch_learns_of_a_deletion_that_left_no_trace(nats: NatsPlatform) -> None:
    bus = await nats.bus()
    kv = bus.kv(EPOCHS)
    told: list[tuple[str, bytes | None]] = []

    async def watcher(key: str, entry: Entry | None) -> None:
        told.append((key, entry.value if entry else None))

    await kv.put("k/1", b"1")
    await kv.put("k/2", b"2")
    watch = await kv.watch("k/", watcher)
    # As after an absence longer than the life of deletion markers.
    await call(bus._wire, "STREAM.PURGE.KV_epochs", {"filter": "$KV.epochs.k.1"})
    for name in (await call(bus._wire, "CONSUMER.NAMES.KV_epochs"))["consumers"]:
        await call(bus._wire, f"CONSUMER.DELETE.KV_epochs.{name}")
    await eventually(lambda: len(told) == 3)
    assert told == [("k/1", b"1"), ("k/2", b"2"), ("k/1", None)]
    assert watch.gaps == 1
    await kv.put("k/3", b"3")
    await eventually(lambda: told[-1] == ("k/3", b"3"))


async def test_uploads_that_collide_leave_one_object_and_nothing_else(nats: NatsPlatform) -> None:
    buses = [await nats.bus() for _ in range(4)]
    body = os.urandom(1_000_000)
    await asyncio.gather(*(bus.objects(RESULTS).put(body, "t") for bus in buses))
    info = await call(buses[0]._wire, "STREAM.INFO.OBJ_results")
    # One subject of chunks, one of descriptions.
    assert info["state"]["num_subjects"] == 2
    assert info["state"]["messages"] == 8 + 1
