"""What a runner does to its own process, and to what commands leave behind."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
from pathlib import Path
from typing import Final

_PR_SET_DUMPABLE: Final = 4
_PR_SET_CHILD_SUBREAPER: Final = 36
_PAUSE_SECONDS: Final = 0.002
_BOUND_SECONDS: Final = 5.0


def harden() -> None:
    """Closes this process to its own user, and makes it the parent of every orphan.

    Commands may run as the same user. In a pod this is the first process, which no signal of theirs ends, and after
    this they can neither read nor change it: its key and its claim stay its own, and so does "taken once".
    """
    libc = ctypes.CDLL(None, use_errno=True)
    for option, value in ((_PR_SET_DUMPABLE, 0), (_PR_SET_CHILD_SUBREAPER, 1)):
        if libc.prctl(option, value, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl")


async def end_strays() -> None:
    """Kills and reaps every child of this process. No command may be running, and none may start meanwhile.

    A command can kill the process that watches over it; what it left running then comes to us.

    Raises:
        TimeoutError: Something survived SIGKILL.
    """
    async with asyncio.timeout(_BOUND_SECONDS):
        while children := _children():
            for child in children:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:  # noqa: ASYNC222  (does not wait)
                    pass
            await asyncio.sleep(_PAUSE_SECONDS)


def _children() -> list[int]:
    found: list[int] = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found += map(int, (task / "children").read_text().split())
    return found
