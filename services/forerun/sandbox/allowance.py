"""What the capacity of a worker's pool allows it: a share of the pool's slots for speculation."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from google.protobuf.message import DecodeError

from forerun.runtime.bus import Bus, Entry, Subscription
from forerun.runtime.topology import CAPACITY
from forerun.v1 import capacity_pb2

_LOG: Final = logging.getLogger(__name__)


class Allowance:
    """Follows what was decided for one pool. What was heard last stays in force while nothing can be heard.

    Args:
        bus: Where decisions are.
        pool: Name of the pool.
        configured: Slots where nobody has decided anything.
        allow: Called with the slots that this worker may use.
    """

    def __init__(self, bus: Bus, pool: str, configured: int, allow: Callable[[int], None]) -> None:
        self._bus = bus
        self._pool = pool
        self._configured = configured
        self._allow = allow
        self._subscription: Subscription | None = None

    async def start(self) -> None:
        """Reads what there is, and follows it."""
        if self._pool:
            self._subscription = await self._bus.kv(CAPACITY).watch(self._pool, self._hear)

    async def stop(self) -> None:
        """Follows no more."""
        if self._subscription is not None:
            await self._subscription.close()

    async def _hear(self, key: str, entry: Entry | None) -> None:
        if key != self._pool:
            return  # another pool, whose name begins with ours
        if entry is None:
            self._allow(self._configured)
            return
        try:
            capacity = capacity_pb2.PoolCapacity.FromString(entry.value)
        except DecodeError:
            _LOG.error("a pool's capacity cannot be read")
            return
        # Rounded down: all workers together never use more than was decided.
        self._allow(capacity.speculative_slots // max(1, capacity.workers))
