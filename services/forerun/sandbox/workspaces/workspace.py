"""The workspace of one session, with its forks."""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from forerun.core import limits
from forerun.runtime.errors import Aborted, ErrorReason, FailedPrecondition, NotFound, ResourceExhausted
from forerun.sandbox.completion import to_the_end
from forerun.sandbox.isolation.launch import Bind, Overlay
from forerun.sandbox.workspaces import merging
from forerun.sandbox.workspaces.disk import file_name, in_thread, remove, write_json
from forerun.sandbox.workspaces.layers import Layers
from forerun.sandbox.workspaces.merges import Merges
from forerun.sandbox.workspaces.outcomes import Outcomes
from forerun.sandbox.workspaces.strategy import Strategy
from forerun.sandbox.workspaces.trees import Budget, copy_seed, copy_tree, measure, opened, remove_entry


@dataclass(frozen=True, slots=True)
class WorkspaceLimits:
    """Bounds of one workspace.

    Attributes:
        entries: Files, directories and links.
        content_bytes: Bytes of file content.
        forks: Forks at once.
    """

    entries: int = limits.WORKSPACE_FILES
    content_bytes: int = limits.WORKSPACE_BYTES
    forks: int = limits.WORKSPACE_FORKS


@dataclass(frozen=True, slots=True)
class View:
    """A workspace as one command sees it.

    Attributes:
        mount: What becomes its `/workspace`.
        watched: Host directories whose content is growth.
    """

    mount: Bind | Overlay
    watched: tuple[str, ...]


@dataclass(slots=True)
class _Fork:
    directory: Path
    base_version: int
    busy: int = 0


class Workspace:
    """The workspace of one session.

    Attributes:
        version: Number of merges so far.
    """

    def __init__(self, directory: Path, strategy: Strategy, limits: WorkspaceLimits) -> None:
        self._directory = directory
        self._strategy = strategy
        self._limits = limits
        self._forks: dict[str, _Fork] = {}
        self._merges = Merges()
        self._outcomes = Outcomes(directory / "outcomes")
        self._throwaways = 0
        self._readers: Counter[Path] = Counter()
        self._layers = Layers(directory)
        self._idle = asyncio.Event()
        self._lock = asyncio.Lock()
        self._writing = asyncio.Lock()
        self._closed = False
        self.version = 0

    async def open(self, seed: Path | None) -> None:
        """Makes the workspace, or takes it over from an earlier process, finishing its last merge.

        Raises:
            ResourceExhausted: The seed is larger than a workspace may be.
            FailedPrecondition: The seed is not a readable directory.
        """
        async with self._lock:
            await in_thread(self._open, seed)

    async def close(self) -> None:
        """Removes it with all forks, once nothing works in it.

        Who has waited for another one's work in it meanwhile finds nothing to work on.
        """
        async with self._lock:
            self._closed = True
            await self._unused()
            self._forks.clear()
            await in_thread(remove, self._directory)

    async def fork(self, fork: str) -> None:
        """Makes a fork of the present content. Idempotent by id, as long as the fork is there.

        Raises:
            ResourceExhausted: The session has its number of forks.
            Aborted: A fork of this id was merged already.
            NotFound: The workspace was closed.
        """
        async with self._lock:
            await self._settled()
            if fork in self._forks:
                return
            if fork in self._merges:
                raise Aborted(ErrorReason.STATE_CONFLICT, "this fork was merged already; a new one needs a new id")
            if len(self._forks) >= self._limits.forks:
                raise ResourceExhausted(
                    ErrorReason.LIMIT_DISK,
                    f"the session has {len(self._forks)} forks (WORKSPACE_FORKS); "
                    "see workspace_max_forks of the sandbox's settings",
                    metadata={"limit": "WORKSPACE_FORKS", "setting": "FORERUN_SANDBOX_WORKSPACE_MAX_FORKS"},
                )
            made = _Fork(self._directory / "forks" / file_name(fork), self.version)
            try:
                await in_thread(self._make_fork, made.directory)
            except BaseException:
                # Also when the caller cancels: a fork of this id may be asked for again.
                await self._throw_away(made.directory)
                raise
            self._forks[fork] = made

    @asynccontextmanager
    async def use(self, fork: str) -> AsyncIterator[View]:
        """The view of a command that runs in a fork. A fork in use is neither merged nor dropped.

        Raises:
            NotFound: There is no such fork.
        """
        async with self._lock:  # never while a merge changes what it will see
            used = self._found(fork)
            used.busy += 1
            view = self._view(used.directory)
        try:
            yield view
        finally:
            used.busy -= 1
            await self._ended()

    @asynccontextmanager
    async def read(self) -> AsyncIterator[View]:
        """The view of a command that only reads.

        What it writes all the same is thrown away where the strategy is overlay; otherwise the kernel refuses it, or,
        at level `process`, it stays.

        Raises:
            NotFound: The workspace was closed.
        """
        async with self._lock:
            await self._settled()
            base, throwaway = self._base(), None
            view = View(Bind(str(base), read_only=True), ())
            if self._strategy is Strategy.OVERLAY:
                self._throwaways += 1
                # Names of forks never start with a dot, so a throwaway fork never meets one of theirs.
                throwaway = self._directory / "forks" / f".read-{self._throwaways}"
                self._make_fork(throwaway)
                view = self._view(throwaway)
            self._readers[base] += 1
        try:
            yield view
        finally:
            try:
                if throwaway is not None:
                    await self._throw_away(throwaway)
                elif self._readers[base] == 1 and base != self._base():
                    await self._throw_away(base)  # a merge has replaced it meanwhile
            finally:
                # Last, and in any case: who closes it, and makes another one in its place, waits for this.
                self._readers -= Counter([base])
                await self._ended()

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[None]:
        """Held by calls that fork, write and merge: one after the other, so that none meets a conflict."""
        async with self._writing:
            yield

    async def merged(self, name: str) -> bool:
        """True where a fork was merged under this name.

        Raises:
            NotFound: The workspace was closed.
        """
        async with self._lock:
            await self._settled()
            return name in self._merges

    async def note(self, fork: str, outcome: bytes) -> None:
        """Keeps the outcome of what has run in a fork: with the fork, and with its merge, whatever happens to us.

        Raises:
            NotFound: There is no such fork.
        """
        async with self._lock:
            await in_thread(self._outcomes.note, self._found(fork).directory, outcome)

    async def outcome(self, name: str) -> bytes | None:
        """The outcome of what was merged under a name, if it is still kept."""
        return await in_thread(self._outcomes.of, name)

    async def merge(self, fork: str, *, name: str = "") -> int:
        """Makes a fork's content the workspace's; the new version. Idempotent by fork and name.

        Args:
            fork: Its id.
            name: Under which it is known from then on; empty: its id.

        Raises:
            NotFound: There is no such fork, or the workspace was closed.
            Aborted: The workspace has changed since the fork was made, or another fork was merged under the name; the
                fork is untouched.
            FailedPrecondition: A command still runs in the fork.
            ResourceExhausted: The workspace would grow beyond its bounds; the fork is dropped.
        """
        async with self._lock:
            await self._settled()
            if (version := self._merges.version(fork, name or fork)) is not None:
                self._forks.pop(fork, None)
                return version
            found = self._found(fork)
            if found.busy:
                raise FailedPrecondition(ErrorReason.STATE_CONFLICT, "a command still runs in this fork")
            if found.base_version != self.version:
                raise Aborted(
                    ErrorReason.MERGE_CONFLICT,
                    "the workspace has changed since this fork was made; run the action again on the present content",
                    metadata={"fork_version": str(found.base_version), "workspace_version": str(self.version)},
                )
            try:
                await self._check_growth(found.directory)
                await in_thread(self._merge, fork, name or fork)
            except ResourceExhausted:
                # It could never be merged, and would hold one of the session's places.
                del self._forks[fork]
                await self._throw_away(found.directory)
                raise
            del self._forks[fork]
            await self._fold()
            await self._remove_replaced()
            return self.version

    async def drop(self, fork: str) -> None:
        """Throws a fork away. Idempotent; an unknown fork is fine.

        Raises:
            FailedPrecondition: A command still runs in the fork.
        """
        async with self._lock:
            found = self._forks.get(fork)
            if found is None:
                return
            if found.busy:
                raise FailedPrecondition(ErrorReason.STATE_CONFLICT, "a command still runs in this fork")
            del self._forks[fork]
            await self._throw_away(found.directory)

    @property
    def busy(self) -> bool:
        """True while a command works in it."""
        return bool(self._readers) or any(fork.busy for fork in self._forks.values())

    async def _check_growth(self, fork: Path) -> None:
        if self._strategy is not Strategy.OVERLAY:
            with opened(str(fork / "tree")) as content:
                return await in_thread(measure, content, self._budget())
        fits = await in_thread(self._layers.fits, fork / "upper", self._budget())
        if fits and not self._layers.full:
            return
        await self._unused()
        await in_thread(self._layers.fold)
        if not fits:
            await in_thread(self._layers.check, fork / "upper", self._budget())

    async def _unused(self) -> None:
        """Waits, under the lock, until no command works in it: none starts meanwhile, and what runs has a timeout."""
        while self.busy:
            self._idle.clear()
            await self._idle.wait()

    async def _ended(self) -> None:
        """A command that had the workspace mounted has ended."""
        if self.busy:
            return
        self._idle.set()
        if self._layers.pending:
            await to_the_end(self._fold_idle())

    async def _fold_idle(self) -> None:
        async with self._lock:
            await self._fold()

    async def _fold(self) -> None:
        if self._layers.pending and not self.busy and not self._closed:
            await in_thread(self._layers.try_to_fold)

    async def _settled(self) -> None:
        """Finishes a merge that an error of the disk has stopped half-way, before anything else is done."""
        if self._closed:
            raise NotFound(ErrorReason.WORKSPACE_LOST, "the session has ended, and its workspace with it")
        await in_thread(self._finish_merge)

    async def _remove_replaced(self) -> None:
        """Removes the trees of earlier versions that nobody reads any more. No reader starts on one of them."""
        for base in await in_thread(lambda: list(self._directory.glob("base*"))):
            if base != self._base() and base not in self._readers:
                await self._throw_away(base)

    def _base(self) -> Path:
        # Merged overlays lie above the base. A whole new tree gets a new name, so that whoever reads keeps the old one.
        name = "base" if self._strategy is Strategy.OVERLAY else f"base-{self.version}"
        return self._directory / name

    def _found(self, fork: str) -> _Fork:
        found = self._forks.get(fork)
        if found is None:
            raise NotFound(ErrorReason.SNAPSHOT_NOT_FOUND, "no such fork; it was dropped, or the worker has restarted")
        return found

    def _view(self, directory: Path) -> View:
        if self._strategy is Strategy.OVERLAY:
            upper = str(directory / "upper")
            return View(Overlay(self._layers.lower, upper, str(directory / "work")), (upper,))
        tree = str(directory / "tree")
        return View(Bind(tree), (tree,))

    def _open(self, seed: Path | None) -> None:
        for part in ("forks", "trash"):
            (self._directory / part).mkdir(mode=0o700, parents=True, exist_ok=True)
        state_file = self._directory / "state.json"
        if not state_file.exists():
            with opened(str(self._directory)) as root:
                remove_entry(root, self._base().name)  # a seeding that was cut off
            self._seed(seed)
            self._save()
        else:
            state = json.loads(state_file.read_text())
            self._merges.load(state)
            self.version = int(state["version"])
        if self._strategy is Strategy.OVERLAY:
            self._layers.open()
        self._finish_merge()
        if self._strategy is Strategy.OVERLAY:
            self._layers.fold()
        with opened(str(self._directory)) as root:
            for part in ("forks", "trash"):
                remove_entry(root, part)
                os.mkdir(part, 0o700, dir_fd=root)
            for base in self._directory.glob("base*"):
                if base != self._base():
                    remove_entry(root, base.name)
        self._outcomes.prune(self._merges)

    def _seed(self, seed: Path | None) -> None:
        base = self._base()
        base.mkdir(mode=0o755)
        if seed is not None:
            copy_seed(seed, base, self._budget(), clone=self._strategy is not Strategy.COPY)

    def _budget(self) -> Budget:
        return Budget(self._limits.entries, self._limits.content_bytes)

    def _make_fork(self, directory: Path) -> None:
        directory.mkdir(mode=0o700)
        if self._strategy is Strategy.OVERLAY:
            (directory / "upper").mkdir(mode=0o755)
            (directory / "work").mkdir(mode=0o700)
            return
        tree = directory / "tree"
        tree.mkdir(mode=0o755)
        with opened(str(self._base())) as source, opened(str(tree)) as target:
            copy_tree(source, target, self._budget(), clone=self._strategy is Strategy.REFLINK)

    def _finish_merge(self) -> None:
        """Applies the rest of a merge that was begun, if there is one."""
        journal = self._directory / "merging.json"
        if not journal.exists():
            return
        begun = json.loads(journal.read_text())
        fork, name = begun["fork"], begun.get("name", begun["fork"])
        if name not in self._merges:
            self._apply(self._directory / "forks" / file_name(fork))
            self.version += 1
            self._merges.add(fork, name, self.version)
            self._save()
        with opened(str(self._directory)) as root, opened("trash", within=root) as trash:
            # Only now: until the merge is committed, whoever finishes it looks for the fork.
            merging.throw_away(root, "forks", file_name(fork), trash)
        journal.unlink()
        with opened(str(self._directory)) as root, opened("trash", within=root) as trash:
            for name in os.listdir(trash):
                remove_entry(trash, name)

    def _merge(self, fork: str, name: str) -> None:
        self._outcomes.keep(name, self._forks[fork].directory)
        write_json(self._directory / "merging.json", {"fork": fork, "name": name})
        self._finish_merge()
        self._outcomes.prune(self._merges)

    def _apply(self, directory: Path) -> None:
        with opened(str(self._directory)) as root, opened(str(directory)) as fork:
            if self._strategy is Strategy.OVERLAY:
                self._layers.stack(fork, self.version + 1)
            else:
                merging.take_tree(fork, root, f"base-{self.version + 1}")

    def _save(self) -> None:
        write_json(self._directory / "state.json", {"version": self.version, **self._merges.dump()})

    async def _throw_away(self, directory: Path) -> None:
        await in_thread(remove, directory)
