"""Applies what a fork has changed to its workspace, so that a crash at any point can be finished by doing it again.

Each step is one rename or one removal. A step that was done leaves nothing to do for its repetition: what was moved is
gone from the fork. Before the first step the caller has written down that the merge has begun (`store`), so the only
two states anyone can find after a crash are "not begun" and "to be finished".
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable
from typing import Final

from forerun.sandbox.workspaces.trees import names, opened, remove_entry, set_attributes, state

_MARK_PREFIXES: Final = ("user.overlay.", "trusted.overlay.")
_OPAQUE: Final = ("user.overlay.opaque", "trusted.overlay.opaque")


def is_whiteout(found: os.stat_result) -> bool:
    """True for the character device 0,0 by which overlayfs says that a name was deleted."""
    return stat.S_ISCHR(found.st_mode) and found.st_rdev == 0


def apply_overlay(upper: int, base: int, trash: int) -> None:
    """Moves the changes in an overlay's upper directory into the tree below it.

    Args:
        upper: The upper directory. It is emptied.
        base: The tree that the overlay covered.
        trash: A directory on the same file system that takes what is replaced.
    """
    bin_ = _Trash(trash)
    _apply(upper, base, bin_.throw)
    found = os.fstat(upper)
    os.fchmod(base, stat.S_IMODE(found.st_mode))
    os.utime(base, ns=(found.st_atime_ns, found.st_mtime_ns))


def take_tree(fork: int, root: int, name: str) -> None:
    """Makes the whole tree `tree` of a fork a new tree of a workspace.

    Args:
        fork: Directory that holds `tree`.
        root: The workspace's directory.
        name: Name for the tree in it.
    """
    if state(fork, "tree") is not None:  # else it was done before
        os.rename("tree", name, src_dir_fd=fork, dst_dir_fd=root)


def throw_away(root: int, folder: str, name: str, trash: int) -> None:
    """Moves an entry of a folder to the trash; nothing happens where it is gone already."""
    with opened(folder, within=root) as source:
        if state(source, name) is not None:
            _Trash(trash).throw(source, name)


class _Trash:
    def __init__(self, directory: int) -> None:
        self._directory = directory
        self._next = 0

    def throw(self, source: int, name: str) -> None:
        while state(self._directory, str(self._next)) is not None:
            self._next += 1
        found = state(source, name)
        if found is not None and stat.S_ISDIR(found.st_mode):
            with opened(name, within=source, write=True):
                os.rename(name, str(self._next), src_dir_fd=source, dst_dir_fd=self._directory)
        else:
            os.rename(name, str(self._next), src_dir_fd=source, dst_dir_fd=self._directory)


def _apply(upper: int, base: int, throw: Callable[[int, str], None]) -> None:
    for name in names(upper):
        found = state(upper, name)
        if found is None:
            continue
        below = state(base, name)
        if is_whiteout(found):
            if below is not None:
                throw(base, name)
            os.unlink(name, dir_fd=upper)
        elif stat.S_ISDIR(found.st_mode):
            _apply_directory(upper, base, name, found, throw)
        else:
            if below is not None and stat.S_ISDIR(below.st_mode):
                throw(base, name)
            os.rename(name, name, src_dir_fd=upper, dst_dir_fd=base)


def _apply_directory(
    upper: int, base: int, name: str, found: os.stat_result, throw: Callable[[int, str], None]
) -> None:
    below = state(base, name)
    with opened(name, within=upper, write=True) as changed:
        if below is None or not stat.S_ISDIR(below.st_mode) or is_opaque(changed):
            # Only the marks *below* go now: if we stop here, the mark of this directory still says that it replaces.
            _strip_below(changed)
            if below is not None:
                throw(base, name)
            os.rename(name, name, src_dir_fd=upper, dst_dir_fd=base)
            _strip(changed)
            return
        with opened(name, within=base, write=True) as old:
            _apply(changed, old, throw)
    set_attributes(base, name, found)
    remove_entry(upper, name)


def _strip_below(directory: int) -> None:
    """Removes whiteouts and overlay marks below a directory that is moved as a whole: nothing lies under it now."""
    for name in names(directory):
        found = state(directory, name)
        if found is None:
            continue
        if is_whiteout(found):
            os.unlink(name, dir_fd=directory)
        elif stat.S_ISDIR(found.st_mode):
            with opened(name, within=directory, write=True) as below:
                _strip_below(below)
                _strip(below)


def is_opaque(directory: int) -> bool:
    """True for a directory that covers what lies below it, instead of adding to it."""
    return any(mark in os.listxattr(directory) for mark in _OPAQUE)


def _strip(directory: int) -> None:
    for mark in os.listxattr(directory):
        if mark.startswith(_MARK_PREFIXES):
            with contextlib.suppress(PermissionError):
                os.removexattr(directory, mark)
