"""Copies, removes and measures directory trees that an adversary may have built and may still be changing.

Every step opens one name relative to a directory that is already open, and never follows a link (openat with
O_NOFOLLOW): there is no moment between checking a path and using it, so swapping a directory for a link at the wrong
time leads nowhere.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from forerun.runtime.errors import ErrorReason, FailedPrecondition, ResourceExhausted

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CLONE: Final = 0x40049409  # FICLONE
# No setuid, setgid or sticky bits cross a copy.
_MODE_BITS: Final = 0o777


@dataclass(slots=True)
class Budget:
    """What may be copied or merged, and what was so far; taking more than there is fails.

    Attributes:
        most_entries: Files, directories and links.
        most_bytes: Bytes of file content.
        entries: Those taken so far.
        content_bytes: Those taken so far.
    """

    most_entries: int
    most_bytes: int
    entries: int = 0
    content_bytes: int = 0

    def take(self, content_bytes: int, entries: int = 1) -> None:
        """Accounts for one entry, or for many; negative numbers give back.

        Raises:
            ResourceExhausted: A bound of the workspace is reached.
        """
        self.entries += entries
        self.content_bytes += content_bytes
        for what, bound, used, most in (
            ("entries", "WORKSPACE_FILES", self.entries, self.most_entries),
            ("bytes", "WORKSPACE_BYTES", self.content_bytes, self.most_bytes),
        ):
            if used > most:
                raise ResourceExhausted(
                    ErrorReason.LIMIT_DISK,
                    f"the workspace would hold more than {most} {what} ({bound}); "
                    f"see workspace_max_{what} of the sandbox's settings",
                    metadata={"limit": bound, "setting": f"FORERUN_SANDBOX_WORKSPACE_MAX_{what.upper()}"},
                )


@contextmanager
def opened(path: str, *, within: int | None = None, write: bool = False) -> Iterator[int]:
    """A directory, opened without following a link in its last part.

    Tools may leave directories that not even their owner can enter or change (`chmod 0`); such a one gets its mode back
    at the end.

    Args:
        path: Its name.
        within: The open directory that it is in.
        write: It will be changed, or moved (which changes its entry for the parent).

    Raises:
        OSError: It is not there, or is not a directory.
    """
    mode: int | None = None
    try:
        descriptor = os.open(path, _DIRECTORY, dir_fd=within)
    except PermissionError:
        descriptor, mode = _forced(path, within, _DIRECTORY)
    try:
        found = stat.S_IMODE(os.fstat(descriptor).st_mode)
        if write and mode is None and found & stat.S_IRWXU != stat.S_IRWXU:
            os.fchmod(descriptor, found | stat.S_IRWXU)
            mode = found
        yield descriptor
    finally:
        if mode is not None:
            os.fchmod(descriptor, mode)
        os.close(descriptor)


def _forced(path: str, within: int | None, flags: int) -> tuple[int, int]:
    """Opens what denies it, after giving its owner (us) the right; also the mode that it had."""
    handle = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=within)
    try:
        # Through the handle, because a mode cannot be set by name without following a link.
        mode = stat.S_IMODE(os.fstat(handle).st_mode)
        if stat.S_ISLNK(os.fstat(handle).st_mode):
            raise OSError(errno.ELOOP, "became a link", path)
        os.chmod(f"/proc/self/fd/{handle}", mode | stat.S_IRWXU)
        return os.open(f"/proc/self/fd/{handle}", flags & ~os.O_NOFOLLOW), mode
    finally:
        os.close(handle)


def names(directory: int) -> list[str]:
    """The names in an open directory, sorted, so that the same tree is always walked in the same order."""
    return sorted(os.listdir(directory))


def state(directory: int, name: str) -> os.stat_result | None:
    """What a name is, without following it; None where there is nothing."""
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None


def copy_tree(source: int, target: int, budget: Budget, *, clone: bool) -> None:
    """Copies the content of one open directory into another, empty one.

    Files, directories, links and FIFOs are copied with mode and times; sockets and devices are left out. What changes
    or vanishes while it is read is copied as it is found.

    Args:
        source: Read only.
        target: Empty.
        budget: What may be copied.
        clone: Share the blocks of files (reflink) where the file system can.

    Raises:
        ResourceExhausted: The budget is used up; the target holds a part.
        OSError: The disk is full, or access is denied.
    """
    for name in names(source):
        try:
            _copy_entry(source, target, name, budget, clone=clone)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            # A name that became a link after it was looked at (O_NOFOLLOW at work), or stopped being one.
            if error.errno not in (errno.ELOOP, errno.EINVAL):
                raise
    _copy_times(os.fstat(source), target)


def copy_seed(seed: Path, target: Path, budget: Budget, *, clone: bool) -> None:
    """Copies the directory that a workspace starts with into an empty one.

    Raises:
        ResourceExhausted: It is larger than a workspace may be.
        FailedPrecondition: It is not a readable directory.
    """
    try:
        with opened(str(seed)) as source, opened(str(target)) as empty:
            copy_tree(source, empty, budget, clone=clone)
    except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
        raise FailedPrecondition(
            ErrorReason.SETTING_INVALID, "workspace_seed does not name a readable directory of this worker"
        ) from error


def _copy_entry(source: int, target: int, name: str, budget: Budget, *, clone: bool) -> None:
    found = os.stat(name, dir_fd=source, follow_symlinks=False)
    if stat.S_ISDIR(found.st_mode):
        with opened(name, within=source) as below:
            budget.take(0)
            os.mkdir(name, 0o700, dir_fd=target)
            with opened(name, within=target) as copy:
                copy_tree(below, copy, budget, clone=clone)
                os.fchmod(copy, found.st_mode & _MODE_BITS)
    elif stat.S_ISREG(found.st_mode):
        _copy_file(source, target, name, budget, clone=clone)
    elif stat.S_ISLNK(found.st_mode):
        budget.take(0)
        os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
    elif stat.S_ISFIFO(found.st_mode):
        budget.take(0)
        os.mkfifo(name, found.st_mode & _MODE_BITS, dir_fd=target)


def _copy_file(source: int, target: int, name: str, budget: Budget, *, clone: bool) -> None:
    reader = open_to_read(source, name)
    try:
        found = os.fstat(reader)
        if not stat.S_ISREG(found.st_mode):
            return
        budget.take(found.st_size)
        writer = os.open(
            name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=target
        )
        try:
            if not (clone and clone_file(reader, writer)):
                with open(reader, "rb", closefd=False) as before, open(writer, "wb", closefd=False) as after:
                    shutil.copyfileobj(before, after, 1 << 20)
            os.fchmod(writer, found.st_mode & _MODE_BITS)
            _copy_times(found, writer)
        finally:
            os.close(writer)
    finally:
        os.close(reader)


def open_to_read(directory: int, name: str) -> int:
    """A descriptor of a file, also of one that not even its owner may read. Follows no link, and waits for nobody.

    Raises:
        OSError: It is not there, or is a link.
    """
    try:
        return os.open(name, _FILE, dir_fd=directory)
    except PermissionError:
        reader, mode = _forced(name, directory, _FILE)
        os.fchmod(reader, mode)
        return reader


def clone_file(reader: int, writer: int) -> bool:
    """Makes an empty file share the blocks of another; False where the file system cannot."""
    try:
        fcntl.ioctl(writer, _CLONE, reader)
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY, errno.EPERM):
            return False
        raise
    return True


def _copy_times(found: os.stat_result, target: int) -> None:
    os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))


def set_attributes(directory: int, name: str, wanted: os.stat_result) -> None:
    """Gives a name, which is no link, mode and times, also where its present mode denies everything."""
    handle = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    try:
        os.utime(f"/proc/self/fd/{handle}", ns=(wanted.st_atime_ns, wanted.st_mtime_ns))
        os.chmod(f"/proc/self/fd/{handle}", stat.S_IMODE(wanted.st_mode))
    finally:
        os.close(handle)


def remove_entry(directory: int, name: str) -> None:
    """Removes a name with all that is below it. What is not there is fine; directories without rights are opened."""
    try:
        os.unlink(name, dir_fd=directory)
        return
    except FileNotFoundError:
        return
    except (IsADirectoryError, PermissionError):
        pass  # a directory; some file systems say EPERM
    with opened(name, within=directory, write=True) as below:
        for child in names(below):
            remove_entry(below, child)
    os.rmdir(name, dir_fd=directory)


def measure(directory: int, budget: Budget) -> None:
    """Takes everything below a directory from a budget.

    Raises:
        ResourceExhausted: There is more than the budget.
    """
    for name in names(directory):
        found = state(directory, name)
        if found is None or stat.S_ISCHR(found.st_mode):  # by devices overlayfs marks what is gone
            continue
        budget.take(found.st_size if stat.S_ISREG(found.st_mode) else 0)
        if stat.S_ISDIR(found.st_mode):
            with opened(name, within=directory) as below:
                measure(below, budget)
