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
        self.strategy = strategy

    async def of(self, owner: Owner, seed: Path | None, *, expected: bool = False) -> Workspace:
        """The workspace of a session, seeded when it is first asked for.

        Args:
            owner: The session.
            seed: What a new one begins with.
            expected: The session has worked in it: it is not made anew.

        Raises:
            NotFound: It was expected, and is not here.
            ResourceExhausted: The seed is larger than a workspace may be.
            FailedPrecondition: The seed is not a readable directory.
        """
        self._used_at[owner] = self._clock.now()
        if owner not in self._open:
            self._open[owner] = asyncio.ensure_future(self._opened(owner, seed, expected=expected))
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
        """Removes a session's workspace with all forks. Idempotent. Its commands must have ended."""
        self._used_at.pop(owner, None)
        opening = self._open.pop(owner, None)
        if opening is not None:
            await asyncio.wait([opening])
            if not opening.cancelled() and opening.exception() is None:
                await opening.result().close()
        await in_thread(remove, self._directory(owner))

    async def sweep(self, idle_seconds: float) -> None:
        """Removes workspaces that nobody used for so long, also those that an earlier process has left."""
        oldest = self._clock.now() - idle_seconds
        for owner, used_at in list(self._used_at.items()):
            if used_at < oldest and not await self._busy(owner):
                await self.close(owner)
        opened = {self._directory(owner) for owner in self._open}
        for directory in await in_thread(lambda: sorted(self._root.glob("*/*"))):
            state = directory / "state.json"
            if directory not in opened and (not state.exists() or state.stat().st_mtime < oldest):
                await in_thread(remove, directory)

    def _directory(self, owner: Owner) -> Path:
        # Two parts, so that no tenant can name a session in a way that leads to another one's.
        return self._root / file_name(owner.tenant) / file_name(owner.session)

    async def _busy(self, owner: Owner) -> bool:
        opening = self._open.get(owner)
        return opening is not None and (not opening.done() or opening.result().busy)

    async def _opened(self, owner: Owner, seed: Path | None, *, expected: bool) -> Workspace:
        directory = self._directory(owner)
        if expected and not await in_thread((directory / "state.json").exists):
            raise NotFound(
                ErrorReason.WORKSPACE_LOST,
                "this worker does not have the session's workspace any more; open a new session for a new workspace",
            )
        workspace = Workspace(directory, self.strategy, self._limits)
        await workspace.open(seed)
        return workspace
