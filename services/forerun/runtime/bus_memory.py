"""The bus in memory: for the simulation, for tests, and as the reference of what `NatsBus` has to do.

A `MemoryBroker` is the broker; each process of a simulation gets its own `MemoryBus` of it. Everything follows the
running loop's time, so it runs under virtual time; faults come from a `Faults`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from forerun.runtime import bus_headers, subjects
from forerun.runtime.bus import ConsumerSpec, Consumption, Handler, Hearer, Message
from forerun.runtime.bus_delivery import DeadLetter
from forerun.runtime.bus_errors import AppendUncertain
from forerun.runtime.bus_memory_clients import MemoryConsumption, MemoryKeyValue, MemoryObjects, MemorySubscription
from forerun.runtime.bus_memory_faults import AppendFault, Faults
from forerun.runtime.bus_memory_store import MemoryBucket, MemoryObjectStore, MemoryWatch
from forerun.runtime.bus_memory_stream import MemoryConsumer, MemoryStream
from forerun.runtime.bus_meter import BusMeter
from forerun.runtime.clock import Clock
from forerun.runtime.errors import Bug, ErrorReason, InvalidArgument, Unavailable
from forerun.runtime.metrics import Metrics
from forerun.runtime.topology import DEADLETTER, TOPOLOGY, Bucket, ObjectStore, Stream, Topology

_BURY_SECONDS = 5.0
_CACHED_SUBJECTS = 4096


class MemoryBroker:
    """What all processes of a simulation connect to. Must be made inside a running loop.

    Args:
        clock: Wall time of dead letters.
        topology: What exists from the start.
        faults: What goes wrong.
        latency_seconds: Time of one round trip to the broker.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        topology: Topology = TOPOLOGY,
        faults: Faults | None = None,
        latency_seconds: float = 0.0,
    ) -> None:
        self.clock = clock
        self.faults = faults or Faults()
        self.latency_seconds = latency_seconds
        self.streams = {row.name: MemoryStream(row) for row in topology.streams}
        self.buckets = {row.name: MemoryBucket(row) for row in topology.buckets}
        self.object_stores = {row.name: MemoryObjectStore(row.name) for row in topology.object_stores}
        self.clients: list[MemoryBus] = []
        self._up = True
        self._loop = asyncio.get_running_loop()
        self._routes: dict[str, tuple[MemorySubscription, ...]] = {}

    @property
    def up(self) -> bool:
        """Whether it answers."""
        return self._up

    def go_down(self) -> None:
        """An outage begins: nothing is accepted or delivered; what is stored stays."""
        self._up = False
        for client in self.clients:
            client.meter.connected(False)

    def come_up(self) -> None:
        """The outage ends: listeners have a gap, watches hear what they missed, consumers go on."""
        if self._up:
            return
        self._up = True
        for client in self.clients:
            client.reconnected()
        for stream in self.streams.values():
            for consumer in stream.consumers.values():
                consumer.wake()

    def stream_of(self, subject: str) -> MemoryStream:
        """The stream that takes a subject.

        Raises:
            Unavailable: none does.
        """
        for stream in self.streams.values():
            if any(subjects.matches(pattern, subject) for pattern in stream.row.subjects):
                return stream
        raise Unavailable(ErrorReason.BROKER_UNAVAILABLE, "no stream takes this subject", metadata={"stored": "no"})

    def listeners_changed(self) -> None:
        """Somebody began or ceased to listen."""
        self._routes.clear()

    def publish(self, message: Message) -> None:
        """Hands a passing message to everybody who listens."""
        listeners = self._routes.get(message.subject)
        if listeners is None:
            every = (subscription for client in self.clients for subscription in client.subscriptions)
            listeners = tuple(entry for entry in every if subjects.matches(entry.subject, message.subject))
            if len(self._routes) >= _CACHED_SUBJECTS:
                self._routes.clear()
            self._routes[message.subject] = listeners
        for listener in listeners:
            for delay in self.faults.core(listener.client.name, message.subject):
                if delay > 0 or self.latency_seconds > 0:
                    self._loop.call_later(delay + self.latency_seconds / 2, listener.hear, message)
                else:
                    listener.hear(message)

    def bury(self, subject: str, data: bytes) -> None:
        """Stores the broker's own record of a message whose deliveries are used up."""
        stream = self.streams[DEADLETTER]
        stream.append(
            subject,
            data,
            bus_headers.NO_HEADERS,
            size_bytes=len(data),
            message_id=None,
            expected_last_sequence=None,
            now=self._loop.time(),
        )


class MemoryBus:
    """One process's connection to a `MemoryBroker`.

    Args:
        broker: The broker.
        name: Who connects; `Faults` get it.
        metrics: Where it counts.
    """

    def __init__(self, broker: MemoryBroker, name: str = "", *, metrics: Metrics | None = None) -> None:
        self.name = name
        self.meter = BusMeter(metrics)
        self.subscriptions: list[MemorySubscription] = []
        self.watches: list[MemoryWatch] = []
        self._broker = broker
        self._consumptions: list[MemoryConsumption] = []
        self._loop = asyncio.get_running_loop()
        self._closed = False
        self._cut = False
        self._notify_dropped = 0
        broker.clients.append(self)
        self.meter.connected(self.connected)

    @property
    def broker(self) -> MemoryBroker:
        """What it is connected to."""
        return self._broker

    @property
    def connected(self) -> bool:
        """See `Bus`."""
        return self._broker.up and not self._cut and not self._closed

    @property
    def notify_dropped(self) -> int:
        """See `Bus`."""
        return self._notify_dropped

    def cut(self) -> None:
        """This process alone loses its connection."""
        self._cut = True
        self.meter.connected(False)

    def heal(self) -> None:
        """This process alone is connected again."""
        if self._cut:
            self._cut = False
            self.reconnected()

    def reconnected(self) -> None:
        """Tells everything of this process that the broker can be reached again."""
        if not self.connected:
            return
        self.meter.connected(True)
        for subscription in self.subscriptions:
            subscription.missed()
        for watch in self.watches:
            watch.reconnected()
        for consumption in self._consumptions:
            consumption.wake()

    async def append(
        self,
        subject: str,
        data: bytes,
        *,
        headers: Mapping[str, str] | None = None,
        message_id: str | None = None,
        expected_last_sequence: int | None = None,
        timeout_seconds: float,
    ) -> int:
        """See `Bus`."""
        subjects.check_subject(subject)
        block = bus_headers.append_headers(headers, message_id, expected_last_sequence)
        bus_headers.check_size(block, data)

        def store() -> int:
            sequence, new = self._broker.stream_of(subject).append(
                subject,
                bytes(data),
                dict(headers) if headers else bus_headers.NO_HEADERS,
                size_bytes=len(block) + len(data),
                message_id=message_id,
                expected_last_sequence=expected_last_sequence,
                now=self._loop.time(),
            )
            if new:
                self._broker.publish(Message(subject, bytes(data), dict(headers or {})))
            return sequence

        started = self._loop.time()
        stored = False
        try:
            sequence = await self.write(subject, store, timeout_seconds)
            stored = True
        finally:
            self.meter.appended(self._loop.time() - started, stored=stored)
        return sequence

    async def write(self, subject: str, store: Callable[[], int], timeout_seconds: float) -> int:
        """Carries out a durable write with the faults of the day."""
        if timeout_seconds <= 0:
            raise InvalidArgument(ErrorReason.ARGUMENT_INVALID, "timeout_seconds must be positive")
        self.require_connection()
        fault = self._broker.faults.append(self.name, subject)
        if fault is AppendFault.REFUSED:
            raise Unavailable(ErrorReason.BROKER_UNAVAILABLE, "the broker refuses", metadata={"stored": "no"})
        await self._transit()
        if fault is AppendFault.LOST or not self.connected:
            await self._time_out(timeout_seconds)
        result = store()
        if fault is AppendFault.UNACKNOWLEDGED:
            await self._time_out(timeout_seconds)
        if self._broker.latency_seconds > 0:
            await self._transit()
        if not self.connected:
            raise AppendUncertain("the connection broke before the acknowledgement came")
        return result

    async def ask(self) -> None:
        """The round trip of a read.

        Raises:
            Unavailable: not connected.
        """
        self.require_connection()
        await asyncio.sleep(self._broker.latency_seconds)
        self.require_connection()

    async def notify(self, subject: str, data: bytes, *, headers: Mapping[str, str] | None = None) -> None:
        """See `Bus`."""
        subjects.check_subject(subject)
        bus_headers.check_size(bus_headers.append_headers(headers, None, None), data)
        if not self.connected:
            self._notify_dropped += 1
            self.meter.dropped()
            return
        self._broker.publish(Message(subject, bytes(data), dict(headers or {})))

    async def subscribe(self, subject: str, handler: Hearer, *, pending_messages: int) -> MemorySubscription:
        """See `Bus`."""
        subjects.check_pattern(subject)
        self.require_connection()
        subscription = MemorySubscription(self, subject, handler, pending_messages)
        self.subscriptions.append(subscription)
        self._broker.listeners_changed()
        return subscription

    async def read(self, subject: str, *, after_sequence: int = 0, limit: int) -> list[Message]:
        """See `Bus`."""
        subjects.check_subject(subject)
        await self.ask()
        return self._broker.stream_of(subject).read(subject, after_sequence, limit, self._loop.time())

    async def fetch(self, stream: str, sequence: int) -> Message | None:
        """See `Bus`."""
        await self.ask()
        return self._stream(stream).get(sequence)

    async def purge(self, stream: str, subject: str) -> int:
        """See `Bus`."""
        subjects.check_pattern(subject)
        await self.ask()
        return self._stream(stream).purge(subject)

    async def consume(self, spec: ConsumerSpec, handler: Handler) -> Consumption:
        """See `Bus`."""
        await self.ask()
        stream = self._stream(spec.stream)
        consumer = stream.consumers.get(spec.name)
        if consumer is None:
            consumer = stream.consumers[spec.name] = MemoryConsumer(stream, spec, self._broker.bury)
        consumption = MemoryConsumption(self, consumer, spec, handler)
        self._consumptions.append(consumption)
        return consumption

    def kv(self, bucket: str) -> MemoryKeyValue:
        """See `Bus`."""
        if bucket not in self._broker.buckets:
            raise Bug(ErrorReason.INTERNAL, f"{bucket!r} is not in the topology")
        return MemoryKeyValue(self, self._broker.buckets[bucket])

    def objects(self, bucket: str) -> MemoryObjects:
        """See `Bus`."""
        if bucket not in self._broker.object_stores:
            raise Bug(ErrorReason.INTERNAL, f"{bucket!r} is not in the topology")
        return MemoryObjects(self, self._broker.object_stores[bucket])

    async def close(self, timeout_seconds: float) -> None:
        """See `Bus`."""
        if self._closed:
            return
        await asyncio.gather(*(consumption.close(timeout_seconds) for consumption in tuple(self._consumptions)))
        for subscription in tuple(self.subscriptions):
            await subscription.close()
        for watch in tuple(self.watches):
            await watch.close()
        self._closed = True
        self.meter.connected(False)
        self._broker.clients.remove(self)
        self._broker.listeners_changed()

    async def declare_stream(self, row: Stream, *, replicas: int) -> None:
        """See `topology.Declares`."""
        await self.ask()
        stream = self._broker.streams.setdefault(row.name, MemoryStream(row))
        stream.row = row

    async def declare_bucket(self, row: Bucket, *, replicas: int) -> None:
        """See `topology.Declares`."""
        await self.ask()
        self._broker.buckets.setdefault(row.name, MemoryBucket(row)).row = row

    async def declare_object_store(self, row: ObjectStore, *, replicas: int) -> None:
        """See `topology.Declares`."""
        await self.ask()
        self._broker.object_stores.setdefault(row.name, MemoryObjectStore(row.name))

    def require_connection(self) -> None:
        """Refuses while the broker cannot be reached."""
        if not self.connected:
            raise Unavailable(ErrorReason.BROKER_UNAVAILABLE, "not connected to the broker", metadata={"stored": "no"})

    async def bury(self, letter: DeadLetter) -> None:
        """Stores a dead letter."""
        await self.append(
            subjects.dead_letter(letter.stream, letter.consumer),
            letter.encode(),
            message_id=letter.message_id,
            timeout_seconds=_BURY_SECONDS,
        )
        self.meter.gave_up(letter.stream)

    def forget(self, consumption: MemoryConsumption) -> None:
        """A consumption has ended."""
        if consumption in self._consumptions:
            self._consumptions.remove(consumption)

    def _stream(self, name: str) -> MemoryStream:
        if name not in self._broker.streams:
            raise Bug(ErrorReason.INTERNAL, f"{name!r} is not in the topology")
        return self._broker.streams[name]

    async def _transit(self) -> None:
        await asyncio.sleep(self._broker.latency_seconds / 2)

    async def _time_out(self, timeout_seconds: float) -> None:
        await asyncio.sleep(timeout_seconds)
        raise AppendUncertain(f"no acknowledgement within {timeout_seconds:g} s")
