"""Recorded runs as the replay uses them: sessions of steps, each a wait for the model and the calls of its message.

A trace file is gzipped (or plain) JSON lines, one session a line; see the README beside the data. Loading reads what is
recorded; `timing` gives every step and call its seconds, including those that nobody measured.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import zlib
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from forerun.runtime.errors import ErrorReason, InvalidArgument

JsonObject = Mapping[str, object]

# Models invent names of tools, some of them whole paragraphs: such a name becomes its readable part and a digest.
_USABLE_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,128}")
_READABLE_CHARS = 64


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """One call of a message and what came of it.

    Attributes:
        tool: The tool's name, as it was recorded where a platform could have a tool of that name.
        arguments: JSON text of the arguments. Text that was no JSON object stands under `_raw` or `_value` of one.
        content: The recorded answer.
        error: The tool reported a failure.
        seconds: How long the tool took.
        provider_call_id: Id that the model's provider gave. Not unique in every source.
    """

    tool: str
    arguments: bytes
    content: str
    error: bool
    seconds: float
    provider_call_id: str


@dataclass(frozen=True, slots=True)
class Step:
    """One message of the model.

    Attributes:
        turn: Number of the message in its session, from 1 on.
        user_turns: What the user said before it. The time that users take is no part of a replay.
        model_seconds: From the start of the model request to the complete message.
        text: Text of the message.
        calls: Its calls, in order; may be none.
    """

    turn: int
    user_turns: tuple[str, ...]
    model_seconds: float
    text: str
    calls: tuple[RecordedCall, ...]


@dataclass(frozen=True, slots=True)
class Session:
    """One recorded run.

    Attributes:
        name: Unique among all files of a replay: file and session.
        file: Stem of the file's name; also the name of the agent and of its policy.
        task: What it worked on; runs of one task are never split between training and scoring.
    """

    name: str
    file: str
    task: str
    steps: tuple[Step, ...]

    @property
    def calls(self) -> int:
        """Number of tool calls."""
        return sum(len(step.calls) for step in self.steps)


@dataclass(slots=True)
class RawCall:
    """A call before it has a duration. Times are seconds from the session's start; None where none was recorded."""

    tool: str
    arguments: bytes
    provider_call_id: str
    at: float | None
    content: str | None = None
    error: bool = False
    ended_at: float | None = None


@dataclass(slots=True)
class RawStep:
    """A message before it has a duration."""

    turn: int
    user_turns: list[str]
    user_at: float | None
    text: list[str] = field(default_factory=list)
    text_at: float | None = None
    calls: list[RawCall] = field(default_factory=list)


@dataclass(slots=True)
class RawSession:
    """A session before its durations are known.

    Attributes:
        closing_user_at: When the user spoke after the last message; None where nobody did.
        unanswered: Calls without a recorded answer. They are left out of the replay.
    """

    name: str
    file: str
    task: str
    source: str
    model: str
    t_kind: str
    steps: list[RawStep]
    closing_user_at: float | None
    unanswered: int


def read_file(path: Path) -> list[RawSession]:
    """Reads a trace file.

    Raises:
        InvalidArgument: The file is no trace; the message says why.
        OSError: The file cannot be opened.
    """
    stem = stem_of(path)
    try:
        return [_session(stem, number, record) for number, record in _records(path)]
    except (ValueError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        message = f"{path} is not a trace file of gzipped JSON lines: {error}"
        raise InvalidArgument(ErrorReason.SETTING_INVALID, message, metadata={"file": str(path)}) from error


def stem_of(path: Path) -> str:
    """Name of a trace file without its folder and endings."""
    return path.name.split(".", 1)[0]


def _records(path: Path) -> Iterator[tuple[int, JsonObject]]:
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                # NaN and Infinity are no JSON: as strings they stay tellable apart and can be sent.
                yield number, _object(json.loads(line, parse_constant=str))


def _session(stem: str, number: int, record: JsonObject) -> RawSession:
    own_name = _text(record.get("session")) or str(number)
    steps, closing, unanswered = _steps(_list(record.get("events")))
    return RawSession(
        name=f"{stem}/{own_name}",
        file=stem,
        task=_text(record.get("task")) or own_name,
        source=_text(record.get("source")),
        model=_text(record.get("model")),
        t_kind=_text(record.get("t_kind")),
        steps=steps,
        closing_user_at=closing,
        unanswered=unanswered,
    )


def _steps(events: list[object]) -> tuple[list[RawStep], float | None, int]:
    steps: list[RawStep] = []
    open_calls: dict[str, deque[RawCall]] = defaultdict(deque)
    users: list[str] = []
    user_at: float | None = None
    turn: object = None
    for item in events:
        event = _object(item)
        kind = event.get("type")
        if kind == "user":
            users.append(_text(event.get("content")))
            user_at = _seconds(event.get("t"))
        elif kind == "tool_result":
            # One id may name several calls of a session: answers come in the order of the calls.
            waiting = open_calls[_text(event.get("id"))]
            if waiting:
                _answer(waiting.popleft(), event)
        elif kind in {"assistant", "tool_call"}:
            if not steps or event.get("turn") != turn:
                turn = event.get("turn")
                steps.append(RawStep(len(steps) + 1, users, user_at))
                users, user_at = [], None
            if kind == "assistant":
                steps[-1].text.append(_text(event.get("content")))
                steps[-1].text_at = _seconds(event.get("t"))
            else:
                call = _call(event)
                steps[-1].calls.append(call)
                open_calls[call.provider_call_id].append(call)
    unanswered = 0
    for step in steps:
        answered = [call for call in step.calls if call.content is not None]
        unanswered += len(step.calls) - len(answered)
        step.calls = answered
    return steps, user_at if users else None, unanswered


def _call(event: JsonObject) -> RawCall:
    arguments = json.dumps(event.get("args", {}), ensure_ascii=False, separators=(",", ":"))
    return RawCall(
        tool=_tool_name(_text(event.get("name"))),
        arguments=_well_formed(arguments).encode(),
        provider_call_id=_text(event.get("id")),
        at=_seconds(event.get("t")),
    )


def _tool_name(name: str) -> str:
    if _USABLE_NAME.fullmatch(name):
        return name
    readable = re.sub(r"[^A-Za-z0-9_.\-]+", "-", name)[:_READABLE_CHARS]
    return f"{readable}-{hashlib.sha256(name.encode()).hexdigest()[:12]}"


def _answer(call: RawCall, event: JsonObject) -> None:
    call.content = _text(event.get("content"))
    call.error = bool(event.get("error"))
    call.ended_at = _seconds(event.get("t"))


def _object(value: object) -> JsonObject:
    if not isinstance(value, dict):
        raise ValueError("an object is missing")
    return value


def _list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise ValueError("`events` is missing")
    return value


def _text(value: object) -> str:
    if value is None:
        return ""
    return _well_formed(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _well_formed(text: str) -> str:
    """`text` with lone surrogates replaced: they exist in JSON escapes only and cannot be sent as UTF-8."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _seconds(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
