"""Generations of resources that sessions share, in the key-value store.

A generation is the revision of the mark's key: every write of the key gives a new, higher one, so counting needs no
compare-and-set and concurrent writers cannot lose one another's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from forerun.core.freshness import bumps
from forerun.runtime.bus import Bus
from forerun.runtime.topology import GENERATIONS


class SharedGenerations:
    """Reads and counts for all tenants of an installation.

    Args:
        bus: Where they are kept.
    """

    def __init__(self, bus: Bus) -> None:
        self._bucket = bus.kv(GENERATIONS)

    async def read(self, tenant: str, marks: Iterable[str]) -> Mapping[str, int]:
        """The generations of marks; 0 for one that was never written.

        Raises:
            Unavailable: they cannot be read, so nothing that depends on them may be committed.
        """
        wanted = tuple(marks)
        entries = await asyncio.gather(*(self._bucket.get(_key(tenant, mark)) for mark in wanted))
        return {mark: 0 if entry is None else entry.revision for mark, entry in zip(wanted, entries, strict=True)}

    async def bump(self, tenant: str, keys: Iterable[str]) -> None:
        """Counts a write of resources. May be repeated: a count too many only makes results stale.

        Raises:
            Unavailable: it is not certain that everything was counted.
        """
        await asyncio.gather(*(self._bucket.put(_key(tenant, mark), b"") for mark in bumps(keys)))


def _key(tenant: str, mark: str) -> str:
    return f"{tenant}/{mark}"
