"""The plan of a model as its text arrives, in the format of LLMCompiler.

    Thought: two look-ups and their ratio
    1. search("Mont Blanc height", limit=3)
    2. search(query="Eiffel tower height")
    3. divide($1[0].metres, $2[0].metres)
    4. join()<END_OF_PLAN>

A task is handed on with its line, so that nothing starts which the rest of the line would make something else. Nothing
is repaired: what is no plan, is cut off, or goes on after its end is a typed problem that says where.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from forerun.client._exact import JsonValue, NotExact
from forerun.client.compiler._call_text import CallScanner, CallText

END_OF_PLAN: Final = "<END_OF_PLAN>"
"""Ends a plan; also the text at which a model is to stop."""
_HEAD: Final = re.compile(r"[ \t]*(?:([0-9]{1,9})\.[ \t]*)?([A-Za-z_][A-Za-z0-9_.-]*)[ \t]*\(")
_TAIL: Final = re.compile(r"[ \t\r]*(?:#[^\n<]*)?(<END_OF_PLAN>)?[ \t\r]*\n?\Z")
_THOUGHT: Final = re.compile(r"[ \t]*(?:[0-9]{1,9}\.[ \t]*)?Thought:")
_END: Final = re.compile(r"\s*<END_OF_PLAN>\s*\Z")

Parameters = Callable[[str], Sequence[str] | None]
"""The names of a tool's parameters in order, or None where they are not known."""


class PlanProblem(Exception):
    """What arrives is no plan.

    Attributes:
        reason: `truncated`, `changed`, `syntax`, `unknown_parameters` or `too_large`.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """A call of a plan.

    Attributes:
        number: As the plan counts.
        tool: The tool.
        arguments: With references as they were written.
    """

    number: int
    tool: str
    arguments: dict[str, JsonValue]


class PlanReader:
    """Reads one plan.

    Args:
        parameters_of: Names values that are given by position.
        after: The last number that is taken; those of this plan are higher.
        most_chars: Longest plan.

    Attributes:
        thoughts: What the planner thought on the way.
        line: Where it is.
    """

    def __init__(self, parameters_of: Parameters, *, after: int = 0, most_chars: int = 64_000) -> None:
        self.thoughts: list[str] = []
        self.line = 1
        self._parameters_of = parameters_of
        self._last = after
        self._chars_left = most_chars
        self._most_chars = most_chars
        self._text = ""
        self._call = CallScanner()
        self._joined = False
        self._ended = False
        self._failed: PlanProblem | None = None

    @property
    def complete(self) -> bool:
        """`join()` or the end mark has arrived."""
        return self._joined or self._ended

    def feed(self, text: str) -> list[PlannedCall]:
        """Takes the next characters; the calls that are complete by them.

        Raises:
            PlanProblem: it is no plan. Every later call raises it again.
        """
        return self._guarded(lambda: self._read(text))

    def finish(self) -> list[PlannedCall]:
        """No more will arrive; the last calls.

        Raises:
            PlanProblem: `truncated`: the end of the plan is missing.
        """
        return self._guarded(self._rest)

    def _guarded(self, read: Callable[[], list[PlannedCall]]) -> list[PlannedCall]:
        if self._failed is not None:
            raise self._failed
        try:
            return read()
        except PlanProblem as problem:
            self._failed = problem
            raise

    def _read(self, text: str) -> list[PlannedCall]:
        self._chars_left -= len(text)
        if self._chars_left < 0:
            raise PlanProblem("too_large", f"the plan has more than {self._most_chars} characters (plan_chars)")
        self._text += text
        found: list[PlannedCall] = []
        start = 0
        while (end := self._line_end(start)) is not None:
            line = self._text[start:end]
            self._take(line, found)
            self.line += line.count("\n")
            start = end
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
        self._call = CallScanner()
        return newline + 1

    def _take(self, line: str, found: list[PlannedCall]) -> None:
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
        call = CallText(line, head.end())
        try:
            values, named = call.arguments()
        except NotExact as error:
            raise self._wrong("syntax", str(error)) from error
        tail = _TAIL.match(line, call.position)
        if tail is None:
            raise self._wrong("syntax", f"{line[call.position :].strip()[:40]!r} follows a call")
        if head[2] == "join":
            self._joined = True
        elif head[1] is None:
            raise self._wrong("syntax", f"the call of {head[2]} has no number")
        else:
            found.append(self._planned(int(head[1]), head[2], values, named))
        self._ended = tail[1] is not None

    def _planned(self, number: int, tool: str, values: list[JsonValue], named: dict[str, JsonValue]) -> PlannedCall:
        if number <= self._last:
            raise self._wrong("changed", f"number {number} comes after {self._last}; numbers only go up")
        self._last = number
        arguments = dict(zip(self._names(tool, len(values)), values, strict=True))
        twice = next((name for name in named if name in arguments), None)
        if twice is not None:
            raise self._wrong("syntax", f"{tool} is given {twice} twice")
        return PlannedCall(number, tool, arguments | named)

    def _names(self, tool: str, count: int) -> Sequence[str]:
        if not count:
            return ()
        names = self._parameters_of(tool)
        if names is None:
            raise self._wrong("unknown_parameters", f"the parameters of {tool} are not known; write them as name=value")
        if count > len(names):
            raise self._wrong("unknown_parameters", f"{tool} takes {len(names)} values and is given {count}")
        return names[:count]

    def _rest(self) -> list[PlannedCall]:
        found: list[PlannedCall] = []
        line, self._text = self._text, ""
        if line.strip():
            if not self.complete and not self._whole(line):
                raise self._wrong("truncated", f"the plan is cut off at {line.strip()[-40:]!r}")
            self._take(line, found)
        if not self.complete:
            raise self._wrong("truncated", f"the plan is cut off: neither join() nor {END_OF_PLAN} ends it")
        return found

    def _whole(self, line: str) -> bool:
        """Whether a last line without a line end may be what it seems to be."""
        head = _HEAD.match(line)
        if head is None or _THOUGHT.match(line):
            return _END.match(line) is not None
        return self._call.end(line, head.end()) is not None

    def _wrong(self, reason: str, message: str) -> PlanProblem:
        return PlanProblem(reason, f"line {self.line} of the plan: {message}")
