"""Publishes ledger lines and audit requests, in order, without keeping anybody waiting."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass
from typing import Final

from forerun.core import limits
from forerun.runtime import metrics_table as m
from forerun.runtime.bus import Bus
from forerun.runtime.bus_errors import AppendUncertain
from forerun.runtime.errors import ForerunError, Unavailable
from forerun.runtime.metrics import Metrics

_LOG: Final = logging.getLogger(__name__)
_APPEND_SECONDS: Final = 2.0
_RETRY_SECONDS: Final = 0.2
_RETRY_MAX_SECONDS: Final = 2.0
_IN_FLIGHT: Final = 32


@dataclass(frozen=True, slots=True)
class _Line:
    subject: str
    data: bytes
    id: str


class Outbox:
    """Owes lines to the broker until it has acknowledged them. Order within the ledger does not matter, loss does.

    Args:
        bus: Where to.
        metrics: Where lines that are lost are counted.
    """

    def __init__(self, bus: Bus, metrics: Metrics) -> None:
        self._bus = bus
        self._metrics = metrics
        self._lines: deque[_Line] = deque()
        self._more = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._full = False

    @property
    def owed(self) -> int:
        """Lines that are not stored yet."""
        return len(self._lines)

    def put(self, subject: str, data: bytes, line_id: str) -> None:
        """Takes a line. Above the bound it is dropped and counted: the ledger then says less, never something else."""
        if len(self._lines) >= limits.OUTBOX_MESSAGES:
            self._metrics.add(m.DROPPED, bound="outbox")
            if not self._full:
                self._full = True
                _LOG.error(
                    "more ledger lines are owed than OUTBOX_MESSAGES allows: further ones are lost and counted",
                    extra={"fields": {"forerun.count": len(self._lines)}},
                )
            return
        self._full = False
        self._lines.append(_Line(subject, data, line_id))
        self._idle.clear()
        asyncio.get_running_loop().call_soon(self._more.set)  # a turn later: whoever is answered now comes first

    async def run(self) -> None:
        """Publishes until cancelled."""
        while True:
            if not self._lines:
                self._more.clear()
                self._idle.set()
                await self._more.wait()
            batch = [self._lines[i] for i in range(min(_IN_FLIGHT, len(self._lines)))]
            if len(batch) == 1:  # nearly always: a task for it would cost more than it does
                await self._publish(batch[0])
            else:
                await asyncio.gather(*(self._publish(line) for line in batch))
            for _ in batch:
                self._lines.popleft()

    async def drain(self, timeout_seconds: float) -> bool:
        """Waits until everything is stored; False when the time was not enough."""
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._idle.wait()
        except TimeoutError:
            _LOG.error("ledger lines were not stored", extra={"fields": {"forerun.count": len(self._lines)}})
            return False
        return True

    async def _publish(self, line: _Line) -> None:
        wait = _RETRY_SECONDS
        while True:
            try:
                await self._bus.append(line.subject, line.data, message_id=line.id, timeout_seconds=_APPEND_SECONDS)
                return
            except (Unavailable, AppendUncertain):
                await asyncio.sleep(wait)
                wait = min(_RETRY_MAX_SECONDS, wait * 2)
            except ForerunError as error:
                self._metrics.add(m.DROPPED, bound="outbox")
                _LOG.error("a ledger line was refused", extra={"fields": {"error.type": error.reason}})
                return
