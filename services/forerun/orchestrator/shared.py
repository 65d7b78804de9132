"""Generations of resources that sessions share, in the key-value store.

A generation is the revision of the mark's key: every write of the key gives a new, higher one, so counting needs no
compare-and-set and concurrent writers cannot lose one another's.

Beside the marks of a tenant is its index of resources whose last write may still take effect (`core/unsettled.py`).
While a resource is there its marks have another generation at every look, so nothing that was read is ever fresh.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from forerun.core.freshness import UNSETTLED, bumps
from forerun.core.unsettled import Unsettled
from forerun.runtime.bus import Bus, Entry, KeyConflict
from forerun.runtime.topology import GENERATIONS

_INDEX: Final = "unsettled"
_ATTEMPTS: Final = 8
_TENANTS: Final = 1_024


@dataclass(frozen=True, slots=True)
class _Known:
    """The marks of one revision of an index, and from when until when they are right."""

    revision: int
    since: float
    until: float
    marks: frozenset[str]


class SharedGenerations:
    """Reads and counts for all tenants of an installation.

    Args:
        bus: Where they are kept.
        now: Epoch seconds.
    """

    def __init__(self, bus: Bus, now: Callable[[], float]) -> None:
        self._bucket = bus.kv(GENERATIONS)
        self._now = now
        self._never_again = itertools.count(UNSETTLED)
        self._newest = 0
        self._known: dict[str, _Known] = {}

    async def read(self, tenant: str, marks: Iterable[str]) -> Mapping[str, int]:
        """The generations of marks; 0 for one that was never written, a number above `UNSETTLED` for one that may be.

        Raises:
            Unavailable: they cannot be read, so nothing that depends on them may be committed.
        """
        wanted, known = tuple(marks), self._newest
        index, *entries = await asyncio.gather(
            self._bucket.get(_key(tenant, _INDEX)), *(self._bucket.get(_key(tenant, mark)) for mark in wanted)
        )
        revisions = [0 if entry is None else entry.revision for entry in entries]
        if max(revisions, default=0) > known:
            # Something was counted that nobody here had seen when this began. What was registered before that count
            # may be missing in an index that was read beside it.
            index = await self._bucket.get(_key(tenant, _INDEX))
        self._newest = max(self._newest, *revisions)
        unsettled = self._unsettled_marks(tenant, index)
        return {
            mark: next(self._never_again) if mark in unsettled else revision
            for mark, revision in zip(wanted, revisions, strict=True)
        }

    async def unsettle(self, tenant: str, keys: Iterable[str]) -> None:
        """Registers resources that a write may still change. To be called before its end is counted; may be repeated.

        Raises:
            Unavailable: it is not certain that they are registered.
            KeyConflict: others registered at the same time, again and again.
        """
        key, written = _key(tenant, _INDEX), tuple(keys)
        for attempt in range(_ATTEMPTS):
            entry = await self._bucket.get(key)
            value = self._unsettled(entry).adding(written, self._now()).encode()
            try:
                if entry is None:
                    await self._bucket.create(key, value)
                else:
                    await self._bucket.update(key, value, entry.revision)
                return
            except KeyConflict:
                if attempt == _ATTEMPTS - 1:
                    raise

    def _unsettled_marks(self, tenant: str, entry: Entry | None) -> frozenset[str]:
        """The marks of an index, worked out once for each revision until something of it is over."""
        if entry is None:
            return frozenset()
        now, known = self._now(), self._known.get(tenant)
        if known is None or known.revision != entry.revision or not known.since <= now < known.until:
            index = self._unsettled(entry)
            known = _Known(entry.revision, now, index.next_end(now), index.marks(now))
            if len(self._known) >= _TENANTS:
                self._known.clear()
            self._known[tenant] = known
        return known.marks

    def _unsettled(self, entry: Entry | None) -> Unsettled:
        return Unsettled() if entry is None else Unsettled.decode(entry.value, self._now())

    async def bump(self, tenant: str, keys: Iterable[str]) -> None:
        """Counts a write of resources. May be repeated: a count too many only makes results stale.

        Raises:
            Unavailable: it is not certain that everything was counted.
        """
        await asyncio.gather(*(self._bucket.put(_key(tenant, mark), b"") for mark in bumps(keys)))


def _key(tenant: str, mark: str) -> str:
    return f"{tenant}/{mark}"
