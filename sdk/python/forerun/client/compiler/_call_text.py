"""The calls of an LLMCompiler plan: where one ends, and what its values are.

Values are those of JSON or of Python (single quotes, True, None); a reference may stand bare or inside a string. The
grammar is the platform's (forerun.core.plan.intake.llmcompiler), which a contract test compares.
"""

from __future__ import annotations

import re
from typing import Final

from forerun.client._exact import JsonValue, NotExact, parse_prefix
from forerun.client._json import JSON_DEPTH
from forerun.client._references import REFERENCE

_QUOTED: Final = re.compile(r"'((?:[^'\\\n]|\\.)*)'")
_KEYWORD: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)[ \t]*=(?!=)")
_WORD: Final = re.compile(r"[A-Za-z_]+")
_WORDS: Final[dict[str, bool | None]] = {
    "true": True,
    "True": True,
    "false": False,
    "False": False,
    "null": None,
    "None": None,
}
_STOPS: Final = re.compile(r"[\"'()\[\]{}\\\n]")


class CallScanner:
    """Finds the bracket that closes a call, over lines and pieces; every character is looked at once."""

    __slots__ = ("_depth", "_position", "_quote")

    def __init__(self) -> None:
        self._position = 0
        self._depth = 1
        self._quote = ""

    def shift(self, by: int) -> None:
        """The text before the call is gone."""
        self._position -= by

    def end(self, text: str, start: int) -> int | None:
        """The position behind the bracket, or None while it is missing."""
        self._position = max(self._position, start)
        if self._depth == 0:
            return self._position
        while (stop := _STOPS.search(text, self._position)) is not None:
            char = stop[0]
            if char == "\\":
                if stop.end() == len(text):
                    self._position = stop.start()
                    return None
                self._position = stop.end() + 1
                continue
            self._position = stop.end()
            if self._quote and char == "\n":
                self._depth = 0  # no string goes over lines: the parser says so
                self._position = stop.start()
                return self._position
            if self._takes(char):
                return self._position
        self._position = max(self._position, len(text))
        return None

    def _takes(self, char: str) -> bool:
        """Counts a bracket or a quote; True where it closes the call."""
        if self._quote:
            if char == self._quote:
                self._quote = ""
        elif char in "\"'":
            self._quote = char
        elif char in "([{":
            self._depth += 1
        elif char in ")]}":
            self._depth -= 1
        return self._depth == 0


class CallText:
    """Parses the values between the brackets of one call.

    Args:
        text: The line, or the lines over which the call goes.
        position: Behind the opening bracket; afterwards behind the closing one.
    """

    def __init__(self, text: str, position: int) -> None:
        self._text = text
        self.position = position

    def arguments(self) -> tuple[list[JsonValue], dict[str, JsonValue]]:
        """The values by position and by name, up to and with the closing bracket.

        Raises:
            NotExact: something is no value.
        """
        values: list[JsonValue] = []
        named: dict[str, JsonValue] = {}
        if self._takes(")"):
            return values, named
        while True:
            self._skip()
            keyword = _KEYWORD.match(self._text, self.position)
            if keyword is not None:
                if keyword[1] in named:
                    raise NotExact(f"{keyword[1]} is given twice")
                self.position = keyword.end()
                named[keyword[1]] = self._value(JSON_DEPTH)
            elif named:
                raise NotExact("a value by position after one by name")
            else:
                values.append(self._value(JSON_DEPTH))
            if self._takes(")"):
                return values, named
            self._expects(",")

    def _value(self, levels_left: int) -> JsonValue:
        self._skip()
        char = self._text[self.position : self.position + 1]
        if char == "$":
            return self._matched(REFERENCE, "a reference has the form $1.path[0]")[0]
        if char == "'":
            return self._single_quoted()
        if char in "[{" and char:
            if levels_left == 0:
                raise NotExact(f"nested deeper than JSON_DEPTH ({JSON_DEPTH} levels)")
            self.position += 1
            return self._list(levels_left - 1) if char == "[" else self._object(levels_left - 1)
        word = _WORD.match(self._text, self.position)
        if word is not None and word[0] in _WORDS:
            self.position = word.end()
            return _WORDS[word[0]]
        value, self.position = parse_prefix(self._text, self.position)
        return value

    def _list(self, levels_left: int) -> JsonValue:
        found: list[JsonValue] = []
        if self._takes("]"):
            return found
        while True:
            found.append(self._value(levels_left))
            if self._takes("]"):
                return found
            self._expects(",")

    def _object(self, levels_left: int) -> JsonValue:
        found: dict[str, JsonValue] = {}
        if self._takes("}"):
            return found
        while True:
            self._skip()
            if self._text[self.position : self.position + 1] not in {'"', "'"}:
                raise self._wrong("a key in quotes")
            key = self._value(levels_left)
            assert isinstance(key, str)  # it began with a quote
            if key in found:
                raise NotExact(f"key {key[:40]!r} occurs twice in one object")
            self._expects(":")
            found[key] = self._value(levels_left)
            if self._takes("}"):
                return found
            self._expects(",")

    def _single_quoted(self) -> JsonValue:
        inside = self._matched(_QUOTED, "a string ends on its line")[1]
        as_json = re.sub(r"\\.|\"", lambda found: {'"': '\\"', "\\'": "'"}.get(found[0], found[0]), inside)
        return parse_prefix(f'"{as_json}"')[0]

    def _matched(self, pattern: re.Pattern[str], otherwise: str) -> re.Match[str]:
        found = pattern.match(self._text, self.position)
        if found is None:
            raise NotExact(f"{self._text[self.position : self.position + 40]!r}: {otherwise}")
        self.position = found.end()
        return found

    def _takes(self, char: str) -> bool:
        self._skip()
        taken = self._text.startswith(char, self.position)
        self.position += taken
        return taken

    def _expects(self, char: str) -> None:
        if not self._takes(char):
            raise self._wrong(repr(char))

    def _wrong(self, expected: str) -> NotExact:
        found = self._text[self.position : self.position + 20]
        return NotExact(f"found {found!r}, expected {expected}")

    def _skip(self) -> None:
        while self.position < len(self._text) and self._text[self.position] in " \t\r\n":
            self.position += 1
