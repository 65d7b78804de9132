"""All workspaces of a worker, on disk.

    ROOT/<tenant>/<session>/base            the workspace (overlay), with what was merged while it was in use in
    ROOT/<tenant>/<session>/layers/<n>      above it; or
    ROOT/<tenant>/<session>/base-<version>  the same (reflink, copy); older ones stay while somebody reads them
    ROOT/<tenant>/<session>/state.json      its version, the forks that were merged, and as what
    ROOT/<tenant>/<session>/merging.json    exists while a merge is being applied: it will be finished, never undone
    ROOT/<tenant>/<session>/forks/<fork>/   upper and work (overlay), or tree (reflink, copy); outcome
    ROOT/<tenant>/<session>/outcomes/       answers of the last merged calls
    ROOT/<tenant>/<session>/trash/          replaced and dropped parts on their way out

A merge is decided by one rename (of `merging.json` into place). Forks do not outlive the process: whoever asked for one
is told NOT_FOUND and asks again; what was not merged never shows up later.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from forerun.runtime.clock import Clock
from forerun.runtime.errors import ErrorReason, NotFound
from forerun.sandbox.completion import to_the_end
from forerun.sandbox.owner import Owner
from forerun.sandbox.workspaces.disk import file_name, in_thread, remove
from forerun.sandbox.workspaces.strategy import Strategy
from forerun.sandbox.workspaces.workspace import Workspace, WorkspaceLimits


class Workspaces:
    """The workspaces of a worker, made when a session first needs one.

    Args:
        root: Directory for all of them, for this worker only.
        strategy: How they fork.
        limits: Bounds of each.
        clock: For the age of what nobody uses any more.
    """

    def __init__(self, root: Path, strategy: Strategy, limits: WorkspaceLimits, clock: Clock) -> None:
        self._clock = clock
        self._root = root
        self._limits = limits
        self._used_at: dict[Owner, float] = {}
        self._open: dict[Owner, asyncio.Future[Workspace]] = {}
        # Removals that go on. Whatever is asked for in the same place waits for the one that was begun before it, so
        # that nobody's files go with those of his predecessor.
        self._going: dict[Path, asyncio.Future[None]] = {}
        self.strategy = strategy

    async def of(self, owner: Owner, seed: Path | None, *, expected: bool = False) -> Workspace:
        """The workspace of a session, seeded when it is first asked for. While it is being removed: a new one after it.

        Args:
            owner: The session.
            seed: What a new one begins with.
            expected: The session has worked in it: it is not made anew.

        Raises:
            NotFound: It was expected, and is not here.
            ResourceExhausted: The seed is larger than a workspace may be.
            FailedPrecondition: The seed is not a readable directory.
        """
        if owner not in self._open:
            directory = self._directory(owner)
            self._open[owner] = asyncio.ensure_future(
                self._opened(directory, seed, expected=expected, after=self._going.get(directory))
            )
        self._used_at[owner] = self._clock.now()
        opening = self._open[owner]
        try:
            return await asyncio.shield(opening)
        except Exception:
            if self._open.get(owner) is opening:
                del self._open[owner]
            raise

    def known(self, owner: Owner) -> asyncio.Future[Workspace] | None:
        """The workspace, if one was asked for in this process."""
        return self._open.get(owner)

    async def close(self, owner: Owner) -> None:
        """Removes a session's workspace with all forks, once its commands have ended. Idempotent."""
        self._used_at.pop(owner, None)
        await self._remove(self._directory(owner), self._open.pop(owner, None))

    async def sweep(self, idle_seconds: float) -> None:
        """Removes workspaces that nobody used for so long, also those that an earlier process has left."""
        oldest = self._clock.now() - idle_seconds
        for owner in list(self._used_at):
            if self._busy(owner):
                self._used_at[owner] = self._clock.now()
            # Looked up anew: the session may have come back while another one's was being removed.
            elif self._used_at.get(owner, oldest) < oldest:
                await self.close(owner)
        opened = self._directories()
        for directory in await in_thread(_left_before, self._root, oldest):
            if directory not in opened:
                await self._remove(directory, None)
                opened = self._directories()

    def _directories(self) -> set[Path]:
        return {self._directory(owner) for owner in self._open}

    def _directory(self, owner: Owner) -> Path:
        # Two parts, so that no tenant can name a session in a way that leads to another one's.
        return self._root / file_name(owner.tenant) / file_name(owner.session)

    def _busy(self, owner: Owner) -> bool:
        opening = self._open.get(owner)
        if opening is None or not opening.done():
            return opening is not None
        return not opening.cancelled() and opening.exception() is None and opening.result().busy

    async def _remove(self, directory: Path, opening: asyncio.Future[Workspace] | None) -> None:
        """Removes what is in a place, after whatever is being removed from it already."""
        before = self._going.get(directory)
        going = self._going[directory] = asyncio.ensure_future(_gone(directory, opening, before))
        try:
            await to_the_end(going)
        finally:
            if self._going.get(directory) is going:
                del self._going[directory]

    async def _opened(
        self, directory: Path, seed: Path | None, *, expected: bool, after: asyncio.Future[None] | None
    ) -> Workspace:
        if after is not None:
            await asyncio.wait([after])
        if expected and not await in_thread((directory / "state.json").exists):
            raise NotFound(
                ErrorReason.WORKSPACE_LOST,
                "this worker does not have the session's workspace any more; open a new session for a new workspace",
            )
        workspace = Workspace(directory, self.strategy, self._limits)
        await workspace.open(seed)
        return workspace


async def _gone(
    directory: Path, opening: asyncio.Future[Workspace] | None, before: asyncio.Future[None] | None
) -> None:
    for earlier in (before, opening):
        if earlier is not None:
            await asyncio.wait([earlier])
    if opening is not None and not opening.cancelled() and opening.exception() is None:
        await opening.result().close()
    await in_thread(remove, directory)


def _left_before(root: Path, oldest: float) -> list[Path]:
    """Workspaces without a merge since then. One that was never finished is as good as old."""
    return [one for one in sorted(root.glob("*/*")) if _merged_at(one) < oldest]


def _merged_at(directory: Path) -> float:
    try:
        return (directory / "state.json").stat().st_mtime
    except FileNotFoundError:
        return float("-inf")
