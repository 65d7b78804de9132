"""Which sandbox workers live, by the load reports that they broadcast."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from google.protobuf.message import DecodeError

from forerun.core import limits
from forerun.runtime import subjects
from forerun.runtime.bus import Bus, Message, Subscription
from forerun.runtime.errors import ErrorReason, Unavailable
from forerun.v1 import sandbox_pb2

# Reports come every second; one that missed a few is gone or cut off, and so is whoever is sent there.
_FORGET_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class _Heard:
    report: sandbox_pb2.LoadReport
    at: float


class Workers:
    """Knows the workers that reported lately. A component.

    Args:
        bus: Where reports pass.
    """

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._heard: dict[str, _Heard] = {}
        self._subscription: Subscription | None = None

    async def start(self) -> None:
        """Begins to listen."""
        self._subscription = await self._bus.subscribe(
            subjects.loads(), self._hear, pending_messages=limits.SUBSCRIPTION_PENDING_MESSAGES
        )

    async def stop(self, grace_seconds: float) -> None:
        """Stops listening."""
        if self._subscription is not None:
            async with asyncio.timeout(grace_seconds):
                await self._subscription.close()

    @property
    def count(self) -> int:
        """How many reported lately."""
        self._forget_silent()
        return len(self._heard)

    def address(self, worker: str) -> str:
        """The address of a worker, or of the one with the most room for speculation where none is named.

        Raises:
            Unavailable: it did not report lately.
        """
        self._forget_silent()
        reports = [heard.report for heard in self._heard.values() if worker in ("", heard.report.worker)]
        if not reports:
            what = f"the worker {worker}" if worker else "any worker"
            raise Unavailable(
                ErrorReason.PEER_UNAVAILABLE, f"no load report of {what} in the last {_FORGET_SECONDS:g} s"
            )
        return max(reports, key=lambda report: (report.speculative_free, report.worker)).address

    def _forget_silent(self) -> None:
        now = asyncio.get_running_loop().time()
        self._heard = {name: heard for name, heard in self._heard.items() if now - heard.at <= _FORGET_SECONDS}

    async def _hear(self, message: Message) -> None:
        try:
            report = sandbox_pb2.LoadReport.FromString(message.data)
        except DecodeError:
            return  # of a later release: as good as not heard
        self._heard[report.worker] = _Heard(report, asyncio.get_running_loop().time())
