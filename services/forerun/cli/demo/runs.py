"""Runs the scripted agents: the same tasks sequentially, in ordinary ordered parallel, and with Forerun.

All three go through the same platform, so that isolation and the price of the way to a tool are the same. Sequential
and parallel open their sessions with mode off: nothing is predicted, remembered or executed ahead. Sequential asks for
one call at a time; parallel asks for all calls of a message at once, and the platform runs them in order-safe parallel.

The runs are interleaved, so that whatever else the machine does meets all of them alike. A baseline's sessions belong
to an agent of their own: the predictor learns for each agent apart, so it learns nothing about a scored task from them.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from forerun.cli.demo.agents.script import Call, Observation, Script, Task
from forerun.cli.demo.draws import Draws

BASELINE_SUFFIX = "-baseline"


class Run(StrEnum):
    """One way to run a task. The value is the first part of a session's label."""

    WARM_UP = "warm-up"
    FORERUN = "forerun"
    PARALLEL = "parallel"
    SEQUENTIAL = "sequential"

    @property
    def speculates(self) -> bool:
        """True where the platform may run ahead. In the warm-up it mostly learns."""
        return self in (Run.WARM_UP, Run.FORERUN)

    def agent(self, name: str) -> str:
        """The name under which an agent's sessions of this run are opened."""
        return name if self.speculates else f"{name}{BASELINE_SUFFIX}"


class Served(StrEnum):
    """How the platform answered a call."""

    DIRECT = "direct"
    READY = "ready"
    JOINED = "joined"
    MEMO = "memo"
    SHARED = "shared"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Answer:
    """An observation and how it came.

    Attributes:
        observation: What the agent sees.
        served: How it was answered.
        execution_seconds: Time of the execution behind it.
        waited_seconds: Time from ask to answer.
    """

    observation: Observation
    served: Served
    execution_seconds: float
    waited_seconds: float

    @property
    def hidden_seconds(self) -> float:
        """Seconds of an execution ahead of its call that the agent did not wait for."""
        ahead = self.served in (Served.READY, Served.JOINED)
        return max(0.0, self.execution_seconds - self.waited_seconds) if ahead else 0.0


@dataclass(frozen=True, slots=True)
class Counts:
    """The platform's counts of one session, or the sum of several.

    Attributes:
        calls: Authoritative calls.
        launched: Speculations launched.
        outcomes: Speculations by outcome.
        memo_hits: Calls answered from the memo.
        speculable_calls: Authoritative calls that the policy would have allowed to run ahead.
        executions: Tool executions of every kind.
        wasted_seconds: Seconds of execution that were not committed.
    """

    calls: int = 0
    launched: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)
    memo_hits: int = 0
    speculable_calls: int = 0
    executions: int = 0
    wasted_seconds: float = 0.0

    def __add__(self, other: "Counts") -> "Counts":
        names = {*self.outcomes, *other.outcomes}
        return Counts(
            calls=self.calls + other.calls,
            launched=self.launched + other.launched,
            outcomes={name: self.outcomes.get(name, 0) + other.outcomes.get(name, 0) for name in sorted(names)},
            memo_hits=self.memo_hits + other.memo_hits,
            speculable_calls=self.speculable_calls + other.speculable_calls,
            executions=self.executions + other.executions,
            wasted_seconds=self.wasted_seconds + other.wasted_seconds,
        )


class AgentSession(Protocol):
    """One open session on the platform."""

    async def user_turn(self, text: str) -> None:
        """The user said something."""
        ...

    async def model_started(self) -> None:
        """A model request begins now."""
        ...

    async def message(self, text: str) -> None:
        """The model's message is complete; its calls follow."""
        ...

    async def call(self, calls: Sequence[Call]) -> Sequence[Answer]:
        """Runs calls in order-safe parallel; answers in call order."""
        ...

    async def end(self) -> Counts:
        """Ends the session."""
        ...


class Platform(Protocol):
    """The way into a platform."""

    def session(
        self, label: str, *, agent: str, tools: Sequence[str], speculate: bool
    ) -> AbstractAsyncContextManager[AgentSession]:
        """Opens a session. With `speculate` false its mode is off."""
        ...


@dataclass(frozen=True, slots=True)
class Step:
    """One model step and its calls.

    Attributes:
        model_seconds: Time of the model.
        tool_seconds: Time from the message to its last observation.
        calls: The calls, in order.
        answers: Their answers, in the same order.
    """

    model_seconds: float
    tool_seconds: float
    calls: Sequence[Call]
    answers: Sequence[Answer]


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """What one session did, as its agent saw it."""

    task: Task
    run: Run
    seconds: float
    steps: Sequence[Step]
    counts: Counts

    @property
    def observations(self) -> list[Observation]:
        """All observations in order."""
        return [answer.observation for step in self.steps for answer in step.answers]

    @property
    def ended_unknown(self) -> bool:
        """True where a call ended whose outcome nobody can know. Nothing is compared after it."""
        return any(observation.status == "OUTCOME_UNKNOWN" for observation in self.observations)


ScriptOf = Callable[[Task], Script]
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Runner:
    """Runs tasks against a platform.

    Attributes:
        platform: Where tools are called.
        draws: Times of the models.
        script_of: Makes the scripted model of a task.
        tools_of: Tools of an agent, by its name.
        concurrency: Sessions at once, the same in every run.
        progress: Told after each session how many of how many have ended.
    """

    platform: Platform
    draws: Draws
    script_of: ScriptOf
    tools_of: Callable[[str], Sequence[str]]
    concurrency: int
    progress: Progress

    async def run(self, planned: Sequence[tuple[Run, Task]]) -> list[SessionRecord]:
        """Runs sessions, begun in the given order; records in the same order.

        Raises:
            ExceptionGroup: A session failed; the others were cancelled.
        """
        slots = asyncio.Semaphore(self.concurrency)
        ended = 0

        async def one(run: Run, task: Task) -> SessionRecord:
            nonlocal ended
            async with slots:
                record = await self._session(run, task)
            ended += 1
            self.progress(ended, len(planned))
            return record

        async with asyncio.TaskGroup() as group:
            running = [group.create_task(one(run, task)) for run, task in planned]
        return [session.result() for session in running]

    async def _session(self, run: Run, task: Task) -> SessionRecord:
        loop = asyncio.get_running_loop()
        label = f"{run.value}.{task.session}"
        tools = self.tools_of(task.agent)
        script = self.script_of(task)
        steps: list[Step] = []
        opened = self.platform.session(label, agent=run.agent(task.agent), tools=tools, speculate=run.speculates)
        async with opened as session:
            await session.user_turn(task.user_text)
            started = loop.time()
            message = next(script, None)
            while message is not None:
                thinking = loop.time()
                await session.model_started()
                # The drawn time is the whole model step: telling the platform about it is part of it.
                drawn = self.draws.model_seconds(task.model, task.session, len(steps) + 1)
                await asyncio.sleep(max(0.0, drawn - (loop.time() - thinking)))
                asked = loop.time()
                await session.message(message.text)
                answers = await _call(session, run, message.calls)
                steps.append(Step(asked - thinking, loop.time() - asked, message.calls, answers))
                try:
                    message = script.send([answer.observation for answer in answers])
                except StopIteration:
                    message = None
            seconds = loop.time() - started
            counts = await session.end()
        return SessionRecord(task, run, seconds, steps, counts)


async def _call(session: AgentSession, run: Run, calls: Sequence[Call]) -> list[Answer]:
    if run is not Run.SEQUENTIAL:
        return list(await session.call(calls))
    answers: list[Answer] = []
    for call in calls:
        answers += await session.call([call])
    return answers
