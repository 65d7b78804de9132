"""The bus: everything that fans out, is learned from, or must survive.

`Bus` is the port; `MemoryBus` and `NatsBus` implement it and pass the same conformance suite (tests/contract). It has
five abilities, each with another promise:

* **append / read**: a durable stream. An append counts only when the broker has acknowledged it.
* **notify / subscribe**: lossy broadcasts. A lost message is repaired by state, never waited for.
* **consume**: durable work. Every message is handled at least once, or ends in the dead letters with a reason.
* **kv**: small shared state with compare-and-set.
* **objects**: content by digest, for everything above one message's size.

Handlers are coroutines, or for `subscribe` plain functions, and never run inside the caller of `append` or `notify`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, Protocol

from forerun.core import limits

EVENT_TYPE_HEADER: Final = "Forerun-Event-Type"
"""Header that carries the type of an event or message, so that a reader can skip what it does not want."""

MAX_MESSAGE_BYTES: Final = limits.BUS_MESSAGE_BYTES
"""Largest message, headers included: the broker's default limit. Larger bodies travel by digest through `objects`."""

_NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Message:
    """A message as a handler or reader gets it.

    Attributes:
        subject: What it was published to.
        data: Its body.
        headers: Its headers, without those of the broker itself.
        sequence: Its place in its stream; None for a core message.
        deliveries: How often this consumer was given it, this time included; 0 where it was not consumed. It is the
            fencing token of the attempt: a commit must be conditional (expected sequence, revision, message id),
            because after a freeze two attempts may run.
    """

    subject: str
    data: bytes
    headers: Mapping[str, str] = field(default_factory=lambda: _NO_HEADERS)
    sequence: int | None = None
    deliveries: int = 0


Handler = Callable[[Message], Awaitable[None]]
Hearer = Callable[[Message], Coroutine[Any, Any, None] | None]
"""Hears a subject. A plain function has to be quick, and costs less than a coroutine, which gets a task each time. It
returns None, or something to wait for before the next message."""


class Start(StrEnum):
    """Where a new consumer begins; an existing one goes on where it was."""

    ALL = "all"
    NEW = "new"


@dataclass(frozen=True, slots=True)
class ConsumerSpec:
    """A durable consumer. Processes that consume the same (stream, name) share its messages.

    Attributes:
        stream: Name of the stream in the topology.
        name: Name of the consumer: letters, digits, `_` and `-`.
        subjects: Patterns of the subjects it wants; all of them lie in the stream.
        concurrency: Messages in work at a time in this process. 1 keeps the order of the stream.
        prefetch: Messages kept ready beyond those in work. Raises throughput where handlers are quick; 0 leaves them
            to other processes, which is right for slow work.
        ack_wait_seconds: How long the broker waits for a sign of life before it gives the message to somebody else.
            Running handlers send one every third of it, so it bounds a crash, not the work.
        handler_timeout_seconds: A handler that runs longer is cancelled and counts as failed.
        max_deliver: Attempts before a message goes to the dead letters.
        retry_delay_seconds: Pause after the first failed attempt; doubles with each further one.
        retry_delay_max_seconds: Upper end of that pause.
        start: Where it begins when it is made for the first time.
    """

    stream: str
    name: str
    subjects: tuple[str, ...]
    concurrency: int = 1
    prefetch: int = 0
    ack_wait_seconds: float = 30.0
    handler_timeout_seconds: float = 300.0
    max_deliver: int = 5
    retry_delay_seconds: float = 0.5
    retry_delay_max_seconds: float = 30.0
    start: Start = Start.ALL

    def retry_delay(self, deliveries: int) -> float:
        """Seconds until the attempt after attempt number `deliveries`."""
        # The exponent is capped so that an unbounded max_deliver cannot overflow a float.
        return float(min(self.retry_delay_max_seconds, self.retry_delay_seconds * 2 ** min(max(deliveries - 1, 0), 30)))


@dataclass(frozen=True, slots=True)
class Entry:
    """A value of the key-value store.

    Attributes:
        value: The bytes.
        revision: Grows with every change in the bucket; what `update` compares.
    """

    value: bytes
    revision: int


Watcher = Callable[[str, Entry | None], Awaitable[None]]
"""Gets a key and its new entry, or None when the key was deleted or has expired."""


class Subscription(Protocol):
    """Somebody who listens."""

    @property
    def dropped(self) -> int:
        """Messages thrown away because the handler was too slow for `pending_messages`."""
        ...

    @property
    def failed(self) -> int:
        """Messages whose handler raised; each was logged and the next one handled."""
        ...

    @property
    def gaps(self) -> int:
        """How often messages may have been missed: overflows and reconnects. Compare it to know when to resync."""
        ...

    async def close(self) -> None:
        """Stops listening. The running handler is cancelled, what is pending is thrown away. May be repeated."""
        ...


class Consumption(Protocol):
    """A running consumer of this process. The counters are since `consume`."""

    @property
    def acknowledged(self) -> int:
        """Messages handled and acknowledged."""
        ...

    @property
    def failed(self) -> int:
        """Attempts that raised or ran too long and will be repeated."""
        ...

    @property
    def dead_lettered(self) -> int:
        """Messages moved to the dead letters."""
        ...

    @property
    def lost(self) -> int:
        """Attempts that had been silent for longer than ack_wait when they ended.

        The message belongs to another attempt by then, so it was not acknowledged.
        """
        ...

    @property
    def in_progress(self) -> int:
        """Messages taken and not settled yet."""
        ...

    @property
    def healthy(self) -> bool:
        """False while the broker gives no sign of life for this consumer: readiness should then be false, too."""
        ...

    @property
    def last_received_at(self) -> float | None:
        """Loop time of the last message; None before the first."""
        ...

    async def close(self, timeout_seconds: float) -> None:
        """Takes no more messages and lets the running handlers end for at most `timeout_seconds`.

        What is still running then is cancelled and its messages are given back to the broker. May be repeated.
        """
        ...


class KeyValue(Protocol):
    """A bucket of small values. Keys are any text; `/` separates parts, and prefixes are plain prefixes of the text.

    Reads go to the leader of the bucket: what was written before is seen. Every method raises Unavailable when the
    broker does not answer in time, and AppendUncertain when a write may or may not have been stored.
    """

    async def get(self, key: str) -> Entry | None:
        """The present entry, or None."""
        ...

    async def create(self, key: str, value: bytes) -> int:
        """Writes a key that does not exist (or was deleted) and returns its revision.

        Raises:
            KeyConflict: it exists.
        """
        ...

    async def update(self, key: str, value: bytes, revision: int) -> int:
        """Replaces the entry of exactly this revision and returns the new one.

        Raises:
            KeyConflict: the key has another revision, or is gone.
        """
        ...

    async def put(self, key: str, value: bytes) -> int:
        """Writes, whatever is there, and returns the revision. May be repeated."""
        ...

    async def delete(self, key: str, *, revision: int | None = None) -> None:
        """Deletes; a key that does not exist is fine. With `revision` only that one, else KeyConflict."""
        ...

    async def keys(self, prefix: str = "") -> list[str]:
        """All keys that start with `prefix`, sorted."""
        ...

    async def watch(self, prefix: str, handler: Watcher) -> Subscription:
        """Calls `handler` for every present entry, then for every change, in order.

        Returns when the present entries have been handled. Survives outages: afterwards it goes on with what has
        changed; intermediate values of a key may be skipped, its last one never.
        """
        ...


class Objects(Protocol):
    """Content by digest, kept apart per tenant: the same bytes of two tenants are two objects."""

    async def put(self, data: bytes, tenant: str) -> str:
        """Stores and returns `sha256:<hex>`. May be repeated; content that is there is not sent again."""
        ...

    async def get(self, digest: str, tenant: str) -> bytes:
        """The content, verified against its digest.

        Raises:
            NotFound: the tenant has no such object.
            DigestMismatch: what is stored is damaged.
        """
        ...

    async def delete(self, digest: str, tenant: str) -> None:
        """Deletes; an object that does not exist is fine."""
        ...

    async def digests(self, tenant: str) -> list[str]:
        """The digests of all objects of the tenant, sorted."""
        ...

    async def erase(self, tenant: str) -> None:
        """Deletes all objects of the tenant. May be repeated."""
        ...


class Bus(Protocol):
    """The port. See the module's docstring for the five abilities."""

    @property
    def connected(self) -> bool:
        """Whether the broker can be reached now. False during an outage: readiness should then be false, too."""
        ...

    @property
    def notify_dropped(self) -> int:
        """Notifications thrown away because the broker was away or the connection congested."""
        ...

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
        """Stores a message durably and returns its sequence in its stream.

        Args:
            subject: Exact subject of a stream.
            data: The body.
            headers: Sent along; names starting with `Nats-` belong to the broker.
            message_id: A second append with the same id within the stream's dedupe window is not stored; its answer
                is the sequence of the first.
            expected_last_sequence: Store only if this is the sequence of the subject's last message (0: it has none).
            timeout_seconds: How long to wait for the acknowledgement.

        Raises:
            SequenceMismatch: the subject's last sequence is another one. Not stored.
            MessageTooLarge, InvalidArgument: not sent.
            ResourceExhausted: the stream is full. Not stored.
            AppendUncertain: no acknowledgement in time, or the connection broke. May be stored.
            Unavailable: not connected, or no stream takes the subject. Not stored, nor will be.
        """
        ...

    async def notify(self, subject: str, data: bytes, *, headers: Mapping[str, str] | None = None) -> None:
        """Tells whoever listens now. Returns without waiting; lost (and counted) when the broker is away.

        Raises:
            MessageTooLarge, InvalidArgument: not sent.
        """
        ...

    async def subscribe(self, subject: str, handler: Hearer, *, pending_messages: int) -> Subscription:
        """Hears a subject or pattern, stream subjects included, one message at a time, in order.

        Args:
            subject: May hold wildcards.
            handler: What it raises is logged and counted.
            pending_messages: Messages kept for a slow handler; the newest above that are dropped and counted.
        """
        ...

    async def read(self, subject: str, *, after_sequence: int = 0, limit: int) -> list[Message]:
        """The messages of one exact subject of a stream, in order, those after `after_sequence`, at most `limit`.

        Everything acknowledged before the call is seen.

        Raises:
            Unavailable: the broker does not answer, or no stream holds the subject.
        """
        ...

    async def fetch(self, stream: str, sequence: int) -> Message | None:
        """One message of a stream by its sequence; None when it is not there (any more)."""
        ...

    async def purge(self, stream: str, subject: str) -> int:
        """Deletes the messages of a stream whose subject matches a pattern and returns how many; may be repeated.

        Raises:
            PermissionDenied: this user may not.
        """
        ...

    async def consume(self, spec: ConsumerSpec, handler: Handler) -> Consumption:
        """Works off a stream.

        A message is acknowledged when `handler` returns. When it raises `Poison`, the message goes to the dead
        letters; when it raises anything else, it is delivered again after a growing delay, and goes to the dead
        letters after `max_deliver` attempts. Goes on by itself after an outage or the loss of the consumer.
        """
        ...

    def kv(self, bucket: str) -> KeyValue:
        """A bucket of the topology."""
        ...

    def objects(self, bucket: str) -> Objects:
        """An object store of the topology."""
        ...

    async def close(self, timeout_seconds: float) -> None:
        """Ends consumers (running handlers may finish), subscriptions and the connection within the given time.

        What was not acknowledged has already told its caller so. May be repeated.
        """
        ...
