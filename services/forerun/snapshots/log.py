"""The log of one tenant's commits: what makes a version a version.

One record a line, each with its own checksum. A commit is done when its record is on disk, after everything that it
names. A crash while a record is being written leaves an unfinished last line, which is cut off when the log is opened:
nobody was told of that commit. Anything else that does not match its checksum is damage and is reported as such.
All methods block and belong on a worker thread.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from forerun.snapshots.engine.history import DamagedRecordError, Version, new_version, parse_record
from forerun.snapshots.objects import DataLoss, storage_errors

_NAME: Final = "commits.log"
_NEW_NAME: Final = "commits.log.new"


class CommitLog:
    """The log of one tenant.

    Args:
        folder: The tenant's folder; it exists.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / _NAME

    def load(self) -> list[Version]:
        """All versions, in the order of their commits; cuts off what a crash left unfinished.

        Raises:
            DataLoss: the log is damaged.
        """
        with storage_errors():
            (self._folder / _NEW_NAME).unlink(missing_ok=True)
            if not self._path.exists():
                self._path.touch()
                _sync(self._folder)
            data = self._path.read_bytes()
            whole = _finished(data)
            versions = [self._parsed(record) for record in whole.split(b"\n")[:-1]]
            if len(whole) < len(data):
                os.truncate(self._path, len(whole))
                _sync(self._path)
        return versions

    def _parsed(self, record: bytes) -> Version:
        try:
            return parse_record(record)
        except (DamagedRecordError, ValueError, KeyError) as error:
            raise DataLoss("a record in the log of commits is damaged", _NAME) from error

    def append(self, record: bytes) -> None:
        """Adds a record. Durable when it returns; after an error the log has to be loaded again."""
        with storage_errors(), self._path.open("ab", buffering=0) as file:
            if file.write(record) != len(record):
                raise OSError(None, "the record was not written as a whole")
            os.fsync(file.fileno())

    def rewrite(self, versions: Iterable[Version]) -> None:
        """Replaces the log by one that holds some of its versions only."""
        new = self._folder / _NEW_NAME
        with storage_errors():
            with new.open("wb") as file:
                for version in versions:
                    file.write(record_of(version))
                file.flush()
                os.fsync(file.fileno())
            new.rename(self._path)
            _sync(self._folder)


def record_of(version: Version) -> bytes:
    """The record from which a version came."""
    _, record = new_version(
        line=version.line,
        branch=version.branch,
        parent=version.parent,
        root=version.root,
        at_seconds=version.at_seconds,
        added_bytes=version.added_bytes,
    )
    return record


def _finished(data: bytes) -> bytes:
    """The part of a log that holds whole records.

    A record is text, so a last line without an end, or with zeros where the disk never got to, was being written.
    """
    end = data.rfind(b"\n") + 1
    last = data.rfind(b"\n", 0, end - 1) + 1 if end else 0
    return data[:last] if b"\0" in data[last:end] else data[:end]


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
