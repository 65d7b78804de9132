"""Versions of lines, as the log keeps them.

A version's id is the SHA-256 of its record, so that a record proves itself, and no two commits share an id.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Final

from forerun.snapshots.engine.nodes import Ref

DIGEST_PREFIX: Final = "sha256:"

_FORMAT: Final = 1
_HEX_CHARS: Final = 64


class DamagedRecordError(ValueError):
    """A record of the log that does not match its id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One committed state of a line.

    Attributes:
        id: `sha256:` and the hex digest of its record.
        line: The line whose head it became.
        branch: The branch that was committed.
        parent: The version before it; empty for the first.
        root: The tree of its state; None is the empty state.
        at_seconds: Epoch seconds of the commit.
        added_bytes: Bytes that the commit stored and that were not there before.
    """

    id: str
    line: str
    branch: str
    parent: str
    root: Ref | None
    at_seconds: float
    added_bytes: int


def new_version(
    *, line: str, branch: str, parent: str, root: Ref | None, at_seconds: float, added_bytes: int
) -> tuple[Version, bytes]:
    """A version with its record: one line of text, ending in a line break."""
    fields = {
        "format": _FORMAT,
        "line": line,
        "branch": branch,
        "parent": parent,
        "root": None if root is None else [root.digest, root.entries],
        "at_seconds": at_seconds,
        "added_bytes": added_bytes,
    }
    text = json.dumps(fields, ensure_ascii=True, separators=(",", ":")).encode()
    digest = hashlib.sha256(text).hexdigest()
    version = Version(
        id=DIGEST_PREFIX + digest,
        line=line,
        branch=branch,
        parent=parent,
        root=root,
        at_seconds=at_seconds,
        added_bytes=added_bytes,
    )
    return version, digest.encode() + b" " + text + b"\n"


def parse_record(record: bytes) -> Version:
    """The version of a record without its line break.

    Raises:
        DamagedRecordError: the record does not match its id, or is of a form that is not known here.
    """
    digest, text = record[:_HEX_CHARS], record[_HEX_CHARS + 1 :]
    if hashlib.sha256(text).hexdigest().encode() != digest or record[_HEX_CHARS : _HEX_CHARS + 1] != b" ":
        raise DamagedRecordError("a record of the log does not match its id")
    fields = json.loads(text)
    if fields["format"] != _FORMAT:
        raise DamagedRecordError(f"a record of the log has the unknown form {fields['format']}")
    root = fields["root"]
    return Version(
        id=DIGEST_PREFIX + digest.decode(),
        line=fields["line"],
        branch=fields["branch"],
        parent=fields["parent"],
        root=None if root is None else Ref(root[0], root[1]),
        at_seconds=fields["at_seconds"],
        added_bytes=fields["added_bytes"],
    )
