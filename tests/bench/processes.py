"""The processes of a benchmark: what they use, and servers beside the platform."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.bench.results import REPOSITORY

_TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")
_START_SECONDS: Final = 30.0


def cpu_seconds(pid: int) -> float:
    """CPU time of a process since its start, in user and kernel mode, to 10 ms."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND


def resident_bytes(pid: int) -> int:
    """Memory of a process that is in RAM."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise ProcessLookupError(pid)


@dataclass(frozen=True, slots=True)
class Server:
    """A server beside the platform."""

    port: int
    pid: int


@asynccontextmanager
async def serving(kind: str) -> AsyncIterator[Server]:
    """A server of `tests.bench.servers` in a process of its own, so that nothing shares its interpreter."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.bench.servers", kind,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, cwd=REPOSITORY,
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    try:
        async with asyncio.timeout(_START_SECONDS):
            line = await process.stdout.readline()
        yield Server(int(line), process.pid)
    finally:
        process.stdin.close()  # it ends with its standard input, so also when this process dies
        await process.wait()
