"""Server-sent events, as the HTML standard has them: an incremental reader of bytes, bounded."""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass, field
from typing import Final

_LINE_END: Final = re.compile("[\r\n]")


class EventTooLarge(Exception):
    """One event is longer than its bound."""


@dataclass(slots=True)
class EventReader:
    """Takes bytes in any pieces and gives the data of complete events.

    Fields other than `data` say nothing about a completion and are left out, comments too.

    Attributes:
        max_chars: Longest event, in characters.
    """

    max_chars: int
    _decoder: codecs.IncrementalDecoder = field(
        default_factory=lambda: codecs.getincrementaldecoder("utf-8-sig")("replace")
    )
    _line: list[str] = field(default_factory=list)
    _line_chars: int = 0
    _data: list[str] = field(default_factory=list)
    _data_chars: int = 0
    _after_return: bool = False

    def feed(self, data: bytes) -> list[str]:
        """Events that these bytes complete.

        Raises:
            EventTooLarge: one of them has no end within the bound.
        """
        text = self._decoder.decode(data)
        events: list[str] = []
        start = 0
        for end in _LINE_END.finditer(text):
            at = end.start()
            if at == start and end[0] == "\n" and self._after_return:
                start = at + 1  # the second half of \r\n
                self._after_return = False
                continue
            self._hold(text[start:at])
            start = at + 1
            self._after_return = end[0] == "\r"
            self._end_of_line(events)
        if start < len(text):
            self._hold(text[start:])
            self._after_return = False
        return events

    def _end_of_line(self, events: list[str]) -> None:
        line = "".join(self._line)
        self._line.clear()
        self._line_chars = 0
        if not line:
            if self._data:
                events.append("\n".join(self._data))
            self._data.clear()
            self._data_chars = 0
            return
        name, _, value = line.partition(":")
        if name == "data":
            self._data.append(value.removeprefix(" "))
            self._data_chars += len(value)

    def _hold(self, part: str) -> None:
        self._line.append(part)
        self._line_chars += len(part)
        if self._line_chars + self._data_chars > self.max_chars:
            raise EventTooLarge
