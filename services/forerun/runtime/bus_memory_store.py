"""Keys and objects in memory: what a `MemoryBroker` holds besides streams."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Protocol

from forerun.runtime.bus import Entry, Watcher
from forerun.runtime.bus_errors import KeyConflict, MessageTooLarge
from forerun.runtime.bus_pump import Pump
from forerun.runtime.topology import Bucket


@dataclass(slots=True)
class _Kept:
    entry: Entry
    expires_at: float


class MemoryBucket:
    """A bucket. Times are loop times."""

    def __init__(self, row: Bucket) -> None:
        self.row = row
        self.watches: list[MemoryWatch] = []
        self._loop = asyncio.get_running_loop()
        # In the order of the last write, which is the order in which keys expire.
        self._kept: dict[str, _Kept] = {}
        self._revision = 0
        self._sweep: asyncio.TimerHandle | None = None

    def get(self, key: str) -> Entry | None:
        """The present entry."""
        kept = self._kept.get(key)
        return kept.entry if kept else None

    def keys(self, prefix: str) -> list[str]:
        """Present keys, sorted."""
        return sorted(key for key in self._kept if key.startswith(prefix))

    def write(self, key: str, value: bytes, expected_revision: int | None) -> int:
        """Writes if the key has the expected revision (0: does not exist; None: whatever it has)."""
        size = len(value)
        if size > self.row.max_value_bytes:
            raise MessageTooLarge(size, self.row.max_value_bytes)
        self._expect(key, expected_revision)
        self._revision += 1
        entry = Entry(value, self._revision)
        self._kept.pop(key, None)
        lifetime = self.row.ttl_seconds
        expires_at = float("inf") if lifetime is None else self._loop.time() + lifetime
        self._kept[key] = _Kept(entry, expires_at)
        if lifetime is not None and self._sweep is None:
            self._sweep = self._loop.call_at(expires_at, self._expire)
        self._tell(key, entry)
        return self._revision

    def delete(self, key: str, expected_revision: int | None) -> None:
        """Deletes if the key has the expected revision (None: whatever it has)."""
        self._expect(key, expected_revision)
        if self._kept.pop(key, None) is not None:
            self._revision += 1
            self._tell(key, None)

    def watch(self, watch: MemoryWatch) -> None:
        """Tells a watch everything present, and from now on every change."""
        self.watches.append(watch)
        for key, kept in self._kept.items():
            watch.tell(key, kept.entry)

    def _expect(self, key: str, revision: int | None) -> None:
        if revision is not None:
            present = self._kept.get(key)
            if (present.entry.revision if present else 0) != revision:
                raise KeyConflict(self.row.name)

    def _expire(self) -> None:
        self._sweep = None
        now = self._loop.time()
        while self._kept:
            key = next(iter(self._kept))
            expires_at = self._kept[key].expires_at
            if expires_at > now:
                self._sweep = self._loop.call_at(expires_at, self._expire)
                break
            del self._kept[key]
            self._revision += 1
            self._tell(key, None)

    def _tell(self, key: str, entry: Entry | None) -> None:
        for watch in self.watches:
            watch.tell(key, entry)


class WatchingClient(Protocol):
    """The process that watches."""

    watches: list[MemoryWatch]

    @property
    def connected(self) -> bool:
        """Whether it reaches the broker."""
        ...


class MemoryWatch:
    """Hears of changes; while it cannot reach the broker it remembers which keys it missed."""

    def __init__(self, bucket: MemoryBucket, prefix: str, handler: Watcher, client: WatchingClient) -> None:
        self._bucket = bucket
        self._prefix = prefix
        self._handler = handler
        self._client = client
        self._latest: dict[str, Entry | None] = {}
        self._missed: dict[str, None] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._pump: Pump[str] = Pump(f"watch {bucket.row.name}", self._handle, limit=None, on_handled=self._handled)

    @property
    def dropped(self) -> int:
        """Always 0: a watch keeps the last value of each key."""
        return 0

    @property
    def failed(self) -> int:
        """See `Subscription`."""
        return self._pump.failed

    @property
    def gaps(self) -> int:
        """See `Subscription`."""
        return self._pump.gaps

    def tell(self, key: str, entry: Entry | None) -> None:
        """A key changed."""
        if not key.startswith(self._prefix):
            return
        if not self._client.connected:
            self._missed[key] = None
            return
        waits = key in self._latest
        self._latest[key] = entry
        if not waits:
            self._idle.clear()
            self._pump.offer(key)

    def reconnected(self) -> None:
        """The broker can be reached again: hears what it missed."""
        self._pump.gaps += 1
        missed, self._missed = self._missed, {}
        for key in missed:
            self.tell(key, self._bucket.get(key))

    async def caught_up(self) -> None:
        """Returns when everything told so far has been handled."""
        await self._idle.wait()

    async def close(self) -> None:
        """See `Subscription`."""
        if self in self._bucket.watches:
            self._bucket.watches.remove(self)
            self._client.watches.remove(self)
        self._pump.stop()
        await self._pump.stopped()
        self._idle.set()

    async def _handle(self, key: str) -> None:
        await self._handler(key, self._latest.pop(key))

    def _handled(self, _: str) -> None:
        if not self._pump.waiting:
            self._idle.set()


class MemoryObjectStore:
    """Objects by tenant and digest."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.content: dict[str, dict[str, bytes]] = {}
