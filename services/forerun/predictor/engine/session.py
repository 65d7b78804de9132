"""One session as the engine follows it: what happened last, what it has shown, and the step that is open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from forerun.predictor.engine.intent import feature
from forerun.predictor.engine.memory import Memory
from forerun.predictor.engine.repeats import Proposal, Trail
from forerun.predictor.engine.shapes import shape_of, words
from forerun.predictor.engine.tuning import MAX_TEXT_TOKENS

START, USER = "^", "U"
_TOKENS_KEPT = 8
_USER_WORDS = 32
_ASSISTANT_WORDS = 24
_TASK_WORDS = 12
_MAX_OPEN_CALLS = 512
_MAX_CALLED = 64


@dataclass(frozen=True, slots=True)
class Scored:
    """A predicted call before calibration.

    Attributes:
        tool: The tool.
        arguments: Canonical JSON.
        raw: Uncorrected probability that the next message asks for it.
        origins: The place that each argument came from, by path.
    """

    tool: str
    arguments: bytes
    raw: float
    origins: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Step:
    """A prediction of one model step, with what is needed to learn from how it turns out.

    Attributes:
        contexts: Contexts of the sequence model, all views.
        given: What the words said, the last view.
        logs: What each view said, as logarithms, in the order of `mixed`.
        situation: The set of mixing weights that was used.
        features: Features of the intent model.
        mixed: Probabilities of the outcomes (a tool with its argument names, or no call).
        proposals: Calls of the session that may come again.
        scored: Calls, most probable first, uncorrected.
        signature: Context signature of the call sites.
        previous: Token before the step.
    """

    contexts: tuple[str, ...]
    given: Mapping[str, float]
    logs: tuple[tuple[float, ...], ...]
    situation: str
    features: tuple[int, ...]
    mixed: Mapping[str, float]
    proposals: tuple[Proposal, ...]
    scored: tuple[Scored, ...]
    signature: str
    previous: str


@dataclass(slots=True)
class Session:
    """State of one session."""

    name: str
    declared: frozenset[str] = frozenset()
    memory: Memory = field(default_factory=Memory)
    trail: Trail = field(default_factory=Trail)
    tokens: list[str] = field(default_factory=lambda: [START])
    called: dict[str, int] = field(default_factory=dict)
    asked: dict[tuple[int, int], str] = field(default_factory=dict)
    waiting: int = 0
    open: bool = False
    text: str | None = None
    lead: str = ""
    user_features: tuple[int, ...] = ()
    assistant_features: tuple[int, ...] = ()
    task_features: tuple[int, ...] = ()
    step: Step | None = None

    def push(self, token: str) -> None:
        """Adds a token to the history."""
        self.tokens.append(token)
        if len(self.tokens) > _TOKENS_KEPT:
            del self.tokens[0]

    def fail(self) -> None:
        """Marks the latest calls as failed."""
        if not self.tokens[-1].endswith("!") and self.tokens[-1] not in (START, USER):
            self.tokens[-1] += "!"

    def hear_user(self, text: str) -> None:
        """Takes in the user's words."""
        self.memory.add_user(text)
        shapes = dict.fromkeys(shape_of(token) for token in list(self.memory.said)[:MAX_TEXT_TOKENS])
        spoken = [feature(f"w:{word}") for word in words(text, _USER_WORDS)]
        self.user_features = (*spoken, *(feature(f"s:{shape}") for shape in sorted(shapes)[:24]))
        if not self.task_features:
            self.task_features = tuple(feature(f"f:{word}") for word in words(text, _TASK_WORDS))
        self.push(USER)

    def hear_assistant(self, text: str) -> None:
        """Takes in the model's words; the end of a message says what it waits for."""
        self.memory.add_assistant(text)
        self.assistant_features = tuple(feature(f"a:{word}") for word in words(text[-300:], _ASSISTANT_WORDS))

    def note_call(self, turn: int, index: int, tool: str) -> None:
        """Remembers an open call."""
        if len(self.asked) >= _MAX_OPEN_CALLS:
            del self.asked[next(iter(self.asked))]
        self.asked[turn, index] = tool
        self.waiting += 1
        if tool in self.called or len(self.called) < _MAX_CALLED:
            self.called[tool] = self.called.get(tool, 0) + 1

    def features(self, left: int) -> tuple[int, ...]:
        """Features of the present state for the intent model."""
        last = self.tokens[-1]
        before = self.tokens[-2] if len(self.tokens) > 1 else START
        spoken = self.user_features
        if last != USER:
            spoken = tuple(number ^ 0x5BD1E995 for number in spoken)
        return tuple(
            dict.fromkeys(
                (
                    feature(f"t:{last}"),
                    feature(f"t:{last}|{before}"),
                    feature(f"l:{last}|{left}"),
                    *(feature(f"c:{tool}") for tool in self.called),
                    *(feature(f"n:{tool}|{min(count, 4)}") for tool, count in self.called.items() if count > 1),
                    *(feature(f"o:{last}|{flag}") for flag in self.memory.last_flags if last != USER),
                    *spoken,
                    *self.assistant_features,
                    *self.task_features,
                )
            )
        )
