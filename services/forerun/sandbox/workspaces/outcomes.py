"""What merged calls have answered, kept so that a call whose answer was lost on its way is not run twice.

    OUTCOMES/<fork>    written before the merge is decided, so that there is no merge without it

A file of a fork that was not merged means nothing; whoever reads must know that it was.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from forerun.sandbox.workspaces.disk import file_name, write_bytes

_KEPT: Final = 64


class Outcomes:
    """The outcomes of one workspace's last merges, on disk.

    Args:
        directory: Where they are, for them only.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def keep(self, fork: str, outcome: bytes | None) -> None:
        """Keeps the outcome of a fork that is about to be merged; None forgets what an earlier try has left."""
        path = self._directory / file_name(fork)
        if outcome is None:
            path.unlink(missing_ok=True)
        else:
            self._directory.mkdir(mode=0o700, exist_ok=True)
            write_bytes(path, outcome)

    def of(self, fork: str) -> bytes | None:
        """The outcome of a merged fork, if it is still there."""
        try:
            return (self._directory / file_name(fork)).read_bytes()
        except FileNotFoundError:
            return None

    def prune(self, merged: Iterable[str]) -> None:
        """Forgets all but the latest.

        Args:
            merged: The merged forks, oldest first.
        """
        if not self._directory.exists():
            return
        there = set(os.listdir(self._directory))
        mine = [name for fork in merged if (name := file_name(fork)) in there]
        for name in there.difference(mine[-_KEPT:]):
            (self._directory / name).unlink()
