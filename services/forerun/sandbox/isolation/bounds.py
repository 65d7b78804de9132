"""The kernel's own limits for a command, and in words who enforces which. They back up the watchdog."""

from __future__ import annotations

import os
import resource
from typing import Final

from forerun.sandbox.isolation.cgroups import Cgroups, Group
from forerun.sandbox.isolation.launch import Launch, SetupFailed

_OPEN_FILES: Final = 1024
SHM_BYTES: Final = 64 * 1024 * 1024
"""Largest /dev/shm, where the command may use as much memory."""


def grouped(cgroups: Cgroups | None, launch: Launch, *, more_pids: int = 0, more_memory_bytes: int = 0) -> Group | None:
    """The control group of a command, where this machine has any.

    Args:
        cgroups: Those of this machine.
        launch: The command.
        more_pids: Tasks of the isolation itself.
        more_memory_bytes: Memory of the isolation itself.

    Raises:
        SetupFailed: The machine had some when the worker started, and takes no more.
    """
    if cgroups is None:
        return None
    try:
        return cgroups.make(pids=launch.pids + more_pids, memory_bytes=launch.memory_bytes + more_memory_bytes)
    except OSError as error:
        raise SetupFailed(f"a control group cannot be made: {error.strerror}") from error


def enforcement(cgroups: Cgroups | None, *, kernel_counts_pids: bool) -> str:
    """Who enforces which limit, in words."""
    by_cgroup = () if cgroups is None else cgroups.controllers
    pids = "cgroup" if "pids" in by_cgroup else "rlimit" if kernel_counts_pids else "watchdog only"
    memory = "cgroup" if "memory" in by_cgroup else "watchdog only"
    return f"processes by {pids}, memory by {memory}, CPU and disk growth by rlimit and watchdog"


def rlimits(launch: Launch) -> dict[int, int]:
    """Limits of each process of a command."""
    return {
        resource.RLIMIT_FSIZE: launch.file_bytes,
        resource.RLIMIT_CPU: max(1, int(launch.cpu_seconds) + 1),
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NOFILE: _OPEN_FILES,
    }


def task_limit(launch: Launch) -> dict[int, int]:
    """The limit of all tasks together, for whoever counts those of one command alone.

    A little above the watchdog's, so that the watchdog sees its own crossed and names it.
    """
    return {resource.RLIMIT_NPROC: launch.pids + 8}


def host_task_limit(launch: Launch) -> dict[int, int]:
    """The same, where the host's kernel counts: it counts nobody's tasks for root."""
    return task_limit(launch) if os.getuid() != 0 else {}
