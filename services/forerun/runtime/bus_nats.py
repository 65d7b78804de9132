"""The bus on NATS JetStream.

Made of: `Wire` (one connection that stays), requests to JetStream (bus_nats_api), `Pull` (messages of a consumer,
whatever happens to it), and the abilities of the port on top of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from forerun.runtime import bus_headers, subjects
from forerun.runtime.bus import ConsumerSpec, Handler, Hearer, Message
from forerun.runtime.bus_delivery import DeadLetter
from forerun.runtime.bus_errors import SequenceMismatch
from forerun.runtime.bus_meter import BusMeter
from forerun.runtime.bus_nats_api import ApiError, append, append_error, call, stored_message, unavailable
from forerun.runtime.bus_nats_consumer import NatsConsumption
from forerun.runtime.bus_nats_kv import NatsKeyValue, NatsWatch
from forerun.runtime.bus_nats_objects import NatsObjects
from forerun.runtime.bus_nats_read import Read, collect
from forerun.runtime.bus_nats_setup import bucket_config, declare, object_store_config, stream_config
from forerun.runtime.bus_nats_wire import NatsOptions, NotSentError, UnansweredError, Wire
from forerun.runtime.bus_pump import Pump
from forerun.runtime.clock import Clock
from forerun.runtime.errors import ErrorReason, InvalidArgument, PermissionDenied
from forerun.runtime.ids import Ids
from forerun.runtime.metrics import Metrics
from forerun.runtime.topology import TOPOLOGY, Bucket, ObjectStore, Stream, Topology


class NatsBus:
    """See `Bus`. Made by `NatsBus.connect`."""

    def __init__(self, wire: Wire, *, clock: Clock, topology: Topology, metrics: Metrics | None = None) -> None:
        self._wire = wire
        self._loop = asyncio.get_running_loop()
        self._meter = BusMeter(metrics)
        self._meter.connected(wire.connected)
        wire.reconnected.append(lambda: self._meter.connected(True))
        wire.disconnected.append(lambda: self._meter.connected(False))
        self._clock = clock
        self._topology = topology
        self._subscriptions: list[NatsSubscription] = []
        self._consumptions: list[NatsConsumption] = []
        self._watches: list[NatsWatch] = []
        self._notify_dropped = 0
        self._closed = False

    @classmethod
    async def connect(
        cls,
        options: NatsOptions,
        *,
        clock: Clock,
        ids: Ids,
        topology: Topology = TOPOLOGY,
        metrics: Metrics | None = None,
        timeout_seconds: float = 10.0,
    ) -> NatsBus:
        """Connects as one of the topology's users.

        Raises:
            Unavailable: nobody answered in time.
            Unauthenticated: the broker refused user or password.
        """
        user = topology.user(options.user)
        wire = await Wire.open(options, user.inbox_prefix, ids, timeout_seconds=timeout_seconds)
        return cls(wire, clock=clock, topology=topology, metrics=metrics)

    @property
    def connected(self) -> bool:
        """See `Bus`."""
        return self._wire.connected

    @property
    def notify_dropped(self) -> int:
        """See `Bus`."""
        return self._notify_dropped

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
        if timeout_seconds <= 0:
            raise InvalidArgument(ErrorReason.ARGUMENT_INVALID, "timeout_seconds must be positive")
        subjects.check_subject(subject)
        block = bus_headers.append_headers(headers, message_id, expected_last_sequence)
        bus_headers.check_size(block, data)
        started = self._loop.time()
        stored = False
        try:
            sequence = await self._append(subject, data, block, message_id, expected_last_sequence, timeout_seconds)
            stored = True
        finally:
            self._meter.appended(self._loop.time() - started, stored=stored)
        return sequence

    async def _append(
        self,
        subject: str,
        data: bytes,
        block: bytes,
        message_id: str | None,
        expected_last_sequence: int | None,
        timeout_seconds: float,
    ) -> int:
        try:
            return await append(self._wire, subject, data, block, timeout_seconds=timeout_seconds)
        except ApiError as error:
            refusal = append_error(
                error, size_bytes=len(block) + len(data), expected_last_sequence=expected_last_sequence
            )
        if isinstance(refusal, SequenceMismatch) and message_id is not None:
            stored = await self._stored_before(subject, refusal.expected, message_id)
            if stored is not None:
                return stored
        raise refusal

    async def _stored_before(self, subject: str, expected_last_sequence: int, message_id: str) -> int | None:
        """Where a repeated append was stored the first time.

        The broker compares the expected sequence before it looks for duplicates, so the repetition of an append whose
        acknowledgement got lost looks like somebody else's write.
        """
        row = self._topology.stream_of(subject)
        if row is None:
            return None
        query = {"seq": expected_last_sequence + 1, "next_by_subj": subject}
        try:
            stored = await stored_message(self._wire, row.name, query)
        except PermissionDenied:
            return None  # a user who may append here and not read
        if stored is None or bus_headers.parse(stored.header_block).get(bus_headers.MESSAGE_ID) != message_id:
            return None
        return stored.sequence

    async def notify(self, subject: str, data: bytes, *, headers: Mapping[str, str] | None = None) -> None:
        """See `Bus`."""
        subjects.check_subject(subject)
        block = bus_headers.append_headers(headers, None, None)
        bus_headers.check_size(block, data)
        try:
            if self._wire.congested:
                raise NotSentError
            self._wire.send(subject, data, block)
        except NotSentError:
            self._notify_dropped += 1
            self._meter.dropped()

    async def subscribe(self, subject: str, handler: Hearer, *, pending_messages: int) -> NatsSubscription:
        """See `Bus`."""
        subjects.check_pattern(subject)
        pump: Pump[Message] = Pump(
            subject, handler, limit=pending_messages, at_once=True, on_dropped=self._meter.dropped
        )
        subscription = NatsSubscription(self._wire, subject, pump, self._subscriptions.remove)
        try:
            await subscription.start()
        except (NotSentError, UnansweredError):
            raise unavailable("not connected to the broker") from None
        self._subscriptions.append(subscription)
        return subscription

    async def read(self, subject: str, *, after_sequence: int = 0, limit: int) -> list[Message]:
        """See `Bus`."""
        subjects.check_subject(subject)
        row = self._topology.stream_of(subject)
        if row is None:
            raise unavailable("no stream holds this subject")
        # The leader knows the last message; the consumer that brings them may sit on a server that lags behind.
        last = await stored_message(self._wire, row.name, {"last_by_subj": subject})
        if last is None or last.sequence <= after_sequence or limit <= 0:
            return []
        config = {
            "filter_subject": subject,
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": after_sequence + 1,
        }

        def complete(read: Read) -> bool:
            return read.sequence >= last.sequence

        try:
            read = await collect(self._wire, row.name, config, limit=limit, complete=complete)
        except ApiError as error:
            raise error.typed() from None
        return [
            Message(item.subject, item.data, bus_headers.callers_own(item.header_block), item.sequence) for item in read
        ]

    async def fetch(self, stream: str, sequence: int) -> Message | None:
        """See `Bus`."""
        stored = await stored_message(self._wire, self._topology.stream(stream).name, {"seq": sequence})
        return None if stored is None else stored.message()

    async def purge(self, stream: str, subject: str) -> int:
        """See `Bus`."""
        subjects.check_pattern(subject)
        name = self._topology.stream(stream).name
        try:
            answer = await call(self._wire, f"STREAM.PURGE.{name}", {"filter": subject})
        except ApiError as error:
            raise error.typed() from None
        return int(answer.get("purged", 0))

    async def consume(self, spec: ConsumerSpec, handler: Handler) -> NatsConsumption:
        """See `Bus`."""
        self._topology.stream(spec.stream)
        consumption = NatsConsumption(
            self._wire, spec, handler, bury=self._bury, clock=self._clock, on_closed=self._consumption_closed
        )
        try:
            await consumption.start()
        except ApiError as error:
            await consumption.close(0.0)
            raise error.typed() from None
        except BaseException:
            await consumption.close(0.0)
            raise
        self._consumptions.append(consumption)
        return consumption

    def kv(self, bucket: str) -> NatsKeyValue:
        """See `Bus`."""
        return NatsKeyValue(self._wire, self._topology.bucket(bucket), self._watches)

    def objects(self, bucket: str) -> NatsObjects:
        """See `Bus`."""
        return NatsObjects(self._wire, self._topology.object_store(bucket), self._clock)

    async def close(self, timeout_seconds: float) -> None:
        """See `Bus`."""
        if self._closed:
            return
        self._closed = True
        ends_at = asyncio.get_running_loop().time() + timeout_seconds
        await asyncio.gather(*(consumption.close(timeout_seconds) for consumption in tuple(self._consumptions)))
        for watch in tuple(self._watches):
            await watch.close()
        for subscription in tuple(self._subscriptions):
            await subscription.close()
        self._meter.connected(False)
        await self._wire.answered(ends_at - asyncio.get_running_loop().time())
        await self._wire.close()

    async def declare_stream(self, row: Stream, *, replicas: int) -> None:
        """See `topology.Declares`."""
        await declare(self._wire, stream_config(row, replicas))

    async def declare_bucket(self, row: Bucket, *, replicas: int) -> None:
        """See `topology.Declares`."""
        await declare(self._wire, bucket_config(row, replicas))

    async def declare_object_store(self, row: ObjectStore, *, replicas: int) -> None:
        """See `topology.Declares`."""
        await declare(self._wire, object_store_config(row, replicas))

    def _consumption_closed(self, consumption: NatsConsumption) -> None:
        if consumption in self._consumptions:
            self._consumptions.remove(consumption)

    async def _bury(self, letter: DeadLetter) -> None:
        await self.append(
            subjects.dead_letter(letter.stream, letter.consumer),
            letter.encode(),
            message_id=letter.message_id,
            timeout_seconds=self._wire.options.request_timeout_seconds,
        )
        self._meter.gave_up(letter.stream)


class NatsSubscription:
    """See `Subscription`."""

    def __init__(
        self,
        wire: Wire,
        subject: str,
        pump: Pump[Message],
        on_closed: Callable[[NatsSubscription], None],
    ) -> None:
        self._wire = wire
        self._subject = subject
        self._on_closed = on_closed
        self._sid: int | None = None
        self._pump = pump

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

    async def start(self) -> None:
        """Begins to listen."""
        self._sid = await self._wire.listen(self._subject, self._arrived)
        self._wire.reconnected.append(self._missed)

    async def close(self) -> None:
        """See `Subscription`."""
        if self._sid is None:
            return
        self._wire.unroute(self._sid)
        self._sid = None
        self._wire.reconnected.remove(self._missed)
        self._pump.stop()
        await self._pump.stopped()
        self._on_closed(self)

    def _arrived(self, subject: str, _: bytes, data: bytes, headers: bytes | None) -> None:
        self._pump.offer(Message(subject, data, bus_headers.callers_own(headers)))

    def _missed(self) -> None:
        self._pump.gaps += 1
