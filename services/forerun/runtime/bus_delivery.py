"""What happens to a consumed message: one set of rules for every bus.

A bus hands `Delivery`s to a `Workers`; this module runs the handler, keeps the broker informed that somebody is at
work, and decides between acknowledgement, another attempt and the dead letters.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import Final, Protocol

from forerun.runtime.bus import ConsumerSpec, Handler, Message
from forerun.runtime.bus_errors import Poison
from forerun.runtime.clock import Clock
from forerun.runtime.errors import ErrorReason, ForerunError

_log = logging.getLogger(__name__)

# Signs of life per ack_wait: two may get lost before the broker gives up.
_HEARTBEATS_PER_ACK_WAIT: Final = 3

_CANCEL_SECONDS: Final = 1.0

MAX_DELIVERIES: Final = "max_deliveries"


class Delivery(Protocol):
    """One attempt to have a message handled, as the broker handed it out. The verdicts are sent, not waited for."""

    @property
    def message(self) -> Message:
        """The message."""
        ...

    def acknowledge(self) -> None:
        """It is done."""
        ...

    def retry(self, delay_seconds: float) -> None:
        """Deliver it again after a while."""
        ...

    def in_progress(self) -> None:
        """Somebody is at work: the broker's ack_wait begins anew."""
        ...

    def terminate(self) -> None:
        """Never deliver it again."""
        ...


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Why a message was given up. It refers to the message and holds nothing of its content.

    Attributes:
        stream: Where the message is (`Bus.fetch` reads it while the stream keeps it).
        consumer: Who gave it up.
        sequence: Its sequence.
        subject: Its subject; empty where the broker made the entry.
        reason: The handler's `Poison` reason, or `max_deliveries`.
        error: Class and `ErrorReason` of the last error; no text, because texts may hold content.
        deliveries: How often it was delivered.
        digest: Digest of the body.
        at_seconds: When, in seconds since the Unix epoch.
    """

    stream: str
    consumer: str
    sequence: int
    subject: str
    reason: str
    error: str
    deliveries: int
    digest: str
    at_seconds: float

    @property
    def message_id(self) -> str:
        """Makes the dead letter of a message unique within the dedupe window."""
        return f"{self.stream}:{self.consumer}:{self.sequence}"

    def encode(self) -> bytes:
        """The stored form."""
        return json.dumps(asdict(self)).encode()


class Workers:
    """Handles deliveries of one consumer with bounded concurrency.

    Args:
        spec: The consumer.
        handler: The caller's.
        bury: Stores a dead letter; when it fails, the message stays with the broker.
        clock: For the time of dead letters.
        wake: Called whenever there is room for more deliveries.
    """

    def __init__(
        self,
        spec: ConsumerSpec,
        handler: Handler,
        *,
        bury: Callable[[DeadLetter], Awaitable[None]],
        clock: Clock,
        wake: Callable[[], None],
    ) -> None:
        self._spec = spec
        self._handler = handler
        self._bury = bury
        self._clock = clock
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_Attempt] = deque()
        # Dictionaries as ordered sets: a simulated run must not depend on where objects lie in memory.
        self._open: dict[_Attempt, None] = {}
        self._running: dict[asyncio.Task[None], None] = {}
        self._heartbeat: asyncio.TimerHandle | None = None
        self._closing = False
        self.acknowledged = 0
        self.failed = 0
        self.dead_lettered = 0
        self.lost = 0
        self.last_received_at: float | None = None

    @property
    def in_progress(self) -> int:
        """Deliveries taken and not settled."""
        return len(self._open)

    @property
    def room(self) -> int:
        """How many more deliveries may be offered now."""
        return 0 if self._closing else max(0, self._spec.concurrency + self._spec.prefetch - len(self._open))

    def offer(self, delivery: Delivery) -> None:
        """Takes a delivery; more than `room` wait in order, with signs of life."""
        now = self._loop.time()
        self.last_received_at = now
        if self._closing:
            delivery.retry(0.0)
            return
        attempt = _Attempt(delivery, now + self._spec.ack_wait_seconds)
        self._open[attempt] = None
        self._waiting.append(attempt)
        if self._heartbeat is None:
            self._heartbeat = self._loop.call_later(self._heartbeat_seconds, self._beat)
        self._start()

    async def close(self, timeout_seconds: float) -> None:
        """Ends as `Consumption.close` says."""
        self._closing = True
        for attempt in self._waiting:
            self._open.pop(attempt, None)
            attempt.delivery.retry(0.0)
        self._waiting.clear()
        if self._running:
            await asyncio.wait(self._running, timeout=max(timeout_seconds, 0.0))
        for task in tuple(self._running):
            task.cancel()
        if self._running:
            # A handler that swallows its cancellation is left behind: it must not hold up the end of the process.
            await asyncio.wait(self._running, timeout=_CANCEL_SECONDS)
        if self._heartbeat is not None:
            self._heartbeat.cancel()
            self._heartbeat = None

    @property
    def _heartbeat_seconds(self) -> float:
        return self._spec.ack_wait_seconds / _HEARTBEATS_PER_ACK_WAIT

    def _beat(self) -> None:
        self._heartbeat = None
        now = self._loop.time()
        for attempt in self._open:
            # After a freeze the broker has already given the message to somebody else. A sign of life now would
            # take the other attempt's time away.
            if now < attempt.ours_until:
                attempt.delivery.in_progress()
                attempt.ours_until = now + self._spec.ack_wait_seconds
        if self._open:
            self._heartbeat = self._loop.call_later(self._heartbeat_seconds, self._beat)

    def _start(self) -> None:
        while self._waiting and len(self._running) < self._spec.concurrency and not self._closing:
            attempt = self._waiting.popleft()
            task = self._loop.create_task(self._handle(attempt), name=f"consume {self._spec.name}")
            self._running[task] = None
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.pop(task, None)
        if not task.cancelled() and task.exception() is not None:
            _log.error("consumer %s: settling a message failed", self._spec.name, exc_info=task.exception())
        self._start()
        self._wake()

    async def _handle(self, attempt: _Attempt) -> None:
        message = attempt.delivery.message
        try:
            if self._loop.time() >= attempt.ours_until:
                self.lost += 1
                return
            async with asyncio.timeout(self._spec.handler_timeout_seconds):
                await self._handler(message)
            if self._loop.time() >= attempt.ours_until:
                self.lost += 1
            else:
                attempt.delivery.acknowledge()
                self.acknowledged += 1
        except asyncio.CancelledError:
            # At shutdown somebody else shall have it at once; a handler that cancels itself has failed.
            attempt.delivery.retry(0.0 if self._closing else self._spec.retry_delay(message.deliveries))
            raise
        except Poison as poison:
            await self._give_up(attempt, poison.reason, poison)
        except Exception as error:  # whatever a handler raises is its message's problem, not the consumer's
            await self._failed(attempt, error)
        finally:
            self._open.pop(attempt, None)

    async def _failed(self, attempt: _Attempt, error: Exception) -> None:
        message = attempt.delivery.message
        if message.deliveries >= self._spec.max_deliver:
            await self._give_up(attempt, MAX_DELIVERIES, error)
            return
        self.failed += 1
        delay = self._spec.retry_delay(message.deliveries)
        # The class only: the text of an error may hold content of a session.
        _log.warning(
            "consumer %s: attempt %d of sequence %s failed with %s; again in %.2f s",
            self._spec.name, message.deliveries, message.sequence, _name(error), delay,
        )  # fmt: skip
        if self._loop.time() < attempt.ours_until:
            attempt.delivery.retry(delay)

    async def _give_up(self, attempt: _Attempt, reason: str, error: Exception) -> None:
        message = attempt.delivery.message
        letter = DeadLetter(
            stream=self._spec.stream,
            consumer=self._spec.name,
            sequence=message.sequence or 0,
            subject=message.subject,
            reason=reason,
            error=_name(error),
            deliveries=message.deliveries,
            digest=f"sha256:{hashlib.sha256(message.data).hexdigest()}",
            at_seconds=self._clock.now(),
        )
        try:
            await self._bury(letter)
        except ForerunError as failure:
            # Not stored, so not given up: on a last attempt the broker itself records it when ack_wait is over.
            _log.warning("consumer %s: dead letter not stored: %s", self._spec.name, failure.reason)
            attempt.delivery.retry(self._spec.retry_delay(message.deliveries))
            return
        self.dead_lettered += 1
        _log.error(
            "consumer %s: gave up sequence %s after %d deliveries: %s (%s)",
            self._spec.name, message.sequence, message.deliveries, reason, letter.error,
        )  # fmt: skip
        attempt.delivery.terminate()


class _Attempt:
    __slots__ = ("delivery", "ours_until")

    def __init__(self, delivery: Delivery, ours_until: float) -> None:
        self.delivery = delivery
        self.ours_until = ours_until


class WorkersConsumption:
    """The counters of a `Consumption`, as its workers keep them."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers

    @property
    def acknowledged(self) -> int:
        """See `Consumption`."""
        return self._workers.acknowledged

    @property
    def failed(self) -> int:
        """See `Consumption`."""
        return self._workers.failed

    @property
    def dead_lettered(self) -> int:
        """See `Consumption`."""
        return self._workers.dead_lettered

    @property
    def lost(self) -> int:
        """See `Consumption`."""
        return self._workers.lost

    @property
    def in_progress(self) -> int:
        """See `Consumption`."""
        return self._workers.in_progress

    @property
    def last_received_at(self) -> float | None:
        """See `Consumption`."""
        return self._workers.last_received_at


def _name(error: Exception) -> str:
    reason = error.reason if isinstance(error, ForerunError) else None
    return f"{type(error).__name__}:{reason.value}" if isinstance(reason, ErrorReason) else type(error).__name__
