"""The parts of a `MemoryBus`: what a process holds of a broker, with round trips, outages and faults."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from forerun.runtime import subjects
from forerun.runtime.bus import ConsumerSpec, Entry, Handler, Hearer, Message, Watcher
from forerun.runtime.bus_delivery import Delivery, Workers, WorkersConsumption
from forerun.runtime.bus_digest import digest_of, hexadecimal
from forerun.runtime.bus_errors import DigestMismatch
from forerun.runtime.bus_memory_store import MemoryBucket, MemoryObjectStore, MemoryWatch
from forerun.runtime.bus_memory_stream import MemoryConsumer
from forerun.runtime.bus_pump import Pump
from forerun.runtime.errors import ErrorReason, NotFound

if TYPE_CHECKING:
    from forerun.runtime.bus_memory import MemoryBus

_TIMEOUT_SECONDS = 5.0


class MemoryKeyValue:
    """See `KeyValue`."""

    def __init__(self, client: MemoryBus, bucket: MemoryBucket) -> None:
        self._client = client
        self._bucket = bucket

    async def get(self, key: str) -> Entry | None:
        """See `KeyValue`."""
        subjects.encode_key(key)
        await self._client.ask()
        return self._bucket.get(key)

    async def create(self, key: str, value: bytes) -> int:
        """See `KeyValue`."""
        return await self._write(key, value, 0)

    async def update(self, key: str, value: bytes, revision: int) -> int:
        """See `KeyValue`."""
        return await self._write(key, value, revision)

    async def put(self, key: str, value: bytes) -> int:
        """See `KeyValue`."""
        return await self._write(key, value, None)

    async def delete(self, key: str, *, revision: int | None = None) -> None:
        """See `KeyValue`."""

        def store() -> int:
            self._bucket.delete(key, revision)
            return 0

        await self._client.write(self._subject(key), store, _TIMEOUT_SECONDS)

    async def keys(self, prefix: str = "") -> list[str]:
        """See `KeyValue`."""
        await self._client.ask()
        return self._bucket.keys(prefix)

    async def watch(self, prefix: str, handler: Watcher) -> MemoryWatch:
        """See `KeyValue`."""
        await self._client.ask()
        watch = MemoryWatch(self._bucket, prefix, handler, self._client)
        self._client.watches.append(watch)
        self._bucket.watch(watch)
        await watch.caught_up()
        return watch

    async def _write(self, key: str, value: bytes, expected_revision: int | None) -> int:
        return await self._client.write(
            self._subject(key), lambda: self._bucket.write(key, bytes(value), expected_revision), _TIMEOUT_SECONDS
        )

    def _subject(self, key: str) -> str:
        return f"$KV.{self._bucket.row.name}.{subjects.encode_key(key)}"


class MemoryObjects:
    """See `Objects`."""

    def __init__(self, client: MemoryBus, store: MemoryObjectStore) -> None:
        self._client = client
        self._store = store

    async def put(self, data: bytes, tenant: str) -> str:
        """See `Objects`."""
        digest = await digest_of(data)
        await self._client.ask()
        self._store.content.setdefault(tenant, {})[digest] = bytes(data)
        return digest

    async def get(self, digest: str, tenant: str) -> bytes:
        """See `Objects`."""
        hexadecimal(digest)
        await self._client.ask()
        data = self._store.content.get(tenant, {}).get(digest)
        if data is None:
            raise NotFound(
                ErrorReason.NOT_FOUND, f"no object of this digest in {self._store.name!r}", metadata={"digest": digest}
            )
        if await digest_of(data) != digest:
            raise DigestMismatch(self._store.name, digest)
        return data

    async def delete(self, digest: str, tenant: str) -> None:
        """See `Objects`."""
        hexadecimal(digest)
        await self._client.ask()
        self._store.content.get(tenant, {}).pop(digest, None)

    async def digests(self, tenant: str) -> list[str]:
        """See `Objects`."""
        await self._client.ask()
        return sorted(self._store.content.get(tenant, {}))

    async def erase(self, tenant: str) -> None:
        """See `Objects`."""
        await self._client.ask()
        self._store.content.pop(tenant, None)


class MemorySubscription:
    """See `Subscription`."""

    def __init__(self, client: MemoryBus, subject: str, handler: Hearer, pending_messages: int) -> None:
        self.client = client
        self.subject = subject
        self._pump: Pump[Message] = Pump(subject, handler, limit=pending_messages, on_dropped=client.meter.dropped)

    @property
    def dropped(self) -> int:
        """See `Subscription`."""
        return self._pump.dropped

    @property
    def failed(self) -> int:
        """See `Subscription`."""
        return self._pump.failed

    @property
    def gaps(self) -> int:
        """See `Subscription`."""
        return self._pump.gaps

    def hear(self, message: Message) -> None:
        """A message passes."""
        if self.client.connected:
            self._pump.offer(message)

    def missed(self) -> None:
        """Messages may have passed unheard."""
        self._pump.gaps += 1

    async def close(self) -> None:
        """See `Subscription`."""
        if self in self.client.subscriptions:
            self.client.subscriptions.remove(self)
            self.client.broker.listeners_changed()
        self._pump.stop()
        await self._pump.stopped()


class MemoryConsumption(WorkersConsumption):
    """See `Consumption`."""

    def __init__(self, client: MemoryBus, consumer: MemoryConsumer, spec: ConsumerSpec, handler: Handler) -> None:
        workers = Workers(spec, handler, bury=client.bury, clock=client.broker.clock, wake=consumer.wake)
        super().__init__(workers)
        self._client = client
        self._consumer = consumer
        consumer.takers.append(self)
        consumer.wake()

    @property
    def reachable(self) -> bool:
        """See `Taker`."""
        lost = self._client.broker.faults.verdict_lost(self._client.name, self._consumer.spec.stream)
        return self._client.connected and not lost

    @property
    def healthy(self) -> bool:
        """See `Consumption`."""
        return self._client.connected

    @property
    def room(self) -> int:
        """See `Taker`."""
        return self._workers.room if self._client.connected else 0

    def take(self, delivery: Delivery) -> None:
        """See `Taker`."""
        broker = self._client.broker
        if broker.faults.delivery_lost(self._client.name, self._consumer.spec.stream):
            return
        if broker.latency_seconds > 0:
            asyncio.get_running_loop().call_later(broker.latency_seconds / 2, self._workers.offer, delivery)
        else:
            self._workers.offer(delivery)

    def wake(self) -> None:
        """The broker can be reached again."""
        self._consumer.wake()

    async def close(self, timeout_seconds: float) -> None:
        """See `Consumption`."""
        if self in self._consumer.takers:
            self._consumer.takers.remove(self)
        await self._workers.close(timeout_seconds)
        self._client.forget(self)
        self._consumer.wake()
