"""Control groups for commands, where the service may make them: the kernel then counts processes and memory itself.

Needs a writable hierarchy: root on a machine of its own, with cgroup v1 or v2. An unprivileged service in a container
has none; there RLIMIT_NPROC (level bubblewrap) and the watchdog do the work.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from forerun.sandbox.isolation.limits import LimitReason

_CONTROLLERS: Final = ("pids", "memory")
_LIMIT_FILE: Final = {
    1: {"pids": "pids.max", "memory": "memory.limit_in_bytes"},
    2: {"pids": "pids.max", "memory": "memory.max"},
}
# Files with "name count" lines, and the name whose count grows when the limit was hit.
_EVENTS: Final = {
    1: {"pids": ("pids.events", "max"), "memory": ("memory.oom_control", "oom_kill")},
    2: {"pids": ("pids.events", "max"), "memory": ("memory.events", "oom_kill")},
}
_REASONS: Final = {"pids": LimitReason.PIDS, "memory": LimitReason.MEMORY}


@dataclass(slots=True)
class Group:
    """The control groups of one command, in the order of the controllers.

    Attributes:
        version: 1 or 2.
        directories: One for each controller (with version 2 the same).
        ended: Its command has ended.
    """

    version: int
    directories: Mapping[str, Path]
    ended: bool = False

    def add(self, pid: int) -> None:
        """Puts a process, and so everything that it starts later, under the limits."""
        for directory in self.directories.values():
            (directory / "cgroup.procs").write_text(str(pid))

    def hit(self) -> LimitReason | None:
        """The limit that was hit since the group was made."""
        for controller, directory in self.directories.items():
            file, wanted = _EVENTS[self.version][controller]
            with contextlib.suppress(OSError):
                for line in (directory / file).read_text().splitlines():
                    name, _, count = line.partition(" ")
                    if name == wanted and int(count) > 0:
                        return _REASONS[controller]
        return None

    def remove(self) -> None:
        """Removes the groups. The kernel may still hold a dead process in one; `Cgroups.make` removes that later."""
        self.ended = True
        for directory in self.directories.values():
            with contextlib.suppress(OSError):
                directory.rmdir()


class Cgroups:
    """Makes control groups. Found by `detect`.

    Args:
        version: 1 or 2.
        mounts: Where each controller's hierarchy can be written.
    """

    def __init__(self, version: int, mounts: Mapping[str, Path]) -> None:
        self._version = version
        self._mounts = mounts
        self._made = 0
        self._groups: list[Group] = []

    @property
    def controllers(self) -> tuple[str, ...]:
        """The controllers that can be used."""
        return tuple(self._mounts)

    @property
    def mounts(self) -> tuple[str, ...]:
        """Where the groups are."""
        return tuple(str(mount) for mount in self._mounts.values())

    def make(self, *, pids: int, memory_bytes: int) -> Group:
        """Groups with these limits.

        Raises:
            OSError: The hierarchy is not writable any more.
        """
        self._remove_ended()
        self._made += 1
        name = f"forerun-{os.getpid()}-{self._made}"
        # One above the limit: the isolation's own init is a member too.
        values = {"pids": pids + 1, "memory": memory_bytes}
        group = Group(self._version, {controller: mount / name for controller, mount in self._mounts.items()})
        try:
            for controller, directory in group.directories.items():
                directory.mkdir(exist_ok=True)
                (directory / _LIMIT_FILE[self._version][controller]).write_text(str(values[controller]))
        except OSError:
            group.remove()
            raise
        self._groups.append(group)
        return group

    def _remove_ended(self) -> None:
        """Removes the groups of ended commands that could not be removed when they ended."""
        for group in self._groups:
            if group.ended:
                group.remove()
        self._groups = [
            group
            for group in self._groups
            if not group.ended or any(directory.exists() for directory in group.directories.values())
        ]

    def remove_orphans(self) -> None:
        """Removes what workers have left that were killed."""
        for mount in self._mounts.values():
            for directory in mount.glob("forerun-*-*"):
                owner = directory.name.split("-")[1]
                if not Path("/proc", owner).exists():
                    with contextlib.suppress(OSError):
                        directory.rmdir()


def detect(mount_table: str = "/proc/self/mounts") -> Cgroups | None:
    """The control groups that this process can make, proved by making one; None where it cannot."""
    found: dict[int, dict[str, Path]] = {1: {}, 2: {}}
    for line in Path(mount_table).read_text().splitlines():
        _, target, kind, options, *_ = line.split(" ")
        if kind == "cgroup":
            for controller in set(_CONTROLLERS) & set(options.split(",")):
                found[1][controller] = Path(target)
        elif kind == "cgroup2":
            with contextlib.suppress(OSError):
                enabled = Path(target, "cgroup.subtree_control").read_text().split()
                found[2] |= {controller: Path(target) for controller in _CONTROLLERS if controller in enabled}
    for version in (2, 1):
        mounts: dict[str, Path] = {
            controller: found[version][controller] for controller in _CONTROLLERS if controller in found[version]
        }
        if "pids" not in mounts:
            continue
        cgroups = Cgroups(version, mounts)
        try:
            cgroups.make(pids=8, memory_bytes=64 << 20).remove()
        except OSError:
            continue
        cgroups.remove_orphans()
        return cgroups
    return None
