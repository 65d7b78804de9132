"""A tree of files as a stream of entries, and what has changed in one.

The side that writes a tree trusts nothing of what it is sent: names are taken one by one below an open directory, no
link is followed, and what comes counts against a budget.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from forerun.core import limits
from forerun.sandbox.workspaces.trees import Budget, names, open_to_read, opened, remove_entry, state
from forerun.v1 import runner_pb2

_MODE_BITS: Final = 0o777
_MOST_DEPTH: Final = 128
# Linux itself takes no longer one at once.
_MOST_PATH_BYTES: Final = 4096
# Paths of directories are held until the end: two hundred thousand of 300 bytes.
_MOST_HELD_BYTES: Final = 64 * limits.MIB
# What the names of an entry can do, as against what a disk does.
_WRONG_NAMES: Final = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL, errno.EILSEQ}
)
# What an entry takes beside its path and its content.
_ENTRY_BYTES: Final = 64

_KINDS: Final[Mapping[int, runner_pb2.TreeKind.ValueType]] = {
    stat.S_IFDIR: runner_pb2.TREE_KIND_DIRECTORY,
    stat.S_IFREG: runner_pb2.TREE_KIND_FILE,
    stat.S_IFLNK: runner_pb2.TREE_KIND_LINK,
    stat.S_IFIFO: runner_pb2.TREE_KIND_PIPE,
}


class WrongTree(Exception):
    """What came is no tree: a name leads elsewhere, or an entry has no place."""


@dataclass(frozen=True, slots=True)
class Mark:
    """What a path was at one moment.

    Attributes:
        kind: What it is.
        mode: Its permission bits.
        changed_ns: Its time.
        digest: Of a file's content, or the target of a link.
    """

    kind: int
    mode: int
    changed_ns: int
    digest: bytes


def marks(root: str) -> dict[bytes, Mark]:
    """What every path of a tree is now.

    Contents are compared and not times: a file that was mapped into memory may change without a new time.
    """
    found: dict[bytes, Mark] = {}
    with opened(root) as directory:
        found[b""] = _mark(os.fstat(directory), b"")
        for path, parent, name, status in _walk(directory, b""):
            content = b""
            if stat.S_ISREG(status.st_mode):
                content = _digest(parent, name)
            elif stat.S_ISLNK(status.st_mode):
                content = os.fsencode(os.readlink(name, dir_fd=parent))
            found[path] = _mark(status, content)
    return found


def packed(root: str, before: Mapping[bytes, Mark] | None = None) -> Iterator[runner_pb2.TreePart]:
    """The parts of a tree, or of what is not as it was.

    Args:
        root: Its directory. Nothing may change it meanwhile.
        before: What it was; None takes everything.
    """
    batch, size = runner_pb2.TreePart(), 0
    for entry in _entries(root, before):
        batch.entries.append(entry)
        size += len(entry.content) + len(entry.path) + _ENTRY_BYTES
        if size >= limits.CHUNK_BYTES:
            yield batch
            batch, size = runner_pb2.TreePart(), 0
    if batch.entries:
        yield batch


def _entries(root: str, before: Mapping[bytes, Mark] | None) -> Iterator[runner_pb2.TreeEntry]:
    now = None if before is None else marks(root)
    if before is not None and now is not None:
        yield from _gone(before, now)
    with opened(root) as directory:
        if before is None or now is None or before[b""] != now[b""]:
            yield _entry(b"", os.fstat(directory))
        for path, parent, name, status in _walk(directory, b""):
            if before is not None and now is not None and before.get(path) == now.get(path):
                continue
            if stat.S_ISREG(status.st_mode):
                yield from _file(path, parent, name, status)
                continue
            entry = _entry(path, status)
            if stat.S_ISLNK(status.st_mode):
                entry.content = os.fsencode(os.readlink(name, dir_fd=parent))
            yield entry


def _gone(before: Iterable[bytes], now: Mapping[bytes, Mark]) -> Iterator[runner_pb2.TreeEntry]:
    for path in sorted(before):
        parent = path.rpartition(b"/")[0]
        above = now.get(parent)
        if path not in now and above is not None and above.kind == stat.S_IFDIR:
            yield runner_pb2.TreeEntry(path=path, kind=runner_pb2.TREE_KIND_GONE)


def _walk(directory: int, above: bytes) -> Iterator[tuple[bytes, int, str, os.stat_result]]:
    """Every path below a directory, each before what is in it; sockets and devices are left out."""
    for name in names(directory):
        status = state(directory, name)
        if status is None or stat.S_IFMT(status.st_mode) not in _KINDS:
            continue
        path = os.fsencode(name) if not above else above + b"/" + os.fsencode(name)
        yield path, directory, name, status
        if stat.S_ISDIR(status.st_mode):
            with opened(name, within=directory) as below:
                yield from _walk(below, path)


def _file(path: bytes, parent: int, name: str, status: os.stat_result) -> Iterator[runner_pb2.TreeEntry]:
    reader = open_to_read(parent, name)
    with open(reader, "rb") as file:
        content = file.read(limits.CHUNK_BYTES)
        while True:
            following = file.read(limits.CHUNK_BYTES) if len(content) == limits.CHUNK_BYTES else b""
            entry = _entry(path, status)
            entry.content, entry.goes_on = content, bool(following)
            yield entry
            if not following:
                return
            content = following


def _entry(path: bytes, status: os.stat_result) -> runner_pb2.TreeEntry:
    return runner_pb2.TreeEntry(
        path=path, kind=_KINDS[stat.S_IFMT(status.st_mode)], mode=status.st_mode & _MODE_BITS,
        changed_ns=status.st_mtime_ns,
    )  # fmt: skip


def _mark(status: os.stat_result, digest: bytes) -> Mark:
    return Mark(stat.S_IFMT(status.st_mode), status.st_mode & _MODE_BITS, status.st_mtime_ns, digest)


def _digest(parent: int, name: str) -> bytes:
    with open(open_to_read(parent, name), "rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


class TreeWriter:
    """Writes entries below a directory, replacing what is there.

    Args:
        root: The directory.
        budget: What may come.
    """

    def __init__(self, root: str, budget: Budget) -> None:
        self._root = root
        self._budget = budget
        self._directories: dict[bytes, tuple[int | None, int]] = {}
        self._held_bytes = 0
        self._open: tuple[bytes, int] | None = None

    def write(self, part: runner_pb2.TreePart) -> None:
        """Takes the next part.

        Raises:
            WrongTree: It is none.
            ResourceExhausted: The budget is used up.
            OSError: The disk is full.
        """
        for entry in part.entries:
            self._budget.take(len(entry.content), 0 if self._open is not None else 1)
            try:
                self._write(entry)
            except OSError as error:
                if error.errno not in _WRONG_NAMES:
                    raise
                raise WrongTree(f"an entry has no place: {error.strerror}") from error

    def finish(self) -> None:
        """Gives the directories their modes and times, which writing into them has changed.

        Raises:
            WrongTree: A file is not complete.
        """
        if self._open is not None:
            raise WrongTree("the last file is not complete")
        for path in sorted(self._directories, reverse=True):
            mode, changed_ns = self._directories[path]
            parts = _parts(path)
            with ExitStack() as stack:
                try:
                    parent = self._enter(stack, parts[:-1]) if parts else None
                    _set(parts[-1] if parts else self._root, parent, mode, changed_ns)
                except (FileNotFoundError, NotADirectoryError):
                    continue  # a later entry has replaced it

    def close(self) -> None:
        """Closes a file that was not completed."""
        if self._open is not None:
            os.close(self._open[1])
            self._open = None

    def _write(self, entry: runner_pb2.TreeEntry) -> None:
        if self._open is not None:
            return self._go_on(entry)
        parts, mode = _parts(entry.path), entry.mode & _MODE_BITS
        if not parts:
            if entry.kind != runner_pb2.TREE_KIND_DIRECTORY:
                raise WrongTree("the root is a directory")
            self._hold(b"", mode, entry.changed_ns)
            return None
        with ExitStack() as stack:
            parent, name = self._enter(stack, parts[:-1]), parts[-1]
            # Only an entry of its own gives a directory another time.
            above = entry.path.rpartition(b"/")[0]
            if above not in self._directories:
                self._hold(above, None, os.fstat(parent).st_mtime_ns)
            self._place(entry, parent, name, mode)
        return None

    def _hold(self, path: bytes, mode: int | None, changed_ns: int) -> None:
        self._held_bytes += len(path)
        if self._held_bytes > _MOST_HELD_BYTES:
            raise WrongTree("the paths of its directories are too long")
        self._directories[path] = (mode, changed_ns)

    def _place(self, entry: runner_pb2.TreeEntry, parent: int, name: str, mode: int) -> None:
        found = state(parent, name)
        if entry.kind == runner_pb2.TREE_KIND_DIRECTORY:
            self._hold(entry.path, mode, entry.changed_ns)
            if found is None or not stat.S_ISDIR(found.st_mode):
                remove_entry(parent, name)
                os.mkdir(name, 0o700, dir_fd=parent)
            return
        remove_entry(parent, name)
        match entry.kind:
            case runner_pb2.TREE_KIND_GONE:
                pass
            case runner_pb2.TREE_KIND_FILE:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                self._open = (entry.path, os.open(name, flags, 0o600, dir_fd=parent))
                self._go_on(entry)
            case runner_pb2.TREE_KIND_LINK:
                if b"\0" in entry.content:
                    raise WrongTree("a link has no target")
                os.symlink(os.fsdecode(entry.content), name, dir_fd=parent)
                os.utime(name, ns=(entry.changed_ns, entry.changed_ns), dir_fd=parent, follow_symlinks=False)
            case runner_pb2.TREE_KIND_PIPE:
                os.mkfifo(name, mode, dir_fd=parent)
                os.utime(name, ns=(entry.changed_ns, entry.changed_ns), dir_fd=parent, follow_symlinks=False)
            case _:
                raise WrongTree("an entry has no kind")

    def _go_on(self, entry: runner_pb2.TreeEntry) -> None:
        assert self._open is not None
        path, file = self._open
        if entry.path != path or entry.kind != runner_pb2.TREE_KIND_FILE:
            raise WrongTree("a file is not complete")
        if entry.goes_on and not entry.content:
            raise WrongTree("a file goes on with nothing")
        view = memoryview(entry.content)
        while view:
            view = view[os.write(file, view) :]
        if not entry.goes_on:
            os.fchmod(file, entry.mode & _MODE_BITS)
            os.utime(file, ns=(entry.changed_ns, entry.changed_ns))
            self.close()

    def _enter(self, stack: ExitStack, parts: list[str]) -> int:
        directory = stack.enter_context(opened(self._root, write=True))
        for part in parts:
            directory = stack.enter_context(opened(part, within=directory, write=True))
        return directory


def _set(name: str, parent: int | None, mode: int | None, changed_ns: int) -> None:
    """Gives a directory mode and time, also where its present mode denies everything."""
    handle = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        os.utime(f"/proc/self/fd/{handle}", ns=(changed_ns, changed_ns))
        if mode is not None:
            os.chmod(f"/proc/self/fd/{handle}", mode)
    finally:
        os.close(handle)


def _parts(path: bytes) -> list[str]:
    """The names of a path.

    Raises:
        WrongTree: One of them leads elsewhere.
    """
    if not path:
        return []
    parts = path.split(b"/")
    if len(path) > _MOST_PATH_BYTES or len(parts) > _MOST_DEPTH:
        raise WrongTree("a path is too long")
    if any(part in (b"", b".", b"..") or b"\0" in part for part in parts):
        raise WrongTree("a name leads elsewhere")
    return [os.fsdecode(part) for part in parts]
