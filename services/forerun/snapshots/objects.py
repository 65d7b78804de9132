"""The objects of one tenant on disk: files named by the SHA-256 of what they hold.

A file appears under its name only when its content is safely on disk, and is checked against its name whenever it is
read. Its modification time says when it was last stored, reused or read: that protects what is in use but not yet named
by a version. All methods block and belong on a worker thread; any number of threads may call them.
"""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import grpc

from forerun.runtime.errors import Bug, ErrorReason, ResourceExhausted, Unavailable
from forerun.snapshots.engine.collection import INDEX_SUFFIX, Object, name_of
from forerun.snapshots.engine.nodes import Index, MalformedError, Node, decode, decode_index, encode_index
from forerun.snapshots.engine.values import INLINE_BYTES, PIECE_BYTES, Inline, Stored, Value, digest_of, pieces_of

_TEMPORARY: Final = ".new-"
_NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_DIGEST_BYTES: Final = 32


class DataLoss(Bug):
    """Stored bytes are damaged or gone. They are never handed out."""

    code = grpc.StatusCode.DATA_LOSS

    def __init__(self, what: str, name: str) -> None:
        super().__init__(ErrorReason.SNAPSHOT_CORRUPT, f"{what}; restore it from a backup", metadata={"object": name})


@contextmanager
def storage_errors() -> Iterator[None]:
    """Makes failures of the disk typed.

    Raises:
        ResourceExhausted: the disk is full.
        Unavailable: it cannot be read or written for another reason.
    """
    try:
        yield
    except OSError as error:
        kind = ResourceExhausted if error.errno in _NO_SPACE else Unavailable
        raise kind(
            ErrorReason.STORAGE_UNAVAILABLE,
            f"the disk of the snapshots cannot be used: {error.strerror}; see setting data_dir",
        ) from error


class Objects:
    """The object files of one tenant.

    Args:
        folder: Where they lie; made if it is missing.

    Attributes:
        size_bytes: What they hold together.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # Between looking at a file's time and removing it, nobody may begin to rely on it.
        self._lock = threading.Lock()
        self._number = 0
        self.size_bytes = 0
        with storage_errors():
            folder.mkdir(parents=True, exist_ok=True)
            for entry in os.scandir(folder):
                if entry.name.startswith(_TEMPORARY):
                    os.unlink(entry.path)  # left by a crash: no one was told that it is stored
                else:
                    self.size_bytes += entry.stat().st_size

    # ------------------------------------------------------------ writing

    def missing_bytes(self, objects: Mapping[str, bytes]) -> int:
        """How many bytes storing some objects would add."""
        return sum(len(data) for name, data in objects.items() if not (self._folder / name).exists())

    def put(self, objects: Mapping[str, bytes], now: float) -> int:
        """Stores objects and returns the bytes that were added. Durable when it returns.

        Args:
            objects: Name to content.
            now: Epoch seconds; what is there already is touched.
        """
        added = 0
        with storage_errors():
            for name, data in objects.items():
                if not self._is_there(name, data, now):
                    added += self._write(name, data, now)
            _sync_folder(self._folder)
        return added

    def _is_there(self, name: str, data: bytes, now: float) -> bool:
        """Touches the object of a name. False where there is none, or a damaged one that has to be written anew."""
        path = self._folder / name
        with self._lock:
            try:
                os.utime(path, (now, now))
            except FileNotFoundError:
                return False
        return path.read_bytes() == data

    def _write(self, name: str, data: bytes, now: float) -> int:
        with self._lock:
            self._number += 1
            temporary = self._folder / f"{_TEMPORARY}{self._number}"
        path = self._folder / name
        try:
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.utime(temporary, (now, now))
            with self._lock:
                before = path.stat().st_size if path.exists() else 0
                temporary.rename(path)
                self.size_bytes += len(data) - before
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        return len(data) - before

    # ------------------------------------------------------------ reading

    def node(self, digest: str) -> Node:
        """The node of a digest.

        Raises:
            DataLoss: it is damaged or gone.
        """
        try:
            return decode(self._content(digest))
        except MalformedError as error:
            raise DataLoss("a node of a state cannot be read", digest) from error

    def index(self, digest: str) -> Index:
        """The index of a content above one piece.

        Raises:
            DataLoss: it is damaged or gone.
        """
        name = digest + INDEX_SUFFIX
        data = self._read(name)
        body, check = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
        try:
            if hashlib.sha256(body).digest() != check:
                raise MalformedError("checksum")
            return decode_index(body)
        except MalformedError as error:
            raise DataLoss("the index of a content is damaged", name) from error

    def find(self, digest: str) -> Stored | None:
        """A content by its digest; None where the tenant has no such content."""
        if (self._folder / (digest + INDEX_SUFFIX)).exists():
            return Stored(digest, self.index(digest).size_bytes, blob=True)
        try:
            size = (self._folder / digest).stat().st_size
        except FileNotFoundError:
            return None
        # What is larger without an index is a piece of another content.
        return Stored(digest, size, blob=True) if size <= PIECE_BYTES else None

    def pieces(self, content: Stored) -> tuple[str, ...]:
        """The names of a content's pieces, in order."""
        return (content.digest,) if content.size_bytes <= PIECE_BYTES else self.index(content.digest).pieces

    def piece(self, name: str) -> bytes:
        """One piece, checked against its name.

        Raises:
            DataLoss: it is damaged or gone.
        """
        return self._content(name)

    def verify(self, content: Stored) -> None:
        """Reads a whole content and compares it with its digest.

        Raises:
            DataLoss: they differ, or something is gone.
        """
        whole = hashlib.sha256()
        for name in self.pieces(content):
            whole.update(self._content(name))
        if whole.hexdigest() != content.digest:
            raise DataLoss("a content does not match its digest", content.digest)

    def content(self, content: Stored) -> bytes:
        """A whole content, checked against its digest; see `verify`."""
        data = b"".join(self._content(name) for name in self.pieces(content))
        if digest_of(data) != content.digest:
            raise DataLoss("a content does not match its digest", content.digest)
        return data

    def _content(self, name: str) -> bytes:
        data = self._read(name)
        if digest_of(data) != name:
            raise DataLoss("a stored object does not match its digest", name)
        return data

    def _read(self, name: str) -> bytes:
        with storage_errors():
            try:
                return (self._folder / name).read_bytes()
            except FileNotFoundError as error:
                raise DataLoss("a stored object is gone", name) from error

    # ------------------------------------------------------------ use and removal

    def touch(self, content: Stored, now: float) -> bool:
        """Marks a content as in use, all pieces of it; False where something of it is not there."""
        try:
            names = {name_of(content), *self.pieces(content)}
        except DataLoss:
            return False
        with storage_errors(), self._lock:
            for name in names:
                try:
                    os.utime(self._folder / name, (now, now))
                except FileNotFoundError:
                    return False
        return True

    def list(self) -> list[Object]:
        """All objects."""
        found: list[Object] = []
        with storage_errors():
            for entry in os.scandir(self._folder):
                if not entry.name.startswith(_TEMPORARY):
                    status = entry.stat()
                    found.append(Object(entry.name, status.st_size, status.st_mtime))
        return found

    def remove(self, objects: Iterable[Object], untouched_since: float) -> tuple[int, int]:
        """Removes objects that were not touched in the meantime; returns how many, and their bytes."""
        count = size = 0
        with storage_errors():
            for one in objects:
                path = self._folder / one.name
                with self._lock:
                    if path.stat().st_mtime >= untouched_since:
                        continue
                    path.unlink()
                    self.size_bytes -= one.size_bytes
                count += 1
                size += one.size_bytes
        return count, size


def placed(value: Value | None, objects: dict[str, bytes]) -> Value | None:
    """The form in which a value lies in a tree; adds the objects that have to be stored beside it."""
    if not isinstance(value, Inline) or len(value.data) <= INLINE_BYTES:
        return value
    pieces = list(pieces_of(value.data))
    names = tuple(digest_of(piece) for piece in pieces)
    objects.update(zip(names, pieces, strict=True))
    content = Stored(digest_of(value.data), len(value.data), blob=False)
    if len(pieces) > 1:
        objects.update(index_object(content.digest, Index(content.size_bytes, names)))
    return content


def index_object(digest: str, index: Index) -> dict[str, bytes]:
    """The object that holds the index of a content, with a checksum, because its name is the content's digest."""
    body = encode_index(index)
    return {digest + INDEX_SUFFIX: body + hashlib.sha256(body).digest()}


def _sync_folder(folder: Path) -> None:
    """Makes the names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
