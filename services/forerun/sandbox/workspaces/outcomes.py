"""What merged calls have answered, kept so that a call whose answer was lost on its way is not run twice.

    FORK/outcome       what has run in a fork, as long as the fork is there
    OUTCOMES/<name>    written before the merge is decided, so that there is no merge without it

A file of a name under which nothing was merged means nothing; whoever reads must know that something was.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from forerun.sandbox.workspaces.disk import file_name, write_bytes

_KEPT: Final = 64
_NOTE: Final = "outcome"


class Outcomes:
    """The outcomes of one workspace's last merges, on disk.

    Args:
        directory: Where they are, for them only.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def note(self, fork: Path, outcome: bytes) -> None:
        """Keeps the outcome of what has run in a fork, in the fork's directory: it goes where the fork goes."""
        (fork / _NOTE).write_bytes(outcome)

    def keep(self, name: str, fork: Path) -> None:
        """Keeps the outcome of a fork that is about to be merged; without one what an earlier try has left goes."""
        path, outcome = self._directory / file_name(name), _read(fork / _NOTE)
        if outcome is None:
            path.unlink(missing_ok=True)
        else:
            self._directory.mkdir(mode=0o700, exist_ok=True)
            write_bytes(path, outcome)

    def of(self, name: str) -> bytes | None:
        """The outcome that was merged under a name, if it is still there."""
        return _read(self._directory / file_name(name))

    def prune(self, merged: Iterable[str]) -> None:
        """Forgets all but the latest.

        Args:
            merged: The names of merges, oldest first.
        """
        if not self._directory.exists():
            return
        there = set(os.listdir(self._directory))
        mine = [file for name in merged if (file := file_name(name)) in there]
        for file in there.difference(mine[-_KEPT:]):
            (self._directory / file).unlink()


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
