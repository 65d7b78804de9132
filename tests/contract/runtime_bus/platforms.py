"""A broker with everything declared, in memory and for real; used by the tests of several layers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from forerun.runtime import topology
from forerun.runtime.broker import Broker, new_passwords
from forerun.runtime.bus import Bus
from forerun.runtime.bus_memory import MemoryBroker, MemoryBus
from forerun.runtime.bus_nats import NatsBus
from forerun.runtime.bus_nats_wire import NatsOptions
from forerun.runtime.clock import SystemClock
from forerun.runtime.ids import SystemIds
from forerun.runtime.metrics import Metrics

# A key of this bucket lives half a second, so that expiry can be waited for.
SHORT = topology.Bucket("short", "Keys that expire soon", 1024 * 1024, 1024, ttl_seconds=0.5)
TABLE = replace(topology.TOPOLOGY, buckets=(*topology.TOPOLOGY.buckets, SHORT))


class Platform(Protocol):
    """A broker with everything declared."""

    async def bus(self, user: str = "admin", metrics: Metrics | None = None) -> Bus:
        """A new connection; closed at the end of the test."""
        ...

    async def outage(self) -> None:
        """The broker goes away."""
        ...

    async def recover(self) -> None:
        """The broker is back, and every connection knows."""
        ...

    async def damage(self, store: str, digest: str, tenant: str) -> None:
        """Changes the stored bytes of an object behind everybody's back."""
        ...


class MemoryPlatform:
    def __init__(self) -> None:
        self.broker = MemoryBroker(SystemClock(), topology=TABLE)
        self._buses: list[MemoryBus] = []

    async def bus(self, user: str = "admin", metrics: Metrics | None = None) -> MemoryBus:
        bus = MemoryBus(self.broker, user, metrics=metrics)
        self._buses.append(bus)
        return bus

    async def outage(self) -> None:
        self.broker.go_down()

    async def recover(self) -> None:
        self.broker.come_up()

    async def damage(self, store: str, digest: str, tenant: str) -> None:
        self.broker.object_stores[store].content[tenant][digest] = b"damaged"

    async def close(self) -> None:
        for bus in self._buses:
            await bus.close(2.0)


class NatsPlatform:
    def __init__(self, directory: Path) -> None:
        self.clock = SystemClock()
        self.ids = SystemIds(self.clock)
        self.broker = Broker(directory, new_passwords(self.ids))
        self._buses: list[NatsBus] = []

    async def start(self) -> None:
        await self.broker.start()
        await topology.ensure(await self.bus(), TABLE)

    async def bus(self, user: str = "admin", metrics: Metrics | None = None) -> NatsBus:
        options = NatsOptions((self.broker.url,), user, self.broker.password(user), reconnect_max_seconds=0.1)
        bus = await NatsBus.connect(options, clock=self.clock, ids=self.ids, topology=TABLE, metrics=metrics)
        self._buses.append(bus)
        return bus

    async def outage(self) -> None:
        await self.broker.stop()
        await eventually(lambda: not any(bus.connected for bus in self._buses))

    async def recover(self) -> None:
        await self.broker.start()
        await eventually(lambda: all(bus.connected for bus in self._buses))

    async def damage(self, store: str, digest: str, tenant: str) -> None:
        raw = await self.bus()
        stream = topology.Stream(
            f"OBJ_{store}", "", (f"$O.{store}.>",), topology.Retention.LIMITS, topology.Discard.NEW, 0, 1, 0, True
        )
        admin = NatsBus(raw._wire, clock=self.clock, topology=replace(TABLE, streams=(stream,)))
        chunk = await admin.fetch(stream.name, 1)
        assert chunk is not None
        await admin.purge(stream.name, chunk.subject)
        await admin.append(chunk.subject, b"x" * len(chunk.data), headers=chunk.headers, timeout_seconds=2.0)

    async def close(self) -> None:
        for bus in self._buses:
            await bus.close(2.0)
        await self.broker.stop()


async def eventually(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Waits until something has become true."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  (conditions of foreign processes give no event)
            await asyncio.sleep(0.002)
