"""Values of a state, and how large contents are cut into pieces.

A content above the first piece's size is kept as pieces and an index of them. Pieces end at fixed positions, so two
contents with a common beginning share its pieces: a history that grows by 20 KB a step costs little more than 20 KB a
step, although it is written as a whole each time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from forerun.core import limits

INLINE_BYTES: Final = 256
"""Values up to this size lie in the node of the tree that names them."""

PIECE_BYTES: Final = 32 * limits.KIB
"""Size of the pieces in the first `SMALL_PIECES_BYTES` of a content. An append rewrites half of one on average."""

LARGE_PIECE_BYTES: Final = 256 * limits.KIB
"""Size of the pieces beyond, so that a content of 64 MiB has hundreds of pieces and not thousands."""

SMALL_PIECES_BYTES: Final = 8 * limits.MIB


@dataclass(frozen=True, slots=True)
class Inline:
    """A value given as bytes. In a tree at most `INLINE_BYTES`; in a branch of any size until it is committed."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Stored:
    """A value whose content is kept apart.

    Attributes:
        digest: SHA-256 of the content, in hex.
        size_bytes: Its length.
        blob: True where the writer gave it by digest, and a reader is answered so.
    """

    digest: str
    size_bytes: int
    blob: bool


Value = Inline | Stored


def digest_of(data: bytes) -> str:
    """The hex SHA-256 under which bytes are kept."""
    return hashlib.sha256(data).hexdigest()


def piece_end(position: int) -> int:
    """Where the piece that holds the byte at `position` ends, if the content goes on so far."""
    size = PIECE_BYTES if position < SMALL_PIECES_BYTES else LARGE_PIECE_BYTES
    return (position // size + 1) * size


def pieces_of(data: bytes) -> Iterator[bytes]:
    """Cuts a whole content into its pieces; an empty content is one empty piece."""
    position = 0
    while True:
        end = piece_end(position)
        yield data[position:end]
        if end >= len(data):
            return
        position = end


class Cutter:
    """Cuts a content that arrives bit by bit, holding no more than a piece.

    Attributes:
        size_bytes: Bytes seen so far.
    """

    __slots__ = ("_buffer", "_hash", "_start", "size_bytes")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._hash = hashlib.sha256()
        self._start = 0
        self.size_bytes = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Takes the next bytes and returns the pieces that they complete."""
        self._hash.update(data)
        self._buffer += data
        self.size_bytes += len(data)
        complete: list[bytes] = []
        while (length := piece_end(self._start) - self._start) < len(self._buffer):
            complete.append(bytes(self._buffer[:length]))
            del self._buffer[:length]
            self._start += length
        return complete

    def finish(self) -> tuple[bytes, str]:
        """The last piece and the hex digest of the whole content."""
        return bytes(self._buffer), self._hash.hexdigest()
