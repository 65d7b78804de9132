"""Pull requests at a JetStream consumer, kept open for as long as somebody wants messages.

`Pull` outlives what ends a plain pull subscription: a restart of the broker, a consumer that is gone afterwards, a
leader that moved, a request that the broker forgot. It notices by heartbeats, reconnects and refusals, makes the
consumer again where needed, and asks anew.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Final, Protocol

from forerun.runtime import bus_headers
from forerun.runtime.bus_nats_api import API, ApiError
from forerun.runtime.bus_nats_wire import NotSentError, Wire
from forerun.runtime.errors import ForerunError

_log = logging.getLogger(__name__)

HEARTBEAT_SECONDS: Final = 2.0
_EXPIRES_SECONDS: Final = 30.0
# Silence after which the broker must have forgotten a request; two heartbeats may be late.
_SILENCE_SECONDS: Final = 3 * HEARTBEAT_SECONDS
_FIRST_PAUSE_SECONDS: Final = 0.1
_LONGEST_PAUSE_SECONDS: Final = 5.0
_NANOS: Final = 1_000_000_000

_HEARTBEAT: Final = "100"
_NO_MESSAGES: Final = "404"
_EXPIRED: Final = "408"
_PENDING_HEADER: Final = "Nats-Pending-Messages"
# Ends of a request that say nothing about the consumer.
_HARMLESS: Final = ("batch completed", "message size exceeds maxbytes")

OnData = Callable[[str, str, bytes, bytes | None], None]
"""Gets subject, acknowledgement subject, body and header block."""


class ConsumerSource(Protocol):
    """Knows how the consumer has to look."""

    async def ensure(self) -> str:
        """Makes the consumer exist and returns its name. Raises ForerunError or ApiError when that fails now."""
        ...


class Pull:
    """Keeps pulling until closed.

    Args:
        wire: The connection.
        stream: The stream.
        source: Makes the consumer.
        on_data: Called for each message.
        want: How many more messages are wanted now, beyond those that were asked for and have not come yet.
    """

    def __init__(
        self, wire: Wire, stream: str, source: ConsumerSource, on_data: OnData, want: Callable[[], int]
    ) -> None:
        self._wire = wire
        self._stream = stream
        self._source = source
        self._on_data = on_data
        self._want = want
        self._loop = asyncio.get_running_loop()
        self._inbox = wire.inbox()
        self._sid = wire.route(f"{self._inbox}.*", self._arrived)
        self._requests = 0
        self._asked = 0
        self._consumer: str | None = None
        self._sign_at = 0.0
        self._broken = asyncio.Event()
        self._watchdog: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        wire.disconnected.append(self._lost)

    @property
    def healthy(self) -> bool:
        """Whether the consumer exists and gives signs of life."""
        return self._consumer is not None

    async def start(self) -> None:
        """Makes the consumer and begins. Raises what `ConsumerSource.ensure` raises."""
        self._consumer = await self._source.ensure()
        self._begin()
        self._task = self._loop.create_task(self._keep(), name=f"pull {self._stream}")

    def wake(self) -> None:
        """There may be room for more: asks for it."""
        if self._consumer is None:
            return
        room = self._want() - self._asked
        # Few large requests instead of many small ones: asks again when half of the room is not covered.
        if room <= 0 or room < self._asked:
            return
        request = {
            "batch": room,
            "expires": int(_EXPIRES_SECONDS * _NANOS),
            "idle_heartbeat": int(HEARTBEAT_SECONDS * _NANOS),
        }
        self._requests += 1
        if self._asked == 0:
            self._sign_at = self._loop.time()
        try:
            self._wire.send(
                f"{API}.CONSUMER.MSG.NEXT.{self._stream}.{self._consumer}",
                json.dumps(request).encode(),
                reply=f"{self._inbox}.{self._requests}",
            )
        except NotSentError:
            self._lost()
            return
        self._asked += room

    async def close(self) -> None:
        """Asks for nothing more; what the broker has sent already is still handed over until then."""
        self._consumer = None
        self._wire.unroute(self._sid)
        if self._lost in self._wire.disconnected:
            self._wire.disconnected.remove(self._lost)
        if self._watchdog is not None:
            self._watchdog.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    def _begin(self) -> None:
        self._broken.clear()
        self._asked = 0
        self._sign_at = self._loop.time()
        if self._watchdog is None:
            self._watchdog = self._loop.call_later(HEARTBEAT_SECONDS, self._watch)
        self.wake()

    def _watch(self) -> None:
        self._watchdog = self._loop.call_later(HEARTBEAT_SECONDS, self._watch)
        if self._asked > 0 and self._loop.time() - self._sign_at > _SILENCE_SECONDS:
            _log.warning("consumer on %s: no sign of life, asking anew", self._stream)
            self._lost()

    def _lost(self) -> None:
        self._consumer = None
        self._broken.set()

    async def _keep(self) -> None:
        pause = _FIRST_PAUSE_SECONDS
        while True:
            await self._broken.wait()
            await self._wire.until_connected()
            try:
                self._consumer = await self._source.ensure()
                self._begin()
            except Exception as error:  # also what nobody had foreseen: without this task nothing is pulled ever again
                self._lost()  # a beginning that failed has taken that back
                foreseen = isinstance(error, ForerunError | ApiError)
                _log.log(
                    logging.WARNING if foreseen else logging.ERROR,
                    "consumer on %s: cannot go on yet: %r", self._stream, error, exc_info=not foreseen,
                )  # fmt: skip
                await asyncio.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)
                continue
            pause = _FIRST_PAUSE_SECONDS

    def _arrived(self, subject: str, reply: bytes, data: bytes, headers: bytes | None) -> None:
        self._sign_at = self._loop.time()
        if reply:
            self._asked = max(0, self._asked - 1)
            self._on_data(subject, reply.decode(), data, headers)
            self.wake()
            return
        if headers is None:
            return
        status = bus_headers.parse(headers)
        code = status.get(bus_headers.STATUS, "")
        if code == _HEARTBEAT:
            return
        self._asked = max(0, self._asked - int(status.get(_PENDING_HEADER, "0")))
        description = status.get(bus_headers.DESCRIPTION, "").lower()
        if code in (_NO_MESSAGES, _EXPIRED) or description.startswith(_HARMLESS):
            self.wake()
            return
        # The consumer is gone, its leader moved, or nobody serves it: look before asking again.
        self._lost()
