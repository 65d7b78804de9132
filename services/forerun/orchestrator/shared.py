"""Generations of resources that sessions share, in the key-value store.

A generation is the revision of the mark's key: every write of the key gives a new, higher one, so counting needs no
compare-and-set and concurrent writers cannot lose one another's.

Beside the marks of a tenant is its index of resources that a write may be changing (`core/unsettled.py`). While a
resource is there its marks have another generation at every look, so nothing that was read is ever fresh.

Each process registers its own writes in a part of the index, which it writes as a whole, by compare-and-set. It has one
such update of an index under way at most: whoever comes meanwhile is in the next one, with all others who do.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from forerun.core.freshness import UNSETTLED, bumps
from forerun.core.unsettled import OwnWrites, Unsettled
from forerun.runtime.bus import Bus, Entry
from forerun.runtime.bus_errors import KeyConflict
from forerun.runtime.topology import GENERATIONS

_T = TypeVar("_T")

_INDEX: Final = "unsettled"
_ATTEMPTS: Final = 8
_TENANTS: Final = 1_024


@dataclass(frozen=True, slots=True)
class _Known:
    """One revision of an index, its marks, and from when until when they are right."""

    revision: int
    index: Unsettled
    since: float
    until: float
    marks: frozenset[str]


@dataclass(slots=True)
class _Part:
    """This process's part of the index of one tenant.

    Attributes:
        writes: What belongs there.
        changes: How often that has changed.
        stored: How many of these changes are certainly stored.
        turn: Held by who stores them.
    """

    writes: OwnWrites = field(default_factory=OwnWrites)
    changes: int = 0
    stored: int = 0
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class SharedGenerations:
    """Reads and counts for all tenants of an installation.

    Args:
        bus: Where they are kept.
        owner: Id of this process, which no other one ever has.
        now: Epoch seconds.
    """

    def __init__(self, bus: Bus, owner: str, now: Callable[[], float]) -> None:
        self._bucket = bus.kv(GENERATIONS)
        self._owner = owner
        self._now = now
        self._never_again = itertools.count(UNSETTLED)
        self._newest = 0
        self._known: dict[str, _Known] = {}
        self._parts: dict[str, _Part] = {}

    async def read(self, tenant: str, marks: Iterable[str]) -> Mapping[str, int]:
        """The generations of marks; 0 for one that was never written, a number above `UNSETTLED` for one that may be.

        Raises:
            Unavailable: they cannot be read, so nothing that depends on them may be committed.
        """
        wanted, known = tuple(marks), self._newest
        index, *entries = await _together(self._bucket.get(_key(tenant, mark)) for mark in (_INDEX, *wanted))
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

    async def begin(self, tenant: str, write: str, keys: tuple[str, ...], seconds: float) -> None:
        """Registers a write that is to start, and counts its start. May be repeated; to be followed by `end`.

        Args:
            tenant: Whose resources.
            write: Id of the write.
            keys: What it writes.
            seconds: How long it may take.

        Raises:
            Unavailable: it is not certain that all of it is stored.
            KeyConflict: others registered at the same time, again and again.
        """
        part = self._part(tenant)
        part.writes.begin(write, keys, seconds, self._now())
        part.changes += 1
        await self._store(tenant, part)
        await self._bump(tenant, keys)

    async def end(self, tenant: str, write: str, keys: tuple[str, ...], *, unsettled: bool) -> None:
        """Counts the end of a write and takes it off, or counts it while it goes on. May be repeated.

        Args:
            tenant: Whose resources.
            write: Id of the write; empty where it goes on, or was never begun.
            keys: What it writes.
            unsettled: It may still take effect: its resources stay registered for as long as it may.

        Raises:
            Unavailable: it is not certain that all of it is stored.
            KeyConflict: others registered at the same time, again and again.
        """
        part = self._part(tenant)
        if unsettled:
            part.writes.linger(keys, self._now())
        part.changes += part.writes.end(write) or unsettled
        if unsettled:
            await self._store(tenant, part)
            await self._bump(tenant, keys)
        else:
            # In any order: what is read between the two is from after the write, and stale at worst.
            await _together((self._bump(tenant, keys), self._store(tenant, part)))

    async def _bump(self, tenant: str, keys: Iterable[str]) -> None:
        """Counts once for all keys. A count too many only makes results stale."""
        await _together(self._bucket.put(_key(tenant, mark), b"") for mark in bumps(keys))

    def _part(self, tenant: str) -> _Part:
        part = self._parts.get(tenant)
        if part is None:
            if len(self._parts) >= _TENANTS:
                now = self._now()
                self._parts = {name: one for name, one in self._parts.items() if not _idle(one, now)}
            part = self._parts[tenant] = _Part()
        return part

    async def _store(self, tenant: str, part: _Part) -> None:
        """Returns when all changes so far are stored, by whomever."""
        wanted = part.changes
        if part.stored >= wanted:
            return
        async with part.turn:
            if part.stored < wanted:
                part.stored = await self._update(tenant, part)

    async def _update(self, tenant: str, part: _Part) -> int:
        """Writes the part into the index; returns how many changes are in it."""
        key, known, conflicts = _key(tenant, _INDEX), self._known.get(tenant), 0
        while True:
            revision, index = (0, Unsettled()) if known is None else (known.revision, known.index)
            changes, now = part.changes, self._now()
            index = index.with_part(self._owner, part.writes.part(now), now)
            try:
                if revision:
                    revision = await self._bucket.update(key, index.encode(), revision)
                else:
                    revision = await self._bucket.create(key, index.encode())
            except KeyConflict:
                conflicts += 1
                if conflicts == _ATTEMPTS:
                    raise
                entry = await self._bucket.get(key)
                known = None if entry is None else self._learn(tenant, entry.revision, self._decoded(entry))
            else:
                self._learn(tenant, revision, index)
                return changes

    def _unsettled_marks(self, tenant: str, entry: Entry | None) -> frozenset[str]:
        """The marks of an index, worked out once for each revision until something of it is over."""
        if entry is None:
            return frozenset()
        now, known = self._now(), self._known.get(tenant)
        if known is None or known.revision != entry.revision:
            known = self._learn(tenant, entry.revision, self._decoded(entry))
        elif not known.since <= now < known.until:
            known = self._learn(tenant, known.revision, known.index)
        return known.marks

    def _learn(self, tenant: str, revision: int, index: Unsettled) -> _Known:
        now = self._now()
        known = _Known(revision, index, now, index.next_end(now), index.marks(now))
        if len(self._known) >= _TENANTS:
            self._known.clear()
        self._known[tenant] = known
        return known

    def _decoded(self, entry: Entry) -> Unsettled:
        return Unsettled.decode(entry.value, self._now())


def _idle(part: _Part, now: float) -> bool:
    return part.stored == part.changes and not part.turn.locked() and not part.writes.part(now)


async def _together(work: Iterable[Awaitable[_T]]) -> list[_T]:
    """All results; the first error once everything has ended, so that nothing goes on behind the caller's back."""
    results: list[_T] = []
    for result in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
        results.append(result)
    return results


def _key(tenant: str, mark: str) -> str:
    return f"{tenant}/{mark}"
