"""Commands as plain processes with limits: the level that always works and isolates nothing."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final

from forerun.sandbox.isolation import reaper
from forerun.sandbox.isolation.bounds import enforcement, grouped, rlimits
from forerun.sandbox.isolation.bwrap import gated
from forerun.sandbox.isolation.cgroups import Cgroups
from forerun.sandbox.isolation.launch import Child, Launch, Overlay, Pipes, SetupFailed, spawn
from forerun.sandbox.isolation.levels import Isolation, LevelName


class ProcessLevel:
    """The level `process`, which is available everywhere."""

    name: Final = LevelName.PROCESS

    def __init__(self, *, cgroups: Cgroups | None = None) -> None:
        self._cgroups = cgroups

    @property
    def gives(self) -> str:
        """What the level gives."""
        return Process(self._cgroups).gives

    async def trial(self) -> tuple[Isolation | None, str]:
        """Needs nothing."""
        return Process(self._cgroups), "needs nothing"


class Process:
    """Starts commands as processes of this user, below a reaper that ends everything they started."""

    name: Final = LevelName.PROCESS
    mounts_workspace: Final = False

    def __init__(self, cgroups: Cgroups | None) -> None:
        self._cgroups = cgroups

    @property
    def gives(self) -> str:
        """What the level gives, and what it does not."""
        return (
            f"clean environment; {enforcement(self._cgroups, kernel_counts_pids=False)}; nothing outlives a call; "
            "not: isolation of files, network, users or other processes"
        )

    async def start(self, launch: Launch) -> Child:
        """Starts a command in the workspace's own directory.

        Raises:
            SetupFailed: The reaper did not come up, or the workspace is an overlay, which needs a mount.
        """
        if isinstance(launch.workspace, Overlay):
            raise SetupFailed("overlay workspaces need the level bubblewrap")
        directory = launch.scratch if launch.workspace is None else launch.workspace.path
        pipes = Pipes()
        try:
            pipes.standard(launch)
            keep = [pipes.output("status"), pipes.input("gate")]
            environment = {**launch.environment, "HOME": launch.scratch, "TMPDIR": launch.scratch}
            plan = {"argv": list(launch.argv), "environment": environment, "directory": directory,
                    "status": keep[0], "gate": keep[1]}  # fmt: skip
            keep.append(pipes.memory("plan", json.dumps(plan).encode()))
            group = grouped(self._cgroups, launch)
        except BaseException:
            pipes.close()
            raise
        argv = [sys.executable, "-I", "-S", str(Path(reaper.__file__)), str(keep[-1])]
        try:
            child = spawn(sys.executable, argv, pipes, keep=keep, group=group, reaper=True)
        except OSError as error:
            raise SetupFailed(f"{sys.executable} cannot be executed: {error.strerror}") from error
        return await gated(child, rlimits(launch))
