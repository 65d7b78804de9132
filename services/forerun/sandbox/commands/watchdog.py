"""Reads what a process tree uses, from /proc, without a process of its own."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

_TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
# Positions after the parenthesised name in /proc/PID/stat.
_USER, _SYSTEM, _REAPED_USER, _REAPED_SYSTEM, _THREADS, _RESIDENT = 11, 12, 13, 14, 17, 21


@dataclass(frozen=True, slots=True)
class Usage:
    """A look at a tree.

    Attributes:
        tasks: Processes and threads, without the isolation's own root.
        cpu_seconds: User and system time of the living and of those they have reaped.
        memory_bytes: Resident memory.
    """

    tasks: int
    cpu_seconds: float
    memory_bytes: int


def look(root_pid: int, *, most: int) -> Usage:
    """Adds up a tree. Stops counting soon after `most` tasks: a tree that grows faster than it is read ends the look.

    The tree's root is the isolation's init, which reaps every orphan, so nothing escapes the walk for longer than one
    look.
    """
    tasks, ticks, pages = 0, 0, 0
    pending = [root_pid]
    while pending and tasks <= most + 1:
        pid = pending.pop()
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
            children: list[int] = []
            for task in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{task}/children", "rb") as file:
                    children += map(int, file.read().split())
        except (FileNotFoundError, ProcessLookupError):
            continue
        pending += children
        ticks += int(fields[_REAPED_USER]) + int(fields[_REAPED_SYSTEM])
        if pid == root_pid:
            continue
        tasks += int(fields[_THREADS])
        ticks += int(fields[_USER]) + int(fields[_SYSTEM])
        pages += int(fields[_RESIDENT])
    return Usage(tasks, ticks / _TICKS_PER_SECOND, pages * _PAGE_BYTES)


def growth_bytes(directories: tuple[str, ...], *, most_entries: int) -> int:
    """Bytes on disk below directories, counting at most so many entries. Follows no links; what vanishes is fine."""
    total, seen = 0, 0
    pending = list(directories)
    while pending and seen < most_entries:
        try:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    seen += 1
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
                    else:
                        total += entry.stat(follow_symlinks=False).st_blocks * 512
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            continue
    return total
