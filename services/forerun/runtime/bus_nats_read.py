"""Reading back: messages of a stream and keys of a bucket, through short-lived consumers of their own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from forerun.runtime import bus_headers
from forerun.runtime.bus_nats_api import API, call
from forerun.runtime.bus_nats_wire import NotSentError, Wire
from forerun.runtime.errors import ErrorReason, Unavailable

_NANOS: Final = 1_000_000_000
_BATCH: Final = 512
# A reader that died is forgotten by the broker after this.
_INACTIVE_SECONDS: Final = 5.0

# An acknowledgement's subject: `$JS.ACK.<stream>.<consumer>.<deliveries>.<sequence>.<n>.<time>.<pending>`, since newer
# brokers with domain and account after `ACK`, and possibly a random token at the end.
_SHORT_FORM: Final = 9


@dataclass(frozen=True, slots=True)
class Delivered:
    """What the subject of an acknowledgement says about a delivery.

    Attributes:
        deliveries: How often it was delivered.
        sequence: Its sequence in the stream.
        pending: How many more the consumer has for us.
    """

    deliveries: int
    sequence: int
    pending: int


def delivered(acknowledgement: str) -> Delivered:
    """Reads the subject of an acknowledgement."""
    parts = acknowledgement.split(".")
    first = 4 if len(parts) == _SHORT_FORM else 6
    return Delivered(int(parts[first]), int(parts[first + 1]), int(parts[first + 4]))


@dataclass(frozen=True, slots=True)
class Read:
    """A message as a reader gets it."""

    subject: str
    sequence: int
    data: bytes
    header_block: bytes | None
    pending: int


async def create_reader(wire: Wire, stream: str, config: Mapping[str, object]) -> tuple[str, int]:
    """Makes a consumer that needs no acknowledgements; returns its name and how many messages it has.

    Raises:
        ApiError: the broker refused.
        Unavailable: the broker does not answer.
    """
    name = wire.unique_name()
    full = {
        "name": name,
        "ack_policy": "none",
        "mem_storage": True,
        "num_replicas": 1,
        "inactive_threshold": int(_INACTIVE_SECONDS * _NANOS),
        **config,
    }
    answer = await call(wire, f"CONSUMER.CREATE.{stream}.{name}", {"stream_name": stream, "config": full})
    return name, int(answer.get("num_pending", 0))


async def collect(
    wire: Wire, stream: str, config: Mapping[str, object], *, limit: int, complete: Callable[[Read], bool]
) -> list[Read]:
    """Reads messages in order until `complete` says that one was the last, or there are `limit`.

    Raises:
        Unavailable: the broker does not answer, or fell silent before the last one.
        ApiError: the broker refused.
    """
    name, pending = await create_reader(wire, stream, config)
    if pending == 0:
        return []
    reading = _Reading(wire, limit, complete)
    sid = wire.route(f"{reading.inbox}.*", reading.arrived)
    wire.disconnected.append(reading.stop)
    try:
        return await reading.run(f"{API}.CONSUMER.MSG.NEXT.{stream}.{name}")
    finally:
        wire.disconnected.remove(reading.stop)
        wire.unroute(sid)


class _Reading:
    def __init__(self, wire: Wire, limit: int, complete: Callable[[Read], bool]) -> None:
        self.inbox = wire.inbox()
        self._wire = wire
        self._limit = limit
        self._complete = complete
        self._read: list[Read] = []
        self._due = 0
        self._done = False
        self._stopped = False
        self._event = asyncio.Event()

    async def run(self, next_subject: str) -> list[Read]:
        bound = self._wire.options.request_timeout_seconds
        requests = 0
        while not self._done:
            self._due = min(_BATCH, self._limit - len(self._read))
            request = {"batch": self._due, "expires": int(bound * _NANOS)}
            self._event.clear()
            requests += 1
            try:
                self._wire.send(next_subject, json.dumps(request).encode(), reply=f"{self.inbox}.{requests}")
                async with asyncio.timeout(bound):
                    await self._event.wait()
            except (NotSentError, TimeoutError):
                self._stopped = True
            if self._stopped:
                raise Unavailable(ErrorReason.BROKER_UNAVAILABLE, "the broker fell silent during a read")
        return self._read

    def arrived(self, subject: str, reply: bytes, data: bytes, headers: bytes | None) -> None:
        if not reply:
            status = bus_headers.parse(headers or b"")
            if status.get(bus_headers.STATUS) not in ("100", None):
                self.stop()
            return
        if self._done:
            return
        position = delivered(reply.decode())
        read = Read(subject, position.sequence, data, headers, position.pending)
        self._read.append(read)
        self._due -= 1
        self._done = len(self._read) >= self._limit or self._complete(read)
        if self._done or self._due == 0:
            self._event.set()

    def stop(self) -> None:
        self._stopped = True
        self._event.set()
