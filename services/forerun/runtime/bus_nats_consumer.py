"""A durable consumer on NATS: `Pull` brings the messages, `Workers` handle them."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from forerun.runtime import bus_headers
from forerun.runtime.bus import ConsumerSpec, Handler, Message, Start
from forerun.runtime.bus_delivery import DeadLetter, Workers, WorkersConsumption
from forerun.runtime.bus_nats_api import ApiError, call, is_missing
from forerun.runtime.bus_nats_pull import Pull
from forerun.runtime.bus_nats_read import delivered
from forerun.runtime.bus_nats_wire import NotSentError, Wire
from forerun.runtime.clock import Clock

_log = logging.getLogger(__name__)

_NANOS: Final = 1_000_000_000
# The broker (seen with 2.15) removes the files of a deleted consumer in the background, by name: a successor made at
# the same moment loses its own, works on without them, and can neither be changed nor survive a restart.
_REMOVAL_SECONDS: Final = 0.5


class NatsDelivery:
    """A delivery of JetStream. A verdict that cannot be sent is lost, and the broker delivers again after ack_wait."""

    __slots__ = ("_acknowledgement", "_on_settled", "_wire", "message")

    def __init__(self, wire: Wire, acknowledgement: str, message: Message, on_settled: Callable[[int], None]) -> None:
        self._wire = wire
        self._acknowledgement = acknowledgement
        self._on_settled = on_settled
        self.message = message

    def acknowledge(self) -> None:
        """See `Delivery`."""
        self._say(b"+ACK")
        self._on_settled(self.message.sequence or 0)

    def retry(self, delay_seconds: float) -> None:
        """See `Delivery`."""
        delay = int(delay_seconds * _NANOS)
        self._say(b"-NAK" if delay <= 0 else b"-NAK " + json.dumps({"delay": delay}).encode())

    def in_progress(self) -> None:
        """See `Delivery`."""
        self._say(b"+WPI")

    def terminate(self) -> None:
        """See `Delivery`."""
        self._say(b"+TERM")
        self._on_settled(self.message.sequence or 0)

    def _say(self, verdict: bytes) -> None:
        try:
            self._wire.send(self._acknowledgement, verdict)
        except NotSentError:
            _log.info("a verdict was lost with the connection; the broker delivers again")


class DurableSource:
    """Makes a durable consumer, and makes it again where it was when it got lost.

    Attributes:
        floor: Where a lost consumer has to go on: nothing below is open. 0 while nothing was delivered.
    """

    def __init__(self, wire: Wire, spec: ConsumerSpec) -> None:
        self._wire = wire
        self._spec = spec
        self._open: dict[int, None] = {}
        self._highest = 0

    @property
    def floor(self) -> int:
        """The lowest sequence that is not settled."""
        if not self._highest:
            return 0
        return min(self._open, default=self._highest + 1)

    def delivered(self, sequence: int) -> None:
        """A message came."""
        self._open[sequence] = None
        self._highest = max(self._highest, sequence)

    def settled(self, sequence: int) -> None:
        """A message is done with."""
        self._open.pop(sequence, None)

    async def ensure(self) -> str:
        """See `ConsumerSource`."""
        spec = self._spec
        wanted = self._config()
        try:
            present = (await call(self._wire, f"CONSUMER.INFO.{spec.stream}.{spec.name}"))["config"]
        except ApiError as error:
            if not is_missing(error):
                raise
            floor = self.floor
            if floor:
                _log.warning("consumer %s on %s is gone; made again from sequence %d", spec.name, spec.stream, floor)
                await asyncio.sleep(_REMOVAL_SECONDS)
                wanted |= {"deliver_policy": "by_start_sequence", "opt_start_seq": floor}
            else:
                wanted |= {"deliver_policy": "all" if spec.start is Start.ALL else "new"}
            await self._create(wanted)
            return spec.name
        # Where a consumer began cannot be changed, and does not matter any more.
        wanted |= {key: present[key] for key in ("deliver_policy", "opt_start_seq") if key in present}
        if any(present.get(key) != value for key, value in wanted.items()):
            await self._create(wanted)
        return spec.name

    async def _create(self, config: dict[str, Any]) -> None:
        spec = self._spec
        await call(
            self._wire, f"CONSUMER.CREATE.{spec.stream}.{spec.name}", {"stream_name": spec.stream, "config": config}
        )

    def _config(self) -> dict[str, Any]:
        spec = self._spec
        filters: dict[str, Any] = (
            {"filter_subject": spec.subjects[0]} if len(spec.subjects) == 1 else {"filter_subjects": [*spec.subjects]}
        )
        return {
            "durable_name": spec.name,
            "name": spec.name,
            "ack_policy": "explicit",
            "ack_wait": int(spec.ack_wait_seconds * _NANOS),
            "max_deliver": spec.max_deliver,
            "max_ack_pending": max(1000, 4 * (spec.concurrency + spec.prefetch)),
            **filters,
        }


class NatsConsumption(WorkersConsumption):
    """See `Consumption`."""

    def __init__(
        self,
        wire: Wire,
        spec: ConsumerSpec,
        handler: Handler,
        *,
        bury: Callable[[DeadLetter], Awaitable[None]],
        clock: Clock,
        on_closed: Callable[[NatsConsumption], None],
    ) -> None:
        workers = Workers(spec, handler, bury=bury, clock=clock, wake=self._wake)
        super().__init__(workers)
        self._wire = wire
        self._source = DurableSource(wire, spec)
        self._pull = Pull(wire, spec.stream, self._source, self._arrived, lambda: workers.room)
        self._on_closed = on_closed

    @property
    def healthy(self) -> bool:
        """See `Consumption`."""
        return self._wire.connected and self._pull.healthy

    async def start(self) -> None:
        """Begins. Raises what the broker refuses."""
        await self._pull.start()

    async def close(self, timeout_seconds: float) -> None:
        """See `Consumption`."""
        await self._pull.close()
        await self._workers.close(timeout_seconds)
        self._on_closed(self)

    def _wake(self) -> None:
        self._pull.wake()

    def _arrived(self, subject: str, acknowledgement: str, data: bytes, headers: bytes | None) -> None:
        position = delivered(acknowledgement)
        message = Message(subject, data, bus_headers.callers_own(headers), position.sequence, position.deliveries)
        self._source.delivered(position.sequence)
        self._workers.offer(NatsDelivery(self._wire, acknowledgement, message, self._source.settled))
