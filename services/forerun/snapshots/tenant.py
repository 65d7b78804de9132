"""One tenant's snapshots: the state in memory, its objects and its log on disk, and who may do what at the same time.

Reads need no lock, because nothing that they read ever changes; what they use is pinned against collection. Commits and
the start of a collection take turns. Once one of these has begun it ends, also when its caller goes away: a record that
reached the log must reach the memory, too.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from forerun.core import limits
from forerun.runtime.clock import Clock
from forerun.runtime.errors import ErrorReason, ForerunError, NotFound
from forerun.snapshots.cache import NodeCache
from forerun.snapshots.engine import tree
from forerun.snapshots.engine.collection import garbage, marked
from forerun.snapshots.engine.history import Version, new_version
from forerun.snapshots.engine.nodes import Index, Ref
from forerun.snapshots.engine.state import Bounds, Branch, State, exhausted
from forerun.snapshots.engine.values import Cutter, Stored, Value, digest_of
from forerun.snapshots.log import CommitLog
from forerun.snapshots.objects import DataLoss, Objects, index_object, placed

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """How much a tenant may store. Each field is the setting of the same name.

    Attributes:
        tenant_max_bytes: All objects of the tenant.
        blob_max_bytes: One blob.
        grace_seconds: How long an object that nothing refers to is kept after its last use.
    """

    tenant_max_bytes: int
    blob_max_bytes: int
    grace_seconds: float


@dataclass(frozen=True, slots=True)
class Collected:
    """What a collection removed, or would have removed."""

    objects: int
    size_bytes: int


class Tenant:
    """The snapshots of one tenant. Made by `open_tenant`."""

    def __init__(
        self, *, state: State, objects: Objects, log: CommitLog, room: Room, clock: Clock, cache: NodeCache
    ) -> None:
        self._state = state
        self._objects = objects
        self._log = log
        self._room = room
        self._clock = clock
        self._load = cache.through(objects.node)
        self._turn = asyncio.Lock()
        self._collecting = asyncio.Lock()
        self._log_in_doubt = False
        self._pinned: Counter[Ref] = Counter()
        self._reading: Counter[Stored] = Counter()
        # Bytes that uploads added and that no commit has taken into its line's budget yet, by the blob's digest.
        self._unclaimed: dict[str, int] = {}
        self._running: set[asyncio.Task[Any]] = set()

    @property
    def size_bytes(self) -> int:
        """Bytes of all objects on disk."""
        return self._objects.size_bytes

    # ------------------------------------------------------------ branches and reads

    def fork(self, branch: str, version: str) -> str:
        """Opens a branch; see `State.fork`."""
        return self._state.fork(branch, version, self._clock.monotonic())

    async def write(self, branch: str, changes: Sequence[tuple[str, Value | None]]) -> int:
        """Applies changes to a branch, all or none; see `State.write`.

        Of values of kind `Stored` only the digest counts: they are blobs, looked up here.

        Raises:
            NotFound: no such branch, or no such blob.
        """
        self._state.branch(branch, self._clock.monotonic())
        wanted = {value.digest for _, value in changes if isinstance(value, Stored)}
        blobs = await asyncio.to_thread(self._in_use, wanted) if wanted else {}
        complete = [(key, blobs[value.digest] if isinstance(value, Stored) else value) for key, value in changes]
        return self._state.write(branch, complete, self._clock.monotonic())

    def _in_use(self, digests: set[str]) -> dict[str, Stored]:
        now = self._clock.now()
        found: dict[str, Stored] = {}
        for digest in sorted(digests):
            content = self._objects.find(digest)
            if content is None or not self._objects.touch(content, now):
                raise _no_blob(digest)
            found[digest] = content
        return found

    async def read(self, *, branch: str | None, version: str | None, key: str) -> bytes | str | None:
        """A value as a branch or a version sees it: bytes, the digest of a blob in hex, or None where there is none."""
        place = self._state.place(branch=branch, version=version, now=self._clock.monotonic())
        if key in place.changes:
            value = place.changes[key]
            return value.digest if isinstance(value, Stored) else None if value is None else value.data
        if place.root is None:
            return None
        with self._pin(place.root):
            return await asyncio.to_thread(self._from_tree, place.root, key)

    def _from_tree(self, root: Ref, key: str) -> bytes | str | None:
        value = tree.get(root, key, self._load)
        if isinstance(value, Stored):
            return value.digest if value.blob else self._objects.content(value)
        return None if value is None else value.data

    def discard(self, branch: str) -> None:
        """Drops a branch and everything only it holds."""
        self._state.discard(branch)

    def head(self, line: str) -> str:
        """The head version of a line."""
        return self._state.head(line)

    async def diff(self, old: str, new: str) -> list[tuple[str, tree.Difference]]:
        """The keys that differ between two versions, sorted."""
        before, after = self._state.root_of(old), self._state.root_of(new)
        with self._pin(before), self._pin(after):
            return await asyncio.to_thread(lambda: sorted(tree.differences(before, after, self._load)))

    @contextmanager
    def _pin(self, root: Ref | None) -> Iterator[None]:
        if root is None:
            yield
            return
        with _counted(self._pinned, root):
            yield

    # ------------------------------------------------------------ commits

    async def commit(self, branch: str, line: str) -> str:
        """Makes a branch the new version of a line and returns it; see `SnapshotService.Commit`."""
        return await self._to_the_end(self._commit(branch, line))

    async def _commit(self, branch: str, line: str) -> str:
        async with self._turn:
            if self._log_in_doubt:
                await self._reload()
            done = self._state.committed(branch, line)
            if done is not None:
                return done.id
            target = self._state.branch(branch, self._clock.monotonic())
            head = self._state.moved_head(target, line)
            if head is not None:
                keys = await asyncio.to_thread(self._changed_by_both, target, self._state.root_of(head))
                raise self._state.conflict(target, head, keys)
            target.committing = True
            try:
                version = await asyncio.to_thread(self._store, target, line)
            finally:
                target.committing = False
            self._state.adopt(version)
            return version.id

    async def _reload(self) -> None:
        """After a failed append only the disk knows which commits were done."""
        for version in await asyncio.to_thread(self._log.load):
            self._state.adopt(version)
        self._log_in_doubt = False

    def _changed_by_both(self, branch: Branch, head: Ref | None) -> list[str]:
        return [key for key, _ in tree.differences(branch.root, head, self._load) if key in branch.changes]

    def _store(self, branch: Branch, line: str) -> Version:
        objects: dict[str, bytes] = {}
        values = {key: placed(value, objects) for key, value in branch.changes.items()}
        edit = tree.changed(branch.root, values, self._load)
        objects.update((digest, data) for digest, (_, data) in edit.made.items())
        more = self._objects.missing_bytes(objects)
        self._check_room(more)
        blobs = {value.digest for value in values.values() if isinstance(value, Stored) and value.blob}
        claimed = sum(self._unclaimed.get(digest, 0) for digest in blobs)
        self._state.check_room(line, more + claimed)
        now = self._clock.now()
        added = self._objects.put(objects, now)
        version, record = new_version(
            line=line, branch=branch.id, parent=branch.base, root=edit.root, at_seconds=now, added_bytes=added + claimed
        )
        try:
            self._log.append(record)
        except ForerunError:
            self._log_in_doubt = True
            raise
        for digest in blobs:
            self._unclaimed.pop(digest, None)
        return version

    def _check_room(self, more_bytes: int) -> None:
        if self._objects.size_bytes + more_bytes > self._room.tenant_max_bytes:
            raise exhausted("bytes stored by the tenant", "tenant_max_bytes", self._room.tenant_max_bytes)

    # ------------------------------------------------------------ blobs

    async def put_blob(self, chunks: AsyncIterator[bytes]) -> Stored:
        """Stores a large value that arrives in chunks.

        Raises:
            ResourceExhausted: it is too large, or the tenant has no room. Its pieces are collected later.
        """
        cutter = Cutter()
        pieces: list[str] = []
        added = 0
        async for chunk in chunks:
            complete = cutter.feed(chunk)
            if cutter.size_bytes > self._room.blob_max_bytes:
                raise exhausted("bytes of one blob", "blob_max_bytes", self._room.blob_max_bytes)
            if complete:
                added += await asyncio.to_thread(self._keep_pieces, complete, pieces)
        last, digest = cutter.finish()
        added += await asyncio.to_thread(self._keep_pieces, [last], pieces)
        if len(pieces) > 1:
            index = index_object(digest, Index(cutter.size_bytes, tuple(pieces)))
            added += await asyncio.to_thread(self._objects.put, index, self._clock.now())
        if added:
            self._unclaimed[digest] = self._unclaimed.get(digest, 0) + added
        return Stored(digest, cutter.size_bytes, blob=True)

    def _keep_pieces(self, complete: list[bytes], pieces: list[str]) -> int:
        named = {digest_of(piece): piece for piece in complete}
        pieces.extend(digest_of(piece) for piece in complete)
        self._check_room(self._objects.missing_bytes(named))
        return self._objects.put(named, self._clock.now())

    async def get_blob(self, digest: str) -> AsyncIterator[bytes]:
        """Gives a stored content back in chunks, after it was checked as a whole.

        Raises:
            NotFound: the tenant has no such content.
            DataLoss: it is damaged; nothing of it was handed out.
        """
        content = await asyncio.to_thread(self._objects.find, digest)
        if content is None:
            raise _no_blob(digest)
        with _counted(self._reading, content):
            if not await asyncio.to_thread(self._objects.touch, content, self._clock.now()):
                raise DataLoss("a piece of a content is gone", digest)
            await asyncio.to_thread(self._objects.verify, content)
            held = bytearray()
            for name in await asyncio.to_thread(self._objects.pieces, content):
                held += await asyncio.to_thread(self._objects.piece, name)
                if len(held) >= limits.CHUNK_BYTES:
                    yield bytes(held)
                    held.clear()
            if held:
                yield bytes(held)

    # ------------------------------------------------------------ collection

    async def collect(self, *, dry_run: bool) -> Collected:
        """Removes what no version, branch or reader needs; see engine/collection.py for what protects the rest."""
        return await self._to_the_end(self._collect(dry_run))

    async def _collect(self, dry_run: bool) -> Collected:
        async with self._collecting:
            now = self._clock.now()
            untouched_since = now - self._room.grace_seconds
            async with self._turn:
                self._state.drop_idle(self._clock.monotonic())
                outlived = self._state.outlived(now)
                if outlived and not dry_run:
                    await asyncio.to_thread(self._log.rewrite, self._state.remaining(outlived))
                    self._state.forget(outlived)
                    outlived = []
                roots, contents = self._state.live(outlived)
                roots |= set(self._pinned)
                contents |= set(self._reading)

            def unused() -> list[Any]:
                in_use = marked(roots, contents, self._load, self._objects.index)
                return garbage(self._objects.list(), in_use, untouched_since)

            found = await asyncio.to_thread(unused)
            if dry_run:
                return Collected(len(found), sum(one.size_bytes for one in found))
            count, size = await asyncio.to_thread(self._objects.remove, found, untouched_since)
            for one in found:
                self._unclaimed.pop(one.name.partition(".")[0], None)
            return Collected(count, size)

    # ------------------------------------------------------------ life

    async def close(self) -> None:
        """Waits until what has begun has ended."""
        while self._running:
            await asyncio.wait(set(self._running))

    async def _to_the_end(self, work: Coroutine[Any, Any, _T]) -> _T:
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # seen, although the caller may have gone away


def open_tenant(folder: Path, *, bounds: Bounds, room: Room, clock: Clock, cache: NodeCache) -> Callable[[], Tenant]:
    """Reads a tenant's log and objects; blocks. What it returns makes the tenant within the running loop.

    Raises:
        DataLoss: the log is damaged.
    """
    objects, log, state = Objects(folder / "objects"), CommitLog(folder), State(bounds)
    for version in log.load():
        state.adopt(version)
    return lambda: Tenant(state=state, objects=objects, log=log, room=room, clock=clock, cache=cache)


@contextmanager
def _counted(counter: Counter[_T], item: _T) -> Iterator[None]:
    counter[item] += 1
    try:
        yield
    finally:
        counter[item] -= 1
        if not counter[item]:
            del counter[item]


def _no_blob(digest: str) -> NotFound:
    return NotFound(ErrorReason.SNAPSHOT_NOT_FOUND, "no such blob", metadata={"digest": f"sha256:{digest}"})
