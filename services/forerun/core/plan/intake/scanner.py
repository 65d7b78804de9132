"""Finds where a JSON value ends in text that arrives in pieces. Whether it is one is for the parser to say."""

from __future__ import annotations

import re

_IN_STRING = re.compile(r'[\\"]')
_OUTSIDE = re.compile(r'["{}\[\]]')
_AFTER_SCALAR = re.compile(r"[\s,\]}]")


class Scanner:
    """Scans one value; every character is looked at once, however small the pieces."""

    __slots__ = ("_depth", "_in_string", "_position", "_start")

    def __init__(self, start: int) -> None:
        self._start = start
        self._position = start
        self._depth = 0
        self._in_string = False

    def shift(self, by: int) -> None:
        """The text before the value, or some of it, is gone."""
        self._start -= by
        self._position -= by

    def end(self, text: str) -> int | None:
        """The position behind the value, or None while it goes on. `text` is all that has arrived so far."""
        if self._position == self._start and self._start < len(text) and text[self._start] not in '"{[':
            found = _AFTER_SCALAR.search(text, self._start)
            return None if found is None else found.start()
        while True:
            found = (_IN_STRING if self._in_string else _OUTSIDE).search(text, self._position)
            if found is None:
                self._position = max(self._position, len(text))
                return None
            if found[0] == "\\":
                if found.end() == len(text):
                    self._position = found.start()
                    return None
                self._position = found.end() + 1
                continue
            self._position = found.end()
            if found[0] == '"':
                self._in_string = not self._in_string
            else:
                self._depth += 1 if found[0] in "{[" else -1
            if self._depth <= 0 and not self._in_string:
                return self._position
