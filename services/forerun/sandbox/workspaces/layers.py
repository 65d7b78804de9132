"""The content of a workspace whose forks are overlays: a base tree, and above it what was merged while it was in use.

    base         the tree
    layers/<n>   what merge n has changed, as overlayfs wrote it

overlayfs promises nothing about a mount whose lower tree changes. So a merge only moves the fork's changes on top,
where commands that run already do not look and commands that start later do. As soon as no command runs, the layers are
folded into the base.
"""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path
from typing import Final

from forerun.sandbox.workspaces.merging import apply_overlay, is_opaque, is_whiteout
from forerun.sandbox.workspaces.trees import Budget, measure, names, opened, remove_entry, state

_LOG: Final = logging.getLogger(__name__)

_UNBOUNDED: Final = 1 << 62
# All directories of a mount are named in one page for the kernel, with a little room for its other options.
_OPTION_BYTES: Final = 3500
_MOST_LAYERS: Final = 16


class Layers:
    """Base and layers of one workspace. Not for use while another thread uses it.

    Args:
        directory: The workspace's directory.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._pending: list[int] = []
        self._entries = 0
        self._content_bytes = 0

    @property
    def pending(self) -> bool:
        """There is something to fold."""
        return bool(self._pending)

    @property
    def full(self) -> bool:
        """One more layer could not be mounted any more."""
        longest = len(os.fsencode(self._directory)) + 40
        return len(self._pending) >= max(1, min(_MOST_LAYERS, _OPTION_BYTES // longest - 3))

    @property
    def lower(self) -> tuple[str, ...]:
        """What a mount has below its own changes, from the bottom up."""
        return (str(self._directory / "base"), *(str(self._layer(number)) for number in self._pending))

    def open(self) -> None:
        """Takes over what an earlier process has left. Nothing of it is mounted."""
        (self._directory / "layers").mkdir(mode=0o700, exist_ok=True)
        self._pending = sorted(int(name) for name in os.listdir(self._directory / "layers"))
        self.fold()
        self._measure()

    def fits(self, upper: Path, most: Budget) -> bool:
        """True where the workspace cannot grow beyond its bounds by these changes, and counts them.

        Counts what is replaced as if it stayed, so a no may be wrong: `check` knows.
        """
        budget = Budget(_UNBOUNDED, _UNBOUNDED)
        with opened(str(upper)) as changes:
            measure(changes, budget)
        entries, content_bytes = self._entries + budget.entries, self._content_bytes + budget.content_bytes
        if entries > most.most_entries or content_bytes > most.most_bytes:
            return False
        self._entries, self._content_bytes = entries, content_bytes
        return True

    def check(self, upper: Path, most: Budget) -> None:
        """Counts exactly what the workspace will hold with these changes. All layers must be folded.

        Raises:
            ResourceExhausted: It is more than a workspace may.
        """
        self._measure()
        budget = Budget(_UNBOUNDED, _UNBOUNDED, self._entries, self._content_bytes)
        with opened(str(upper)) as changes, opened(str(self._directory / "base")) as base:
            _grow(changes, base, budget)
        most.take(budget.content_bytes, budget.entries)
        self._entries, self._content_bytes = budget.entries, budget.content_bytes

    def stack(self, fork: int, number: int) -> None:
        """Puts the changes of an open fork on top. Again: nothing changes, also where `open` has folded them."""
        if state(fork, "upper") is None:
            return
        with opened(str(self._directory / "layers")) as layers:
            os.rename("upper", str(number), src_dir_fd=fork, dst_dir_fd=layers)
        self._pending.append(number)

    def fold(self) -> None:
        """Moves all layers into the base. Nothing of the workspace may be mounted; a crash is mended by `open`."""
        with (
            opened(str(self._directory)) as root,
            opened("layers", within=root) as layers,
            opened("base", within=root) as base,
            opened("trash", within=root) as trash,
        ):
            for number in list(self._pending):
                with opened(str(number), within=layers, write=True) as changes:
                    apply_overlay(changes, base, trash)
                os.rmdir(str(number), dir_fd=layers)
                self._pending.remove(number)
            for name in os.listdir(trash):
                remove_entry(trash, name)

    def try_to_fold(self) -> None:
        """Folds. Where the disk refuses, the layers stay, which are the content as well as the base would be."""
        try:
            self.fold()
        except OSError as error:
            _LOG.warning("merged layers stay above their base", extra={"fields": {"error": str(error)}})

    def _layer(self, number: int) -> Path:
        return self._directory / "layers" / str(number)

    def _measure(self) -> None:
        budget = Budget(_UNBOUNDED, _UNBOUNDED)
        with opened(str(self._directory / "base")) as base:
            measure(base, budget)
        self._entries, self._content_bytes = budget.entries, budget.content_bytes


def _grow(changes: int, base: int, budget: Budget) -> None:
    """Adds to a budget what a directory's changes add to the one below it, less what they take away."""
    for name in names(changes):
        found, below = state(changes, name), state(base, name)
        if found is None:
            continue
        both = below is not None and stat.S_ISDIR(found.st_mode) and stat.S_ISDIR(below.st_mode)
        if both:
            with opened(name, within=changes) as changed:
                if not is_opaque(changed):
                    with opened(name, within=base) as old:
                        _grow(changed, old, budget)
                    continue
        if below is not None:
            gone = _size(base, name, below)
            budget.take(-gone.content_bytes, -gone.entries)
        if not is_whiteout(found):
            come = _size(changes, name, found)
            budget.take(come.content_bytes, come.entries)


def _size(directory: int, name: str, found: os.stat_result) -> Budget:
    budget = Budget(_UNBOUNDED, _UNBOUNDED)
    budget.take(found.st_size if stat.S_ISREG(found.st_mode) else 0)
    if stat.S_ISDIR(found.st_mode):
        with opened(name, within=directory) as below:
            measure(below, budget)
    return budget
