"""The text format of LLMCompiler planners.

    Thought: two look-ups and their ratio
    1. search("Mont Blanc height", limit=3)
    2. search(query="Eiffel tower height")
    3. divide($1[0].metres, $2[0].metres)
    4. join()<END_OF_PLAN>

Values are those of JSON or of Python (single quotes, True, None); a reference may stand bare or inside a string. A call
is complete with its line, so that nothing starts which the rest of the line would make something else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

from forerun.core import limits
from forerun.core.canonical import CanonicalError, JsonValue, parse_prefix
from forerun.core.plan.intake.port import ArrivalError, Guard
from forerun.core.plan.model import Task
from forerun.core.plan.references import REFERENCE

_HEAD = re.compile(r"[ \t]*(?:([0-9]{1,9})\.[ \t]*)?([A-Za-z_][A-Za-z0-9_.-]*)[ \t]*\(")
_TAIL = re.compile(r"[ \t\r]*(?:#[^\n<]*)?(<END_OF_PLAN>)?[ \t\r]*\n?\Z")
_THOUGHT = re.compile(r"[ \t]*(?:[0-9]{1,9}\.[ \t]*)?Thought:")
_END = re.compile(r"\s*<END_OF_PLAN>\s*\Z")
_QUOTED = re.compile(r"'((?:[^'\\\n]|\\.)*)'")
_KEYWORD = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)[ \t]*=(?!=)")
_WORD = re.compile(r"[A-Za-z_]+")
_WORDS: Final[dict[str, bool | None]] = {
    "true": True,
    "True": True,
    "false": False,
    "False": False,
    "null": None,
    "None": None,
}
_STOPS = re.compile(r"[\"'()\[\]{}\\\n]")

Parameters = Callable[[str], Sequence[str] | None]
"""The names of a tool's parameters in order, or None where they are not known."""


class LlmCompilerReader:
    """Reads one plan.

    Attributes:
        thoughts: What the planner thought on the way.
    """

    def __init__(self, parameters_of: Parameters) -> None:
        """Begins.

        Args:
            parameters_of: Names values that a planner gives by position.
        """
        self.thoughts: list[str] = []
        self._parameters_of = parameters_of
        self._guard = Guard()
        self._text = ""
        self._line = 1
        self._call = _CallScanner()
        self._last = 0
        self._joined = False
        self._ended = False

    @property
    def complete(self) -> bool:
        """`join()` or `<END_OF_PLAN>` has arrived."""
        return self._joined or self._ended

    def feed(self, text: str) -> list[Task]:
        """See `TextReader`."""
        return self._guard.taking(lambda: self._read(text))

    def finish(self) -> list[Task]:
        """See `TextReader`."""
        return self._guard.taking(self._rest)

    def _read(self, text: str) -> list[Task]:
        self._guard.arrive(len(text))
        self._text += text
        found: list[Task] = []
        start = 0
        while (end := self._line_end(start)) is not None:
            line = self._text[start:end]
            self._take(line, found)
            self._line += line.count("\n")
            start = end
        # Once for each piece and not for each line: a whole file may come as one piece.
        self._text = self._text[start:]
        self._call.shift(start)
        return found

    def _line_end(self, start: int) -> int | None:
        """The end of the line, or of the lines over which a call goes."""
        head = _HEAD.match(self._text, start)
        after: int | None = start
        if head is not None and _THOUGHT.match(self._text, start) is None:
            after = self._call.end(self._text, head.end())
        newline = -1 if after is None else self._text.find("\n", after)
        if newline < 0:
            return None
        self._call = _CallScanner()
        return newline + 1

    def _take(self, line: str, found: list[Task]) -> None:
        if not line.strip():
            return
        if self._ended or (self._joined and not _END.match(line)):
            raise self._wrong("changed", "text after the end of the plan")
        if _END.match(line):
            self._ended = True
            return
        if _THOUGHT.match(line):
            self.thoughts.append(line.partition("Thought:")[2].strip())
            return
        head = _HEAD.match(line)
        if head is None:
            raise self._wrong("syntax", f"{line.strip()[:60]!r} is neither a thought nor a call")
        call = _Call(line, head.end())
        try:
            values, named = call.arguments()
        except CanonicalError as error:
            raise self._wrong(error.reason, str(error)) from error
        tail = _TAIL.match(line, call.position)
        if tail is None:
            raise self._wrong("syntax", f"{line[call.position :].strip()[:40]!r} follows a call")
        if head[2] == "join":
            self._joined = True
        elif head[1] is None:
            raise self._wrong("syntax", f"the call of {head[2]} has no number")
        else:
            found.append(self._task(int(head[1]), head[2], values, named))
        self._ended = tail[1] is not None

    def _task(self, number: int, tool: str, values: list[JsonValue], named: dict[str, JsonValue]) -> Task:
        if number <= self._last:
            raise self._wrong("changed", f"number {number} comes after {self._last}; numbers only go up")
        self._last = number
        arguments = dict(zip(self._names(tool, len(values)), values, strict=True))
        twice = next((name for name in named if name in arguments), None)
        if twice is not None:
            raise self._wrong("duplicate_key", f"{tool} is given {twice} twice")
        return Task(id=str(number), tool=tool, arguments={**arguments, **named})

    def _names(self, tool: str, count: int) -> Sequence[str]:
        if not count:
            return ()
        names = self._parameters_of(tool)
        if names is None:
            raise self._wrong("unknown_parameters", f"the parameters of {tool} are not known; write them as name=value")
        if count > len(names):
            raise self._wrong("unknown_parameters", f"{tool} takes {len(names)} values and is given {count}")
        return names[:count]

    def _rest(self) -> list[Task]:
        found: list[Task] = []
        line, self._text = self._text, ""
        if line.strip():
            if not self.complete and not self._whole(line):
                raise self._wrong("truncated", f"the plan is cut off at {line.strip()[-40:]!r}")
            self._take(line, found)
        if not self.complete:
            raise self._wrong("truncated", "the plan is cut off: neither join() nor <END_OF_PLAN> ends it")
        return found

    def _whole(self, line: str) -> bool:
        """Whether a last line without a line end may be what it seems to be."""
        head = _HEAD.match(line)
        if head is None or _THOUGHT.match(line):
            return _END.match(line) is not None
        return self._call.end(line, head.end()) is not None

    def _wrong(self, reason: str, message: str) -> ArrivalError:
        return ArrivalError(reason, f"line {self._line} of the plan: {message}")


class _CallScanner:
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
            if self._quote:
                if char == "\n":
                    self._depth = 0  # no string goes over lines: the parser says so
                    self._position = stop.start()
                    return self._position
                if char == self._quote:
                    self._quote = ""
            elif char in "\"'":
                self._quote = char
            elif char in "([{":
                self._depth += 1
            elif char in ")]}":
                self._depth -= 1
                if self._depth == 0:
                    return self._position
        self._position = max(self._position, len(text))
        return None


class _Call:
    """Parses the values between the brackets of one call."""

    def __init__(self, text: str, position: int) -> None:
        self._text = text
        self.position = position

    def arguments(self) -> tuple[list[JsonValue], dict[str, JsonValue]]:
        """The values by position and by name, up to and with the closing bracket.

        Raises:
            CanonicalError: Something is no value.
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
                    raise CanonicalError("duplicate_key", f"{keyword[1]} is given twice")
                self.position = keyword.end()
                named[keyword[1]] = self._value(limits.JSON_DEPTH)
            elif named:
                raise CanonicalError("syntax", "a value by position after one by name")
            else:
                values.append(self._value(limits.JSON_DEPTH))
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
                raise CanonicalError("too_deep", f"nested deeper than JSON_DEPTH ({limits.JSON_DEPTH} levels)")
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
                raise CanonicalError("duplicate_key", f"key {key[:40]!r} occurs twice in one object")
            self._expects(":")
            found[key] = self._value(levels_left)
            if self._takes("}"):
                return found
            self._expects(",")

    def _single_quoted(self) -> JsonValue:
        inside = self._matched(_QUOTED, "a string ends on its line")[1]
        as_json = re.sub(r"\\.|\"", lambda found: {'"': '\\"', "\\'": "'"}.get(found[0], found[0]), inside)
        value, _ = parse_prefix(f'"{as_json}"')
        return value

    def _matched(self, pattern: re.Pattern[str], otherwise: str) -> re.Match[str]:
        found = pattern.match(self._text, self.position)
        if found is None:
            raise CanonicalError("syntax", f"{self._text[self.position : self.position + 40]!r}: {otherwise}")
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

    def _wrong(self, expected: str) -> CanonicalError:
        found = self._text[self.position : self.position + 20]
        return CanonicalError("syntax", f"found {found!r}, expected {expected}")

    def _skip(self) -> None:
        while self.position < len(self._text) and self._text[self.position] in " \t\r\n":
            self.position += 1
