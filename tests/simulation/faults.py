"""Faults of the bus that are counted, and that let others wait until a process is at work."""

from __future__ import annotations

from collections import Counter

from forerun.runtime.bus_memory_faults import AppendFault, FaultRates, RandomFaults
from forerun.runtime.ids import Ids
from tests.simulation.moments import Moments


class CountedFaults(RandomFaults):
    """See `RandomFaults`.

    Attributes:
        counts: How often each fault happened.
    """

    def __init__(self, rates: FaultRates, ids: Ids, moments: Moments) -> None:
        super().__init__(rates, ids)
        self.counts: Counter[str] = Counter()
        self._moments = moments

    def core(self, client: str, subject: str) -> tuple[float, ...]:
        """See `Faults`."""
        delays = super().core(client, subject)
        self.counts["message lost"] += not delays
        self.counts["message doubled"] += len(delays) > 1
        self.counts["message delayed"] += any(delay > 0.0 for delay in delays)
        return delays

    def append(self, client: str, subject: str) -> AppendFault:
        """See `Faults`."""
        self._moments.tell(client, client)
        fault = super().append(client, subject)
        if fault is not AppendFault.NONE:
            self.counts[f"append {fault.value}"] += 1
        return fault

    def delivery_lost(self, client: str, stream: str) -> bool:
        """See `Faults`."""
        lost = super().delivery_lost(client, stream)
        self.counts["delivery lost"] += lost
        return lost

    def verdict_lost(self, client: str, stream: str) -> bool:
        """See `Faults`."""
        lost = super().verdict_lost(client, stream)
        self.counts["verdict lost"] += lost
        return lost
