"""Keys on NATS: the layout of JetStream's key-value buckets, read through the leader."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from forerun.runtime import bus_headers, subjects
from forerun.runtime.bus import Entry, Watcher
from forerun.runtime.bus_errors import KeyConflict, MessageTooLarge
from forerun.runtime.bus_nats_api import ApiError, StoredMessage, append, append_error, is_conflict, stored_message
from forerun.runtime.bus_nats_pull import Pull
from forerun.runtime.bus_nats_read import collect, create_reader, delivered
from forerun.runtime.bus_nats_wire import Wire
from forerun.runtime.bus_pump import Pump
from forerun.runtime.errors import ErrorReason, Unavailable
from forerun.runtime.topology import Bucket

_OPERATION: Final = "KV-Operation"
# Left by the broker itself where a key expired.
_MARKER: Final = "Nats-Marker-Reason"
# A deleted key leaves a marker for watchers that were away; those away for longer compare everything.
MARKER_SECONDS: Final = 3600
_DELETE_LINES: Final = f"{_OPERATION}: PURGE\r\nNats-Rollup: sub\r\nNats-TTL: {MARKER_SECONDS}\r\n"
_WATCH_BATCH: Final = 256
_MAX_KEYS: Final = 1_000_000


def stream_name(bucket: str) -> str:
    """The stream behind a bucket."""
    return f"KV_{bucket}"


class NatsKeyValue:
    """See `KeyValue`."""

    def __init__(self, wire: Wire, row: Bucket, watches: list[NatsWatch]) -> None:
        self._wire = wire
        self._row = row
        self._watches = watches
        self._stream = stream_name(row.name)
        self._prefix = f"$KV.{row.name}."

    async def get(self, key: str) -> Entry | None:
        """See `KeyValue`."""
        stored = await self._last(key)
        return None if stored is None or _is_gone(stored.header_block) else Entry(stored.data, stored.sequence)

    async def create(self, key: str, value: bytes) -> int:
        """See `KeyValue`."""
        try:
            return await self._write(key, value, 0)
        except KeyConflict:
            # A deleted key has a marker, and the marker's revision has to be named.
            stored = await self._last(key)
            if stored is None or not _is_gone(stored.header_block):
                raise
            return await self._write(key, value, stored.sequence)

    async def update(self, key: str, value: bytes, revision: int) -> int:
        """See `KeyValue`."""
        return await self._write(key, value, revision)

    async def put(self, key: str, value: bytes) -> int:
        """See `KeyValue`."""
        return await self._write(key, value, None)

    async def delete(self, key: str, *, revision: int | None = None) -> None:
        """See `KeyValue`."""
        await self._publish(key, b"", _DELETE_LINES, revision)

    async def keys(self, prefix: str = "") -> list[str]:
        """See `KeyValue`."""
        config = {
            "filter_subject": self._prefix + subjects.key_filter(prefix),
            "deliver_policy": "last_per_subject",
            "headers_only": True,
        }
        try:
            read = await collect(
                self._wire, self._stream, config, limit=_MAX_KEYS, complete=lambda item: item.pending == 0
            )
        except ApiError as error:
            raise error.typed() from None
        keys = (
            subjects.decode_key(item.subject[len(self._prefix) :]) for item in read if not _is_gone(item.header_block)
        )
        return sorted(key for key in keys if key.startswith(prefix))

    async def watch(self, prefix: str, handler: Watcher) -> NatsWatch:
        """See `KeyValue`."""
        watch = NatsWatch(self._wire, self._row, prefix, handler, self._watches.remove)
        self._watches.append(watch)
        try:
            await watch.start()
        except BaseException:
            await watch.close()
            raise
        return watch

    async def _last(self, key: str) -> StoredMessage | None:
        subject = self._prefix + subjects.encode_key(key)
        return await stored_message(self._wire, self._stream, {"last_by_subj": subject})

    async def _write(self, key: str, value: bytes, expected_revision: int | None) -> int:
        if len(value) > self._row.max_value_bytes:
            raise MessageTooLarge(len(value), self._row.max_value_bytes)
        return await self._publish(key, value, "", expected_revision)

    async def _publish(self, key: str, value: bytes, lines: str, expected_revision: int | None) -> int:
        if expected_revision is not None:
            lines += f"{bus_headers.EXPECTED_LAST_SUBJECT_SEQUENCE}: {expected_revision}\r\n"
        subject = self._prefix + subjects.encode_key(key)
        block = bus_headers.block(lines)
        bound = self._wire.options.request_timeout_seconds
        try:
            return await append(self._wire, subject, bytes(value), block, timeout_seconds=bound)
        except ApiError as error:
            if is_conflict(error):
                raise KeyConflict(self._row.name) from None
            size = len(block) + len(value)
            raise append_error(error, size_bytes=size, expected_last_sequence=None) from None


class NatsWatch:
    """See `KeyValue.watch`. Its consumer is made anew after an outage, and then tells everything again."""

    def __init__(
        self, wire: Wire, row: Bucket, prefix: str, handler: Watcher, on_closed: Callable[[NatsWatch], None]
    ) -> None:
        self._wire = wire
        self._stream = stream_name(row.name)
        self._subject_prefix = f"$KV.{row.name}."
        self._prefix = prefix
        self._handler = handler
        self._on_closed = on_closed
        # Entries that the handler knows, by key; what is known and not told again after a gap has been deleted.
        self._known: dict[str, int] = {}
        self._unconfirmed: dict[str, None] = {}
        self._started = False
        self._complete = asyncio.Event()
        self._closed = False
        # None after the present entries.
        self._pump: Pump[tuple[str, Entry | None] | None] = Pump(
            f"watch {row.name}", self._tell, limit=None, on_handled=lambda _: self._pull.wake()
        )
        self._pull = Pull(wire, self._stream, self, self._arrived, self._want)

    @property
    def dropped(self) -> int:
        """Always 0: a watch asks only for what it can take."""
        return 0

    @property
    def failed(self) -> int:
        """See `Subscription`."""
        return self._pump.failed

    @property
    def gaps(self) -> int:
        """See `Subscription`."""
        return self._pump.gaps

    async def start(self) -> None:
        """Begins, and returns when the present entries have been handled."""
        try:
            await self._pull.start()
        except ApiError as error:
            raise error.typed() from None
        try:
            async with asyncio.timeout(self._wire.options.request_timeout_seconds):
                await self._complete.wait()
        except TimeoutError:
            message = "the present entries of a watch were not handled in time"
            raise Unavailable(ErrorReason.BROKER_UNAVAILABLE, message) from None

    async def ensure(self) -> str:
        """See `ConsumerSource`."""
        config = {
            "filter_subject": self._subject_prefix + subjects.key_filter(self._prefix),
            "deliver_policy": "last_per_subject",
        }
        name, pending = await create_reader(self._wire, self._stream, config)
        if self._started:
            self._pump.gaps += 1
            self._unconfirmed = dict.fromkeys(self._known)
        self._started = True
        if pending == 0:
            self._all_told()
        return name

    async def close(self) -> None:
        """See `Subscription`."""
        if self._closed:
            return
        self._closed = True
        await self._pull.close()
        self._pump.stop()
        await self._pump.stopped()
        self._on_closed(self)

    def _want(self) -> int:
        return _WATCH_BATCH - self._pump.waiting

    def _arrived(self, subject: str, acknowledgement: str, data: bytes, headers: bytes | None) -> None:
        position = delivered(acknowledgement)
        key = subjects.decode_key(subject[len(self._subject_prefix) :])
        self._unconfirmed.pop(key, None)
        if key.startswith(self._prefix) and position.sequence > self._known.get(key, 0):
            if not _is_gone(headers):
                self._known[key] = position.sequence
                self._pump.offer((key, Entry(data, position.sequence)))
            elif self._known.pop(key, None) is not None:
                self._pump.offer((key, None))
        if position.pending == 0:
            self._all_told()

    def _all_told(self) -> None:
        for key in self._unconfirmed:
            if self._known.pop(key, None) is not None:
                self._pump.offer((key, None))
        self._unconfirmed = {}
        if not self._complete.is_set():
            self._pump.offer(None)

    async def _tell(self, item: tuple[str, Entry | None] | None) -> None:
        if item is None:
            self._complete.set()
        else:
            await self._handler(*item)


def _is_gone(header_block: bytes | None) -> bool:
    if not header_block:
        return False
    headers = bus_headers.parse(header_block)
    return _OPERATION in headers or _MARKER in headers
