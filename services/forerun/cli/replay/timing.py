"""How long everything took: what was recorded, and what must be imputed, counted and drawn from a seed.

The sources record different moments (see the README beside the data):

* *request start* (General-AgentBench): a call's time is the start of its model request and only ends of tools are
  known. Calls ran one after another, so all but the first call of a message were measured. The first one gets a
  measured value of the same tool, else of the server, else of the file, that fits into the time from request to answer;
  for the software repair tools, for which hardly anything was measured, the known ranges of what the command does. The
  rest of that time is the model's. A message without calls has no end: it gets a measured model time of the same model,
  at most the time until the user spoke.
* *output done* (pi-mono, spotter, Whissle): a call's time is the end of the model's output. A tool runs from there, or
  from the end of the call before it in the same message where that ended first. In spotter sessions the time of Bash,
  Edit and Write may hold a person's approval: it is cut at the 90th percentile of that tool in the pi-mono sessions.
* *no times* (tau-bench, LiveMCPBench): quantiles of tau2 for the first, of the live MCP runs for others.

What users take is never wall time.
"""

from __future__ import annotations

import bisect
import random
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from forerun.cli.replay.traces import RawCall, RawSession, RawStep, RecordedCall, Session, Step

# Quantiles 0, 5, 10, 25, 50, 75, 90, 95, 99, 100 % of seconds measured in the tau2 and MCP sets (General-AgentBench).
_LEVELS = (0.0, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)
TAU2_MODEL_SECONDS = (0.70, 1.35, 1.92, 2.54, 4.93, 7.07, 11.4, 14.1, 31.2, 94.5)
TAU2_TOOL_SECONDS = (0.0024, 0.0034, 0.004, 0.0045, 0.0047, 0.005, 0.0055, 0.0058, 0.0064, 0.0069)
MCP_MODEL_SECONDS = (2.04, 3.30, 4.04, 7.05, 12.5, 18.6, 30.6, 34.2, 52.1, 276.0)
MCP_TOOL_SECONDS = (0.0001, 0.0006, 0.0019, 0.0029, 0.209, 0.621, 1.48, 2.99, 30.2, 30.5)

_APPROVED_TOOLS = frozenset({"bash", "edit", "write"})
_SOFTWARE_REPAIR = "swebench__"
_QUICK_SECONDS = (0.05, 0.14)
_PYTHON_SECONDS = 0.4
_TEST_SECONDS = 2.0
_TESTS = re.compile(rb"pytest|runtests|unittest|tox\b|manage\.py test|\btest_\w+\.py")
_PYTHON = re.compile(rb"\bpython[0-9.]*\b")
# A model request is never shorter than this share of the time from its start to the first answer.
_MODEL_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class Timed:
    """Sessions with times.

    Attributes:
        imputed: Durations, of models and tools, that were not measured, by name of the session.
        unanswered: Calls that were left out because no answer was recorded.
    """

    sessions: tuple[Session, ...]
    imputed: Mapping[str, int]
    unanswered: int


def server_of(tool: str) -> str:
    """The server of a tool, as far as its name tells: `Wikipedia__get_article`, `exchange-rate.convert`."""
    for separator in ("__", "."):
        if separator in tool:
            return tool.split(separator, 1)[0]
    return tool


def with_times(raw: Sequence[RawSession], *, seed: int, tool_seconds: float | None = None, scale: float = 1.0) -> Timed:
    """Gives the sessions of one file their times.

    Args:
        raw: All sessions of the file: what some measured is imputed to others.
        seed: Decides every draw, together with the place it is for.
        tool_seconds: Scales the tool times so that their median is this. None: as recorded.
        scale: Factor on every time, also the model's.
    """
    timer = _Timer(raw, seed)
    timed = [timer.session(session) for session in raw]
    factor = 1.0
    if tool_seconds is not None:
        median = statistics.median(seconds) if (seconds := [c for _, d in timed for _, cs in d for c in cs]) else 0.0
        factor = tool_seconds / median if median > 0.0 else 1.0
    sessions = tuple(_session(session, durations, scale, scale * factor) for session, durations in timed)
    return Timed(sessions, timer.imputed_of, sum(session.unanswered for session in raw))


_Durations = list[tuple[float, list[float]]]  # of each step: the model's seconds and those of its calls


def _session(raw: RawSession, durations: _Durations, model_scale: float, tool_scale: float) -> Session:
    steps = tuple(
        Step(
            turn=step.turn,
            user_turns=tuple(step.user_turns),
            model_seconds=model * model_scale,
            text="\n".join(step.text),
            calls=tuple(_call(call, seconds * tool_scale) for call, seconds in zip(step.calls, tools, strict=True)),
        )
        for step, (model, tools) in zip(raw.steps, durations, strict=True)
    )
    return Session(raw.name, raw.file, raw.task, steps)


def _call(raw: RawCall, seconds: float) -> RecordedCall:
    return RecordedCall(raw.tool, raw.arguments, raw.content or "", raw.error, seconds, raw.provider_call_id)


class _Timer:
    """Times of the sessions of one file."""

    def __init__(self, raw: Sequence[RawSession], seed: int) -> None:
        self._seed = seed
        self._imputed = 0
        self.imputed_of: dict[str, int] = {}
        self._of_tool: dict[str, list[float]] = defaultdict(list)
        self._of_server: dict[str, list[float]] = defaultdict(list)
        self._of_file: list[float] = []
        self._of_model: dict[str, list[float]] = defaultdict(list)
        self._caps: dict[str, float] = {}
        starts = [session for session in raw if _is_request_start(session)]
        for session in starts:
            self._measure(session)
        for pool in (*self._of_tool.values(), *self._of_server.values(), self._of_file):
            pool.sort()
        for session in starts:
            for step in session.steps:
                if step.calls:
                    self._of_model[session.model].append(self._request_start_step(session, step)[0])
        self._all_models = [seconds for pool in self._of_model.values() for seconds in pool]
        self._caps = _approval_caps(raw)

    def session(self, session: RawSession) -> tuple[RawSession, _Durations]:
        """The session with the durations of its steps."""
        self._imputed = 0
        durations = self._durations(session)
        self.imputed_of[session.name] = self._imputed
        return session, durations

    def _durations(self, session: RawSession) -> _Durations:
        if _is_request_start(session):
            ends = [step.user_at for step in session.steps[1:]] + [session.closing_user_at]
            starts = self._request_starts(session)
            rows = zip(session.steps, starts, ends, strict=True)
            return [
                self._request_start_step(session, step)
                if step.calls
                else (self._open_end(session, step, start, end), [])
                for step, start, end in rows
            ]
        if session.t_kind:
            return self._output_done(session)
        return [self._untimed(session, step) for step in session.steps]

    def _random(self, session: RawSession, *place: object) -> random.Random:
        return random.Random(f"{self._seed}:{session.name}:{':'.join(map(str, place))}")  # seeded draws, no secrets

    # General-AgentBench: starts of requests and ends of tools.

    def _measure(self, session: RawSession) -> None:
        for step in session.steps:
            for before, call in zip(step.calls, step.calls[1:], strict=False):
                if before.ended_at is not None and call.ended_at is not None:
                    seconds = max(0.0, call.ended_at - before.ended_at)
                    self._of_tool[call.tool].append(seconds)
                    self._of_server[server_of(call.tool)].append(seconds)
                    self._of_file.append(seconds)

    def _request_start_step(self, session: RawSession, step: RawStep) -> tuple[float, list[float]]:
        first = step.calls[0]
        if first.at is None or first.ended_at is None:
            return self._untimed(session, step)
        gap = max(0.0, first.ended_at - first.at)
        tool = self._first_call(session, step, first, gap)
        self._imputed += 1
        seconds = [tool]
        for before, call in zip(step.calls, step.calls[1:], strict=False):
            seconds.append(max(0.0, (call.ended_at or 0.0) - (before.ended_at or 0.0)))
        return gap - tool, seconds

    def _first_call(self, session: RawSession, step: RawStep, call: RawCall, gap: float) -> float:
        draw = self._random(session, "tool", step.turn)
        limit = gap * (1.0 - _MODEL_SHARE)
        if call.tool.startswith(_SOFTWARE_REPAIR):
            return min(limit, _repair_seconds(call, draw))
        for pool in (self._of_tool[call.tool], self._of_server[server_of(call.tool)], self._of_file):
            fitting = bisect.bisect_right(pool, limit)
            if fitting:
                return pool[draw.randrange(fitting)]
        return min(limit, _quantile(MCP_TOOL_SECONDS, draw.random()))

    def _request_starts(self, session: RawSession) -> list[float | None]:
        """When each model request started: when the user spoke, else when the last answer came."""
        starts: list[float | None] = []
        last: float | None = None
        for step in session.steps:
            starts.append(step.user_at if step.user_at is not None else last)
            last = step.calls[-1].ended_at if step.calls else None
        return starts

    def _open_end(self, session: RawSession, step: RawStep, start: float | None, end: float | None) -> float:
        self._imputed += 1
        pool = self._of_model.get(session.model) or self._all_models
        draw = self._random(session, "model", step.turn)
        seconds = pool[draw.randrange(len(pool))] if pool else _quantile(TAU2_MODEL_SECONDS, draw.random())
        if start is None or end is None:
            return seconds
        return max(0.0, min(seconds, end - start))

    # Sources that say when the model's output was complete.

    def _output_done(self, session: RawSession) -> _Durations:
        durations: _Durations = []
        before = 0.0
        for step in session.steps:
            before = max(before, step.user_at or 0.0)
            ends = [at for at in (step.text_at, *(call.at for call in step.calls)) if at is not None]
            if ends:
                model = max(0.0, max(ends) - before)
            else:
                model = _quantile(TAU2_MODEL_SECONDS, self._random(session, "model", step.turn).random())
                self._imputed += 1
            durations.append((model, self._output_done_calls(session, step)))
            before = max([before, *ends, *(call.ended_at for call in step.calls if call.ended_at is not None)])
        return durations

    def _output_done_calls(self, session: RawSession, step: RawStep) -> list[float]:
        seconds: list[float] = []
        previous_end = 0.0
        for index, call in enumerate(step.calls):
            if call.at is None or call.ended_at is None:
                seconds.append(_quantile(TAU2_TOOL_SECONDS, self._random(session, "tool", step.turn, index).random()))
                self._imputed += 1
                continue
            start = max(call.at, previous_end) if previous_end < call.ended_at else call.at
            took = max(0.0, call.ended_at - start)
            cap = self._caps.get(call.tool.lower())
            if cap is not None and took > cap and not _is_pi(session):
                took = cap
                self._imputed += 1
            seconds.append(took)
            previous_end = max(previous_end, call.ended_at)
        return seconds

    # Sources without times.

    def _untimed(self, session: RawSession, step: RawStep) -> tuple[float, list[float]]:
        of_tau = "tau" in session.source
        model_levels = TAU2_MODEL_SECONDS if of_tau else MCP_MODEL_SECONDS
        tool_levels = TAU2_TOOL_SECONDS if of_tau else MCP_TOOL_SECONDS
        draw = self._random(session, "untimed", step.turn)
        self._imputed += 1 + len(step.calls)
        return _quantile(model_levels, draw.random()), [_quantile(tool_levels, draw.random()) for _ in step.calls]


def _is_request_start(session: RawSession) -> bool:
    return session.t_kind.startswith("call.t=LLM request start")


def _is_pi(session: RawSession) -> bool:
    return session.source.endswith("pi-mono")


def _repair_seconds(call: RawCall, draw: random.Random) -> float:
    if call.tool.endswith("execute_bash"):
        if _TESTS.search(call.arguments):
            return _TEST_SECONDS
        if _PYTHON.search(call.arguments):
            return _PYTHON_SECONDS
    return draw.uniform(*_QUICK_SECONDS)


def _approval_caps(raw: Iterable[RawSession]) -> dict[str, float]:
    """90th percentile of the seconds of each tool that asks for approval elsewhere, in the pi-mono sessions."""
    measured: dict[str, list[float]] = defaultdict(list)
    for session in raw:
        if _is_pi(session):
            for call in (call for step in session.steps for call in step.calls):
                if call.tool in _APPROVED_TOOLS and call.at is not None and call.ended_at is not None:
                    measured[call.tool].append(max(0.0, call.ended_at - call.at))
    return {tool: sorted(values)[min(len(values) - 1, int(0.9 * len(values)))] for tool, values in measured.items()}


def _quantile(values: Sequence[float], level: float) -> float:
    """The value at `level` (0..1) of a distribution given at `_LEVELS`, linear in between."""
    upper = min(len(_LEVELS) - 1, max(1, bisect.bisect_right(_LEVELS, level)))
    low, high = _LEVELS[upper - 1], _LEVELS[upper]
    share = (level - low) / (high - low)
    return values[upper - 1] + share * (values[upper] - values[upper - 1])
