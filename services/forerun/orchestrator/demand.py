"""What this replica wants of pools: told every second, so that somebody hears of it where a pool has no replicas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from forerun.core.governor import Refusal
from forerun.core.ledger import EntryKind, LedgerEntry
from forerun.orchestrator.places import Places
from forerun.runtime import subjects
from forerun.runtime.bus import Bus
from forerun.v1 import capacity_pb2

REPORT_SECONDS: Final = 1.0


class Demand:
    """Adds up ledger entries, and tells the sums.

    Args:
        replica: Who tells.
        bus: Where to.
        places: Knows the calls that run or wait.
        sessions: Gives how many are open.
    """

    def __init__(self, replica: str, bus: Bus, places: Places, sessions: Callable[[], int]) -> None:
        self._replica = replica
        self._bus = bus
        self._places = places
        self._sessions = sessions
        self._without_slot = 0
        self._saved_seconds = 0.0
        self._speculative_seconds = 0.0

    def recorded(self, entry: LedgerEntry) -> None:
        """An entry was written."""
        if entry.kind is EntryKind.SPECULATION and entry.outcome is not None:
            self._saved_seconds += entry.saved_seconds
            self._speculative_seconds += entry.seconds
        elif entry.kind is EntryKind.DECISION and entry.reason == Refusal.NO_SLOT:
            self._without_slot += 1

    async def tell(self) -> None:
        """Publishes the present sums."""
        report = capacity_pb2.DemandReport(
            owner=self._replica,
            sessions_open=self._sessions(),
            calls_in_flight=self._places.in_flight,
            speculations_without_slot=self._without_slot,
            saved_seconds=self._saved_seconds,
            speculative_seconds=self._speculative_seconds,
        )
        await self._bus.notify(subjects.demand(self._replica), report.SerializeToString())
