"""Recorded runs (one session a line, JSON) as events of the engine, step by step.

The order is the one of a live session: what the user said, the start of the model request, its message, its calls,
their results. Results that the recording interleaves with calls of the same message come after all of them.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from forerun.core.canonical import JsonValue
from forerun.predictor.engine.history import Asked, AssistantText, CallFinished, CallsAsked, Event, UserTurn

_ERROR_PREFIXES = ("Error", "error:")


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """What happened before one model step, and what the step brought.

    Attributes:
        before: Events that the prediction may use.
        text: The message's text; None where it has none.
        asked: Its calls; None where it asks for nothing.
        complete: False for what is left after the last step of the recording: nothing is known to follow.
    """

    before: tuple[Event, ...]
    text: AssistantText | None
    asked: CallsAsked | None
    complete: bool = True


@dataclass(frozen=True, slots=True)
class Recording:
    """One recorded session."""

    session: str
    task: str
    tools: tuple[str, ...]
    steps: tuple[RecordedStep, ...]


def read(path: Path) -> Iterator[Recording]:
    """Reads the sessions of a file of JSON lines, gzipped or not.

    Raises:
        ValueError: A line is no recorded session.
        OSError: The file cannot be read.
    """
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                yield _recording(json.loads(line, parse_float=Decimal))
            except (KeyError, TypeError, AttributeError, ValueError) as error:
                raise ValueError(f"line {number} is no recorded session: {error!r}") from error


def _recording(session: dict[str, JsonValue]) -> Recording:
    events = session["events"]
    if not isinstance(events, list):
        raise TypeError("events: must be an array")
    reader = _Reader()
    for event in events:
        if not isinstance(event, dict):
            raise TypeError("events: must hold objects")
        reader.take(event)
    reader.end_message()
    if reader.before:
        reader.steps.append(RecordedStep(tuple(reader.before), None, None, complete=False))
    name = str(session["session"])
    return Recording(name, str(session.get("task", name)), tuple(sorted(reader.tools)), tuple(reader.steps))


class _Reader:
    """Groups the events of one session into steps."""

    def __init__(self) -> None:
        self.steps: list[RecordedStep] = []
        self.before: list[Event] = []
        self.tools: set[str] = set()
        self._turn: int | None = None
        self._text: list[str] = []
        self._calls: list[tuple[str, Asked]] = []
        self._results: list[Event] = []
        self._keys: dict[str, tuple[int, int]] = {}
        self._heard_user = False

    def take(self, event: dict[str, JsonValue]) -> None:
        kind = event["type"]
        if kind == "user":
            self.end_message()
            self._heard_user = True
            self.before.append(UserTurn(_text(event.get("content"))))
        elif kind == "tool_result":
            self._result(event)
        elif kind in ("assistant", "tool_call"):
            turn = event["turn"]
            if not isinstance(turn, int):
                raise TypeError("turn: must be an integer")
            if turn != self._turn:
                self.end_message()
                self._turn = turn
            if kind == "assistant":
                self._text.append(_text(event.get("content")))
            else:
                self._call(event, turn)

    def _call(self, event: dict[str, JsonValue], turn: int) -> None:
        name, identifier = str(event["name"]), str(event["id"])
        self.tools.add(name)
        index = len(self._calls)
        self._calls.append((identifier, Asked(index, name, event["args"])))
        self._keys[identifier] = (turn, index)

    def _result(self, event: dict[str, JsonValue]) -> None:
        key = self._keys.get(str(event["id"]))
        if key is None:
            return
        content = _text(event.get("content"))
        failed = bool(event.get("error")) or content.startswith(_ERROR_PREFIXES)
        self._results.append(CallFinished(*key, ok=not failed, observation=content.encode("utf-8", "replace")))

    def end_message(self) -> None:
        """Closes the message that is being read, if there is one."""
        if self._turn is not None:
            text = AssistantText("\n".join(self._text)) if self._text else None
            if not self._heard_user and not self._calls:
                if text is not None:
                    self.before.append(text)
            else:
                calls = CallsAsked(self._turn, tuple(call for _, call in self._calls)) if self._calls else None
                self.steps.append(RecordedStep(tuple(self.before), text, calls))
                self.before = []
            self._turn, self._text, self._calls = None, [], []
        self.before += self._results
        self._results = []


def _text(value: JsonValue) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
