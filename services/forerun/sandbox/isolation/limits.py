"""What one command may use, and how the end of a command that wanted more is named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from forerun.runtime.errors import ErrorReason

_MIB: Final = 1024 * 1024


class LimitReason(StrEnum):
    """The limit that ended a command."""

    PIDS = "pids limit"
    MEMORY = "memory limit"
    DISK = "disk limit"
    CPU = "cpu limit"
    OUTPUT = "output limit"
    TIME = "time limit"


ERROR_REASONS: Final[Mapping[LimitReason, ErrorReason]] = {
    LimitReason.PIDS: ErrorReason.LIMIT_PIDS,
    LimitReason.MEMORY: ErrorReason.LIMIT_MEMORY,
    LimitReason.DISK: ErrorReason.LIMIT_DISK,
    LimitReason.CPU: ErrorReason.LIMIT_CPU,
    LimitReason.OUTPUT: ErrorReason.LIMIT_OUTPUT,
    LimitReason.TIME: ErrorReason.LIMIT_WALL_TIME,
}


@dataclass(frozen=True, slots=True)
class CommandLimits:
    """Bounds of one command with everything it starts.

    Attributes:
        memory_bytes: Resident memory of the whole process tree.
        pids: Tasks (processes and threads) at once.
        cpu_seconds: CPU time of the whole tree.
        disk_bytes: Growth of workspace and /tmp together, and the longest single file.
        output_bytes: What is kept of each stream, head and tail; None keeps all of it. More is counted, not an error.
        output_total_bytes: What a command may write to both streams before it is ended.
        wall_seconds: Time from start to end.
    """

    memory_bytes: int = 1024 * _MIB
    pids: int = 128
    cpu_seconds: float = 60.0
    disk_bytes: int = 256 * _MIB
    output_bytes: int | None = None
    output_total_bytes: int = 64 * _MIB
    wall_seconds: float = 60.0
