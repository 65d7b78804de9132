"""The processes of a server's models: found below the server's own, and ended.

The server ends a model's process when it unloads it, but waits for what the process is doing. One that hangs is never
done, so it is killed first; the server then answers what it had under way with errors.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

_PROC = Path("/proc")


def end_processes(server: int, model: str, version: str) -> list[int]:
    """Kills the processes of a model's version, with all that they have started; those that were found.

    Args:
        server: Process of the server.
        model: Name of the model.
        version: Of the model. Other versions end their texts.
    """
    below = _children()
    found = [one for one in _tree(server, below) if _serves(_words(one), model, version)]
    ended = [process for one in found for process in (one, *_tree(one, below))]
    for process in dict.fromkeys(ended):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    return found


def _serves(words: list[str], model: str, version: str) -> bool:
    """The command line of a Python model's process names its file, and its instance: the model and two numbers."""
    if not words or not words[0].endswith("triton_python_backend_stub"):
        return False
    instance = re.compile(rf"{re.escape(model)}(_\d+)+")
    if not any(instance.fullmatch(word) for word in words):
        return False
    own = [word for word in words if f"/{model}/" in word]
    return not own or any(f"/{model}/{version}/" in word for word in own)


def _tree(root: int, below: dict[int, list[int]]) -> Iterator[int]:
    """Everything below a process."""
    for one in below.get(root, []):
        yield one
        yield from _tree(one, below)


def _children() -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                # The name of a process may hold spaces and brackets; what follows its last bracket does not.
                parent = int((entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
                found.setdefault(parent, []).append(int(entry.name))
    return found


def _words(process: int) -> list[str]:
    try:
        return (_PROC / str(process) / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []
