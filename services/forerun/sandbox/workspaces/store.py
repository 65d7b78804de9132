"""All workspaces of a worker, on disk.

    ROOT/<session>/base            the workspace
    ROOT/<session>/state.json      its version and the forks that were merged
    ROOT/<session>/merging.json    exists while a merge is being applied: it will be finished, never undone
    ROOT/<session>/forks/<fork>/   upper and work (overlay), or tree (reflink, copy)
    ROOT/<session>/trash/          replaced and dropped parts on their way out

A merge is decided by one rename (of `merging.json` into place). Forks do not outlive the process: whoever asked for one
is told NOT_FOUND and asks again; what was not merged never shows up later.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from forerun.runtime.clock import Clock
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
        self._used_at: dict[str, float] = {}
        self._open: dict[str, asyncio.Future[Workspace]] = {}
        self.strategy = strategy

    async def of(self, session: str, seed: Path | None) -> Workspace:
        """The workspace of a session, seeded when it is first asked for.

        Raises:
            ResourceExhausted: The seed is larger than a workspace may be.
            FailedPrecondition: The seed is not a readable directory.
        """
        self._used_at[session] = self._clock.now()
        if session not in self._open:
            self._open[session] = asyncio.ensure_future(self._opened(session, seed))
        opening = self._open[session]
        try:
            return await asyncio.shield(opening)
        except Exception:
            if self._open.get(session) is opening:
                del self._open[session]
            raise

    def known(self, session: str) -> asyncio.Future[Workspace] | None:
        """The workspace, if one was asked for in this process."""
        return self._open.get(session)

    async def close(self, session: str) -> None:
        """Removes a session's workspace with all forks. Idempotent. Its commands must have ended."""
        self._used_at.pop(session, None)
        opening = self._open.pop(session, None)
        if opening is not None:
            await asyncio.wait([opening])
        await in_thread(remove, self._root / file_name(session))

    async def sweep(self, idle_seconds: float) -> None:
        """Removes workspaces that nobody used for so long, also those that an earlier process has left."""
        oldest = self._clock.now() - idle_seconds
        for session, used_at in list(self._used_at.items()):
            if used_at < oldest and not await self._busy(session):
                await self.close(session)
        open_names = {file_name(session) for session in self._open}
        for directory in await in_thread(lambda: sorted(self._root.iterdir())):
            state = directory / "state.json"
            if directory.name not in open_names and (not state.exists() or state.stat().st_mtime < oldest):
                await in_thread(remove, directory)

    async def _busy(self, session: str) -> bool:
        opening = self._open.get(session)
        return opening is not None and (not opening.done() or opening.result().busy)

    async def _opened(self, session: str, seed: Path | None) -> Workspace:
        workspace = Workspace(self._root / file_name(session), self.strategy, self._limits)
        await workspace.open(seed)
        return workspace
