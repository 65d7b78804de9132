"""Which processes of a platform live."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path


def processes_of(directory: Path) -> list[int]:
    """Processes that name a data directory in their command line or in their environment, this one left out."""
    needle = os.fsencode(directory)
    return [pid for pid in _all() if pid != os.getpid() and needle in _texts(pid)]


async def until_gone(directory: Path, timeout_seconds: float = 20.0) -> None:
    """Waits until no process of a platform is left; fails with those that are."""
    try:
        async with asyncio.timeout(timeout_seconds):
            while processes_of(directory):  # noqa: ASYNC110  (foreign processes give no event)
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"processes are left: {[_texts(pid)[:200] for pid in processes_of(directory)]}") from None


def _all() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _texts(pid: int) -> bytes:
    texts = b""
    for name in ("cmdline", "environ"):
        try:
            texts += Path(f"/proc/{pid}/{name}").read_bytes()
        except OSError:
            continue
    return texts
