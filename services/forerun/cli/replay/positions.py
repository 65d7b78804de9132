"""The recorded world: what a tool answers at a position of a session.

A position is how often each resource has been written. The answer to a call is a function of the session, the tool,
the canonical arguments, and the position of the resources that the call touches: what was recorded there. So a read
gets the same answer whenever it is executed between the same two writes, and another one when it comes too early or too
late. The position is part of the answer, so that a stale answer differs even where the recorded contents are equal.
A recorded content that is JSON stands in the answer as JSON, everything else as a string.

Epochs are counted here by rules of this module's own, not by those of the platform: it is the judge of the platform.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from forerun.cli.replay.policies import EVERYTHING, SERVER, Rules, ToolRule
from forerun.cli.replay.traces import RecordedCall, Session
from forerun.core.canonical import CanonicalError, canonical, parse_strict
from forerun.core.contracts import Contract, Effect, ResourceTemplate, effective

Epochs = tuple[tuple[str, int], ...]
_Key = tuple[str, bytes, Epochs]

_EFFECTS = {"pure": Effect.PURE, "read": Effect.READ, "staged": Effect.WRITE, "write": Effect.WRITE}


@dataclass(frozen=True, slots=True)
class Answer:
    """What a tool answers.

    Attributes:
        body: The answer, JSON of `content` and `epoch`; with `never_recorded` where the call never happened there.
        error: The tool reports a failure.
        seconds: How long it takes.
        recorded: False for calls that never happened at that position.
    """

    body: bytes
    error: bool
    seconds: float
    recorded: bool


@dataclass(frozen=True, slots=True)
class Touch:
    """What a call touches: resources it reads, and resources it writes."""

    reads: tuple[str, ...]
    writes: tuple[str, ...]


def core_contract(tool: str, rule: ToolRule) -> Contract:
    """The rule of a tool as a contract of the core, to find out what one call does."""
    effect = _EFFECTS[rule.effect]
    resources = (ResourceTemplate(rule.resource),) if rule.resource else ()
    return Contract(
        tool,
        SERVER,
        effect,
        open_world=rule.open_world,
        reads=resources if effect is Effect.READ else (),
        writes=resources if effect is Effect.WRITE else (),
        read_when={argument: (value,) for argument, value in (rule.read_when or {}).items()},
        shell_argument=rule.shell_argument or None,
        speculate=effect is not Effect.WRITE or bool(rule.read_when or rule.shell_argument),
    )


def effective_contract(rules: Rules, tool: str, arguments: bytes) -> Contract:
    """The contract of one very call."""
    return effective(core_contract(tool, rules.of(tool)), parse_strict(arguments), rules.shell)


def touch(rules: Rules, tool: str, arguments: bytes) -> Touch:
    """What one call touches."""
    contract = effective_contract(rules, tool, arguments)
    return Touch(tuple(r.text for r in contract.reads), tuple(r.text for r in contract.writes))


class World:
    """The positions of one session in one arm. A write moves on the resources that it touches when it arrives."""

    def __init__(self) -> None:
        self._epochs: dict[str, int] = defaultdict(int)
        self._writes_to_everything = 0
        self._writes = 0

    def arrive(self, touched: Touch) -> Epochs:
        """Takes note of a call that arrives and gives its position."""
        for resource in touched.writes:
            self._writes += 1
            if resource == EVERYTHING:
                self._writes_to_everything += 1
            else:
                self._epochs[resource] += 1
        return tuple((resource, self._epoch(resource)) for resource in sorted({*touched.reads, *touched.writes}))

    def _epoch(self, resource: str) -> int:
        # A write to everything moves every resource on, and any write moves everything on.
        return self._writes if resource == EVERYTHING else self._epochs[resource] + self._writes_to_everything


@dataclass(frozen=True, slots=True)
class Recording:
    """All answers of one session.

    Attributes:
        session: The session.
        rules: Contracts of its tools.
        answers: By tool, canonical arguments and position.
        in_order: The answers to the recorded calls, in their order, as a sequential run gets them.
        nondeterministic: Calls whose recorded answer differs from an earlier one at their position. The first counts.
    """

    session: Session
    rules: Rules
    answers: Mapping[_Key, Answer]
    in_order: Sequence[Answer]
    nondeterministic: int

    def answer(self, tool: str, arguments: bytes, epochs: Epochs, otherwise_seconds: float) -> Answer:
        """What the tool answers to a call at a position.

        Args:
            tool: The tool.
            arguments: JSON text of the arguments.
            epochs: The position.
            otherwise_seconds: How long a call takes that never happened there.
        """
        found = self.answers.get((tool, canonical(parse_strict(arguments)), epochs))
        if found is not None:
            return found
        body = _body("", epochs, never_recorded=True)
        return Answer(body, error=False, seconds=otherwise_seconds, recorded=False)


def record(session: Session, rules: Rules) -> Recording:
    """Walks through a session in its recorded order and notes every answer at its position."""
    world = World()
    answers: dict[_Key, Answer] = {}
    contents: dict[_Key, tuple[str, bool]] = {}
    in_order: list[Answer] = []
    differing = 0
    for call in (call for step in session.steps for call in step.calls):
        epochs = world.arrive(touch(rules, call.tool, call.arguments))
        key = (call.tool, canonical(parse_strict(call.arguments)), epochs)
        first = contents.setdefault(key, (call.content, call.error))
        differing += first != (call.content, call.error)
        answers.setdefault(key, _recorded(call, epochs))
        in_order.append(answers[key])
    return Recording(session, rules, answers, in_order, differing)


def _recorded(call: RecordedCall, epochs: Epochs) -> Answer:
    return Answer(_body(call.content, epochs), error=call.error, seconds=call.seconds, recorded=True)


def _body(content: str, epochs: Epochs, *, never_recorded: bool = False) -> bytes:
    around: dict[str, object] = {"epoch": dict(epochs)}
    if never_recorded:
        around["never_recorded"] = True
    rest = json.dumps(around, ensure_ascii=False, separators=(",", ":"))
    return f'{{"content":{_as_json(content)},{rest[1:]}'.encode()


def _as_json(content: str) -> str:
    """The content as it stands where it is a JSON object or array, so that it can be read; else as a string."""
    text = content.strip()
    if text[:1] in {"{", "["}:
        try:
            parse_strict(text.encode())
        except CanonicalError:
            pass
        else:
            return text
    return json.dumps(content, ensure_ascii=False)


class Durations:
    """How long calls take that were never recorded: a recorded time of the same tool, else of any tool."""

    def __init__(self, sessions: Sequence[Session], seed: int) -> None:
        self._seed = seed
        self._of_tool: dict[str, list[float]] = defaultdict(list)
        for call in (call for session in sessions for step in session.steps for call in step.calls):
            self._of_tool[call.tool].append(call.seconds)
        self._all = [seconds for pool in self._of_tool.values() for seconds in pool]

    def draw(self, session: str, tool: str, arguments: bytes) -> float:
        """Seconds of a call: the same for the same call of the same session."""
        pool = self._of_tool.get(tool) or self._all
        if not pool:
            return 0.0
        place = random.Random(f"{self._seed}:{session}:{tool}:".encode() + arguments)
        return pool[place.randrange(len(pool))]


def sequential_session(recording: Recording) -> Session:
    """The session with the contents that the recorded world gives, which is what an agent of any arm observes."""
    answers = iter(recording.in_order)
    steps = tuple(
        replace(step, calls=tuple(replace(call, content=next(answers).body.decode()) for call in step.calls))
        for step in recording.session.steps
    )
    return replace(recording.session, steps=steps)
