"""Hears what workers and replicas report of themselves every second: what is free, and what is still in use."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final

from forerun.runtime import subjects
from forerun.runtime.bus import Bus, Message
from forerun.v1 import capacity_pb2, sandbox_pb2

_PENDING: Final = 1_000


@dataclass(slots=True)
class Reports:
    """The latest report of each, and when it was heard, in loop seconds.

    Attributes:
        loads: Of workers, by name.
        demands: Of replicas of the orchestrator, by name.
    """

    loads: dict[str, tuple[float, sandbox_pb2.LoadReport]] = field(default_factory=dict)
    demands: dict[str, tuple[float, capacity_pb2.DemandReport]] = field(default_factory=dict)

    async def listen(self, bus: Bus) -> None:
        """Hears them from now on."""
        await bus.subscribe(subjects.loads(), self._load, pending_messages=_PENDING)
        await bus.subscribe(subjects.demands(), self._demand, pending_messages=_PENDING)

    async def _load(self, message: Message) -> None:
        report = sandbox_pb2.LoadReport.FromString(message.data)
        self.loads[report.worker] = asyncio.get_running_loop().time(), report

    async def _demand(self, message: Message) -> None:
        report = capacity_pb2.DemandReport.FromString(message.data)
        self.demands[report.owner] = asyncio.get_running_loop().time(), report
