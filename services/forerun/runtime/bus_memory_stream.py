"""A stream and its consumers in memory, with the semantics of JetStream."""

from __future__ import annotations

import asyncio
import json
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from forerun.runtime import subjects
from forerun.runtime.bus import ConsumerSpec, Message, Start
from forerun.runtime.bus_delivery import Delivery
from forerun.runtime.bus_errors import SequenceMismatch
from forerun.runtime.errors import ErrorReason, ResourceExhausted
from forerun.runtime.topology import MAX_DELIVERIES_ADVISORIES, Discard, Retention, Stream

# What JetStream adds to each stored message; makes sizes comparable.
_STORED_OVERHEAD_BYTES: Final = 22


@dataclass(frozen=True, slots=True)
class _Stored:
    subject: str
    data: bytes
    headers: Mapping[str, str]
    size_bytes: int
    stored_at: float


class MemoryStream:
    """A durable stream. Times are loop times."""

    def __init__(self, row: Stream) -> None:
        self.row = row
        self.consumers: dict[str, MemoryConsumer] = {}
        self._messages: dict[int, _Stored] = {}
        self._by_subject: dict[str, list[int]] = {}
        self._ids: dict[str, tuple[int, float]] = {}
        self._last = 0
        self._bytes = 0

    @property
    def last_sequence(self) -> int:
        """Sequence of the newest message ever stored."""
        return self._last

    def __len__(self) -> int:
        return len(self._messages)

    def append(
        self,
        subject: str,
        data: bytes,
        headers: Mapping[str, str],
        *,
        size_bytes: int,
        message_id: str | None,
        expected_last_sequence: int | None,
        now: float,
    ) -> tuple[int, bool]:
        """Stores; returns the sequence and whether it is new. Raises as `Bus.append`."""
        self._expire(now)
        if message_id is not None and message_id in self._ids:
            return self._ids[message_id][0], False
        if expected_last_sequence is not None:
            sequences = self._by_subject.get(subject)
            actual = sequences[-1] if sequences else 0
            if actual != expected_last_sequence:
                raise SequenceMismatch(expected_last_sequence, actual)
        size = size_bytes + len(subject) + _STORED_OVERHEAD_BYTES
        while self._bytes + size > self.row.max_bytes and self._messages:
            if self.row.discard is Discard.NEW:
                raise ResourceExhausted(
                    ErrorReason.STREAM_FULL,
                    f"stream {self.row.name} has reached its size; see max_bytes in the topology",
                    metadata={"stream": self.row.name, "limit_bytes": str(self.row.max_bytes)},
                )
            self.remove(next(iter(self._messages)))
        self._last += 1
        self._messages[self._last] = _Stored(subject, data, headers, size, now)
        self._by_subject.setdefault(subject, []).append(self._last)
        self._bytes += size
        if message_id is not None:
            self._ids[message_id] = (self._last, now)
        for consumer in self.consumers.values():
            consumer.wake()
        return self._last, True

    def read(self, subject: str, after_sequence: int, limit: int, now: float) -> list[Message]:
        """Messages of one subject in order."""
        self._expire(now)
        sequences = self._by_subject.get(subject, [])
        first = bisect_right(sequences, after_sequence)
        return [self._message(sequence, 0) for sequence in sequences[first : first + limit]]

    def get(self, sequence: int, deliveries: int = 0) -> Message | None:
        """One message, or None."""
        return self._message(sequence, deliveries) if sequence in self._messages else None

    def subject_of(self, sequence: int) -> str | None:
        """The subject of a message, or None where it is gone."""
        stored = self._messages.get(sequence)
        return stored.subject if stored else None

    def remove(self, sequence: int) -> None:
        """Lets go of one message."""
        stored = self._messages.pop(sequence, None)
        if stored is None:
            return
        self._bytes -= stored.size_bytes
        sequences = self._by_subject[stored.subject]
        if sequences[0] == sequence:
            del sequences[0]
        else:
            sequences.remove(sequence)
        if not sequences:
            del self._by_subject[stored.subject]

    def purge(self, pattern: str) -> int:
        """Removes what a pattern matches; returns how many."""
        gone = [n for name, ns in self._by_subject.items() if subjects.matches(pattern, name) for n in ns]
        for sequence in gone:
            self.remove(sequence)
        return len(gone)

    def _message(self, sequence: int, deliveries: int) -> Message:
        stored = self._messages[sequence]
        return Message(stored.subject, stored.data, stored.headers, sequence, deliveries)

    def _expire(self, now: float) -> None:
        while self._messages:
            oldest = next(iter(self._messages))
            if self._messages[oldest].stored_at + self.row.max_age_seconds > now:
                break
            self.remove(oldest)
        while self._ids:
            message_id = next(iter(self._ids))
            if self._ids[message_id][1] + self.row.dedupe_window_seconds > now:
                break
            del self._ids[message_id]


class Taker(Protocol):
    """A process that consumes."""

    @property
    def reachable(self) -> bool:
        """Whether broker and process reach each other; else verdicts get lost."""
        ...

    @property
    def room(self) -> int:
        """Deliveries it can take now; 0 while it cannot be reached."""
        ...

    def take(self, delivery: Delivery) -> None:
        """Takes one."""
        ...


@dataclass(slots=True)
class _Outstanding:
    deliveries: int
    timer: asyncio.TimerHandle


class MemoryConsumer:
    """The broker's side of a durable consumer: what was delivered, what is owed, what was given up.

    Args:
        stream: Its stream.
        spec: How it was asked for.
        bury: Stores the broker's own record of a message whose deliveries are used up.
    """

    def __init__(self, stream: MemoryStream, spec: ConsumerSpec, bury: Callable[[str, bytes], None]) -> None:
        self.takers: list[Taker] = []
        self.spec = spec
        self._stream = stream
        self._bury = bury
        self._loop = asyncio.get_running_loop()
        self._cursor = 0 if spec.start is Start.ALL else stream.last_sequence
        self._due: deque[int] = deque()
        self._delivered: dict[int, int] = {}
        self._outstanding: dict[int, _Outstanding] = {}
        self._pauses: dict[int, asyncio.TimerHandle] = {}
        self._scheduled = False
        self._turn = 0

    def wake(self) -> None:
        """Looks for something to deliver, soon."""
        if not self._scheduled and self.takers:
            self._scheduled = True
            self._loop.call_soon(self._deliver)

    def settle(self, sequence: int) -> None:
        """Somebody is done with a message, in whichever attempt."""
        self._forget(sequence)
        self._delivered.pop(sequence, None)
        if self._stream.row.retention is Retention.WORK_QUEUE:
            self._stream.remove(sequence)

    def progress(self, sequence: int) -> None:
        """Somebody works on it: ack_wait begins anew."""
        outstanding = self._outstanding.get(sequence)
        if outstanding is not None:
            outstanding.timer.cancel()
            outstanding.timer = self._loop.call_later(self.spec.ack_wait_seconds, self._overdue, sequence)

    def retry(self, sequence: int, delay_seconds: float) -> None:
        """Somebody gives it back."""
        if sequence not in self._outstanding:
            return
        self._forget(sequence)
        self._pauses[sequence] = self._loop.call_later(delay_seconds, self._again, sequence)

    def _overdue(self, sequence: int) -> None:
        self._forget(sequence)
        self._again(sequence)

    def _again(self, sequence: int) -> None:
        self._pauses.pop(sequence, None)
        deliveries = self._delivered.get(sequence, 0)
        if deliveries >= self.spec.max_deliver:
            advisory = {
                "type": "io.nats.jetstream.advisory.v1.max_deliver",
                "stream": self.spec.stream,
                "consumer": self.spec.name,
                "stream_seq": sequence,
                "deliveries": deliveries,
            }
            self._bury(
                f"{MAX_DELIVERIES_ADVISORIES}.{self.spec.stream}.{self.spec.name}", json.dumps(advisory).encode()
            )
            return
        self._due.append(sequence)
        self.wake()

    def _forget(self, sequence: int) -> None:
        outstanding = self._outstanding.pop(sequence, None)
        if outstanding is not None:
            outstanding.timer.cancel()
        pause = self._pauses.pop(sequence, None)
        if pause is not None:
            pause.cancel()

    def _deliver(self) -> None:
        self._scheduled = False
        while (taker := self._next_taker()) is not None and (message := self._next_message()) is not None:
            sequence = message.sequence or 0
            timer = self._loop.call_later(self.spec.ack_wait_seconds, self._overdue, sequence)
            self._outstanding[sequence] = _Outstanding(message.deliveries, timer)
            taker.take(MemoryDelivery(self, taker, message))

    def _next_taker(self) -> Taker | None:
        for offset in range(len(self.takers)):
            taker = self.takers[(self._turn + offset) % len(self.takers)]
            if taker.room > 0:
                self._turn += offset + 1
                return taker
        return None

    def _next_message(self) -> Message | None:
        while self._due:
            message = self._counted(self._due.popleft())
            if message is not None:
                return message
        while self._cursor < self._stream.last_sequence:
            self._cursor += 1
            subject = self._stream.subject_of(self._cursor)
            if subject is not None and any(subjects.matches(pattern, subject) for pattern in self.spec.subjects):
                return self._counted(self._cursor)
        return None

    def _counted(self, sequence: int) -> Message | None:
        deliveries = self._delivered.get(sequence, 0) + 1
        message = self._stream.get(sequence, deliveries)
        if message is None:
            self._delivered.pop(sequence, None)
        else:
            self._delivered[sequence] = deliveries
        return message


class MemoryDelivery:
    """A delivery of a `MemoryConsumer`; verdicts get lost while its taker cannot reach the broker."""

    __slots__ = ("_consumer", "_sequence", "_taker", "message")

    def __init__(self, consumer: MemoryConsumer, taker: Taker, message: Message) -> None:
        self._consumer = consumer
        self._taker = taker
        self._sequence = message.sequence or 0
        self.message = message

    def acknowledge(self) -> None:
        """See `Delivery`."""
        if self._taker.reachable:
            self._consumer.settle(self._sequence)

    def retry(self, delay_seconds: float) -> None:
        """See `Delivery`."""
        if self._taker.reachable:
            self._consumer.retry(self._sequence, delay_seconds)

    def in_progress(self) -> None:
        """See `Delivery`."""
        if self._taker.reachable:
            self._consumer.progress(self._sequence)

    def terminate(self) -> None:
        """See `Delivery`."""
        if self._taker.reachable:
            self._consumer.settle(self._sequence)
