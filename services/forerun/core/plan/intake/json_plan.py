"""Plans in JSON: `{"failure": "isolate", "tasks": [{"id": "1", "tool": "search", "arguments": {"q": "..."}}]}`.

`tasks` is the last key, so that everything which holds for all tasks is known before the first one starts. A task may
have `after` (ids), `timeout_seconds` and `failure`. A task without an id is named by its number, from 1.
"""

from __future__ import annotations

from decimal import Decimal
from enum import Enum
from typing import Final

from forerun.core.canonical import CanonicalError, JsonValue, parse_prefix, skip_whitespace
from forerun.core.plan.intake.port import ArrivalError, Guard
from forerun.core.plan.intake.scanner import Scanner
from forerun.core.plan.model import FailurePolicy, Task

_TASK_FIELDS: Final = frozenset({"id", "tool", "arguments", "after", "timeout_seconds", "failure"})


class _State(Enum):
    """What comes next."""

    START = "'{'"
    KEY = "a key in quotes"
    COLON = "':'"
    VALUE = "a value"
    AFTER_VALUE = "',' (tasks is the last key of a plan, and every plan has it)"
    TASKS = "'['"
    FIRST_TASK = "a task or ']'"
    TASK = "a task"
    AFTER_TASK = "',' or ']'"
    TAIL = "'}' (tasks is the last key of a plan)"
    END = "nothing more"


_VALUES: Final = frozenset({_State.KEY, _State.VALUE, _State.FIRST_TASK, _State.TASK})
_TOKENS: Final = {
    (_State.START, "{"): _State.KEY,
    (_State.COLON, ":"): _State.VALUE,
    (_State.AFTER_VALUE, ","): _State.KEY,
    (_State.TASKS, "["): _State.FIRST_TASK,
    (_State.FIRST_TASK, "]"): _State.TAIL,
    (_State.AFTER_TASK, ","): _State.TASK,
    (_State.AFTER_TASK, "]"): _State.TAIL,
    (_State.TAIL, "}"): _State.END,
}


class JsonPlanReader:
    """Reads one plan.

    Attributes:
        failure: The plan's failure policy, where it says one. Known before the first task.
    """

    def __init__(self) -> None:
        self.failure: FailurePolicy | None = None
        self._guard = Guard()
        self._text = ""  # what is not consumed yet
        self._consumed = 0
        self._state = _State.START
        self._scanner: Scanner | None = None
        self._key = ""
        self._seen: set[str] = set()
        self._count = 0

    @property
    def complete(self) -> bool:
        """The closing brace of the plan has arrived."""
        return self._state is _State.END

    def feed(self, text: str) -> list[Task]:
        """See `TextReader`."""
        return self._guard.taking(lambda: self._read(text))

    def finish(self) -> list[Task]:
        """See `TextReader`."""
        return self._guard.taking(self._ended)

    def _ended(self) -> list[Task]:
        if self._state is not _State.END:
            raise ArrivalError("truncated", f"the plan is cut off after character {self._at(len(self._text))}")
        return []

    def _read(self, text: str) -> list[Task]:
        self._guard.arrive(len(text))
        self._text += text
        found: list[Task] = []
        position = 0
        while True:
            if self._scanner is None:
                position = skip_whitespace(self._text, position)
                if position == len(self._text):
                    break
            after = self._step(position, found)
            if after is None:
                break
            position = after
        # Once for each piece and not for each task: a whole file may come as one piece.
        self._text = self._text[position:]
        self._consumed += position
        if self._scanner is not None:
            self._scanner.shift(position)
        return found

    def _step(self, position: int, found: list[Task]) -> int | None:
        """Takes one token or value at a position; None where it has not arrived whole."""
        following = None if self._scanner else _TOKENS.get((self._state, self._text[position]))
        if following is not None:
            self._state = _State.TASKS if self._state is _State.COLON and self._key == "tasks" else following
            return position + 1
        if self._state in _VALUES and (self._scanner or self._state is not _State.KEY or self._text[position] == '"'):
            return self._value(position, found)
        raise self._wrong(position)

    def _value(self, position: int, found: list[Task]) -> int | None:
        if self._scanner is None:
            self._scanner = Scanner(position)
        end = self._scanner.end(self._text)
        if end is None:
            return None
        value = self._parsed(position, end)
        self._scanner = None
        if self._state is _State.KEY:
            self._named(value)
        elif self._state is _State.VALUE:
            self._option(value)
        else:
            self._count += 1
            found.append(task_of(value, self._count))
            self._state = _State.AFTER_TASK
        return end

    def _parsed(self, position: int, end: int) -> JsonValue:
        try:
            value, after = parse_prefix(self._text, position)
        except CanonicalError as error:
            at = self._at(position if error.offset is None else error.offset)
            raise ArrivalError(error.reason, f"the plan is no JSON near character {at}: {error}") from error
        if after != end:
            raise self._wrong(after)
        return value

    def _named(self, key: JsonValue) -> None:
        if key not in {"version", "failure", "tasks"} or not isinstance(key, str):
            raise ArrivalError("unsupported", f"a plan has failure, version and tasks, and no key {str(key)[:40]!r}")
        if key in self._seen:
            raise ArrivalError("duplicate_key", f"the plan says {key} twice")
        self._seen.add(key)
        self._key = key
        self._state = _State.COLON

    def _option(self, value: JsonValue) -> None:
        if self._key == "version" and value != 1:
            raise ArrivalError("unsupported", f"version {value!r} of the plan format is not known; this is version 1")
        if self._key == "failure":
            self.failure = _policy(value, "the plan")
        self._state = _State.AFTER_VALUE

    def _at(self, position: int) -> int:
        return self._consumed + position

    def _wrong(self, position: int) -> ArrivalError:
        found = self._text[position : position + 10]
        at = self._at(position)
        return ArrivalError("syntax", f"found {found!r} at character {at} of the plan, expected {self._state.value}")


def task_of(value: JsonValue, number: int) -> Task:
    """The task of one JSON object, the `number`th of its plan.

    Raises:
        ArrivalError: `refused`: it is none; the field is named.
    """
    if not isinstance(value, dict):
        raise ArrivalError("refused", f"task number {number} must be an object")
    name = value.get("id", str(number))
    if not isinstance(name, str):
        raise ArrivalError("refused", f"task number {number}: id must be a string")
    where = f"task {name[:40]}"
    unknown = sorted(set(value) - _TASK_FIELDS)
    if unknown:
        raise ArrivalError("refused", f"{where}: unknown field {unknown[0][:40]!r}; known are {', '.join(_FIELDS)}")
    tool, arguments, after = value.get("tool"), value.get("arguments", {}), value.get("after", [])
    if not isinstance(tool, str):
        raise ArrivalError("refused", f"{where}: tool must be a string")
    if not isinstance(arguments, dict):
        raise ArrivalError("refused", f"{where}: arguments must be an object")
    if not isinstance(after, list) or not all(isinstance(one, str) for one in after):
        raise ArrivalError("refused", f"{where}: after must be a list of ids")
    seconds = value.get("timeout_seconds")
    if seconds is not None and (isinstance(seconds, bool) or not isinstance(seconds, (int, Decimal))):
        raise ArrivalError("refused", f"{where}: timeout_seconds must be a number")
    return Task(
        id=name,
        tool=tool,
        arguments=arguments,
        after=tuple(one for one in after if isinstance(one, str)),
        timeout_seconds=None if seconds is None else float(seconds),
        on_failure=_policy(value["failure"], where) if "failure" in value else None,
    )


_FIELDS: Final = tuple(sorted(_TASK_FIELDS))


def _policy(value: JsonValue, where: str) -> FailurePolicy:
    known = [one.value for one in FailurePolicy]
    if not isinstance(value, str) or value not in known:
        raise ArrivalError("refused", f"{where}: failure must be one of {', '.join(known)}")
    return FailurePolicy(value)
