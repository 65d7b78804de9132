"""What is kept of a stream: all of it, or head and tail with the number of bytes between them."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from typing import Final

_LONGEST_CHARACTER: Final = 4
_INVALID: Final = re.compile("[\udc80-\udcff]")


@dataclass(frozen=True, slots=True)
class Captured:
    """A finished stream.

    Attributes:
        text: What was kept, as Unicode; a marker line stands where bytes were left out.
        total_bytes: Length of the stream.
        omitted_bytes: How many bytes were left out.
        replaced_bytes: Bytes that are no UTF-8, each shown as U+FFFD.
    """

    text: str
    total_bytes: int
    omitted_bytes: int
    replaced_bytes: int


class Capture:
    """Collects one stream in bounded memory.

    Args:
        keep_bytes: Bytes to keep, half from the head and half from the tail; None keeps everything.
    """

    def __init__(self, keep_bytes: int | None) -> None:
        self._head_bytes = keep_bytes // 2 if keep_bytes is not None else None
        self._tail_bytes = keep_bytes - keep_bytes // 2 if keep_bytes is not None else 0
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_held = 0
        self.total_bytes = 0

    def feed(self, chunk: bytes) -> None:
        """Takes the next bytes."""
        self.total_bytes += len(chunk)
        if self._head_bytes is None:
            self._head += chunk
            return
        room = self._head_bytes - len(self._head)
        if room > 0:
            self._head += chunk[:room]
            chunk = chunk[room:]
        if chunk:
            self._tail.append(chunk)
            self._tail_held += len(chunk)
            while self._tail and self._tail_held - len(self._tail[0]) >= self._tail_bytes:
                self._tail_held -= len(self._tail.popleft())

    def finish(self) -> Captured:
        """The stream as it will be reported. Cuts fall between characters."""
        tail = b"".join(self._tail)
        tail = tail[max(0, len(tail) - self._tail_bytes) :]
        omitted = self.total_bytes - len(self._head) - len(tail)
        if omitted == 0:
            text, replaced = _decode(bytes(self._head) + tail)
            return Captured(text, self.total_bytes, 0, replaced)
        head = _without_broken_end(bytes(self._head))
        tail = _without_broken_start(tail)
        omitted = self.total_bytes - len(head) - len(tail)
        (before, bad_before), (after, bad_after) = _decode(head), _decode(tail)
        text = f"{before}\n[... {omitted} bytes omitted ...]\n{after}"
        return Captured(text, self.total_bytes, omitted, bad_before + bad_after)


def _decode(data: bytes) -> tuple[str, int]:
    """UTF-8 with every invalid byte as one U+FFFD, and their number."""
    # Going over surrogates makes the number of marks the number of bytes, whatever decoder the reader would use.
    text = data.decode("utf-8", "surrogateescape")
    return _INVALID.subn("\ufffd", text)


def _without_broken_end(data: bytes) -> bytes:
    """Drops a last character that the cut has split."""
    for length in range(1, min(_LONGEST_CHARACTER, len(data) + 1)):
        lead = data[-length]
        if lead & 0xC0 == 0x80:
            continue
        needed = 4 if lead >= 0xF0 else 3 if lead >= 0xE0 else 2 if lead >= 0xC0 else 1
        return data[:-length] if needed > length else data
    return data


def _without_broken_start(data: bytes) -> bytes:
    """Drops the rest of a first character that the cut has split."""
    skip = 0
    while skip < min(_LONGEST_CHARACTER - 1, len(data)) and data[skip] & 0xC0 == 0x80:
        skip += 1
    return data[skip:]
