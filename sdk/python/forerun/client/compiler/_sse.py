"""Server-sent events, as far as model servers use them: the data of each event, from bytes in pieces of any size."""

from __future__ import annotations

import codecs
from typing import Final

EVENT_CHARS: Final = 1024 * 1024
"""Most characters of one event."""


class SseError(ValueError):
    """What arrives is no stream of events."""


class SseReader:
    """Reads one stream."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._text = ""
        self._data: list[str] = []
        self._chars = 0

    def feed(self, piece: bytes) -> list[str]:
        """Takes the next bytes; the data of the events that are complete by them.

        Raises:
            SseError: no UTF-8, or an event that is too large.
        """
        try:
            self._text += self._decoder.decode(piece)
        except UnicodeDecodeError as error:
            raise SseError("the stream is no UTF-8") from error
        found: list[str] = []
        # The last line may go on, and a "\r" at the end may be the first half of a line end.
        whole, self._text = self._split()
        for line in whole:
            self._take(line, found)
        self._bound(len(self._text))
        return found

    def _split(self) -> tuple[list[str], str]:
        text, held = (self._text[:-1], "\r") if self._text.endswith("\r") else (self._text, "")
        lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        return lines[:-1], lines[-1] + held

    def _take(self, line: str, found: list[str]) -> None:
        if not line:
            if self._data:
                found.append("\n".join(self._data))
            self._data, self._chars = [], 0
            return
        name, _, value = line.partition(":")
        if name == "data":
            self._data.append(value.removeprefix(" "))
            self._chars += len(value)
            self._bound(self._chars)

    @staticmethod
    def _bound(chars: int) -> None:
        if chars > EVENT_CHARS:
            raise SseError(f"an event of more than {EVENT_CHARS} characters (EVENT_CHARS)")
