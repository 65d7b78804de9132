"""A small world with virtual time, in which plans run, and the same plans one task after another."""

from __future__ import annotations

import heapq
import json
import posixpath
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from forerun.core.canonical import JsonValue, canonical
from forerun.core.contracts import Contract, Effect, ResourceTemplate, unknown
from forerun.core.plan import (
    CancelTask,
    PlanEffect,
    PlanError,
    PlanFinished,
    PlanMachine,
    PlanOptions,
    Progress,
    ShareTask,
    StartTask,
    Task,
    TaskEnd,
    TaskResult,
    TaskSettled,
    TaskStatus,
)
from forerun.core.plan.references import ReferenceProblem, compile_arguments, value_of
from forerun.core.resources import conflict

KEY = (ResourceTemplate("{k:path}"),)
CONTRACTS = {
    "pick": Contract("pick", "", Effect.PURE),
    "read": Contract("read", "", Effect.READ, reads=KEY, concurrency=2),
    "take": Contract("take", "", Effect.READ, consuming=True, reads=KEY, writes=KEY),
    "append": Contract("append", "", Effect.WRITE, writes=KEY, concurrency=3),
    "put": Contract("put", "", Effect.WRITE, idempotent=True, writes=KEY),
    "copy": Contract(
        "copy", "", Effect.WRITE, reads=(ResourceTemplate("{source:path}"),), writes=(ResourceTemplate("{k:path}"),)
    ),
}
"""What the plan is told of the tools. `opaque` is a tool of which nobody knows anything."""


def contract_of(tool: str) -> Contract:
    return CONTRACTS.get(tool) or unknown(tool, "")


def _normal(key: JsonValue) -> str:
    """The path that a tool works on, whatever the spelling."""
    return posixpath.normpath(str(key))


@dataclass(slots=True)
class State:
    """What the tools work on: lists under keys. A key sees what is above and below it, as conflicts say."""

    lists: dict[str, list[JsonValue]] = field(default_factory=dict)

    def call(self, tool: str, arguments: Mapping[str, JsonValue]) -> JsonValue:
        key, value = _normal(arguments.get("k")), arguments.get("v")
        if tool == "pick":
            return {"k": value if isinstance(value, str) else "b", "v": value}
        if tool == "read":
            return self._seen(key)
        if tool == "take":
            there = self.lists.get(key) or [None]
            return {"v": there.pop()}
        if tool == "append":
            self.lists.setdefault(key, []).append(value)
            return {"v": len(self._all(key))}
        if tool == "put":
            self.lists[key] = [value]
            return {"v": True}
        if tool == "copy":
            self.lists[key] = [self._seen(_normal(arguments.get("source")))]
            return {"v": None}
        assert tool == "opaque"
        seen = self._seen("*")
        self.lists.setdefault("opaque", []).append(len(json.dumps(seen)))
        return seen

    def _all(self, key: str) -> list[JsonValue]:
        return [value for there in sorted(self.lists) if conflict(there, key) for value in self.lists[there]]

    def _seen(self, key: str) -> JsonValue:
        return {there: list(items) for there, items in sorted(self.lists.items()) if items and conflict(there, key)}


@dataclass(frozen=True, slots=True)
class Run:
    """How one execution goes, drawn ahead.

    Attributes:
        seconds: How long it takes.
        effect_at: Share of that after which the tool does what it does.
        stops: Whether it stops when told; else it is not heard of any more.
    """

    seconds: float
    effect_at: float
    stops: bool = True


@dataclass(slots=True)
class World:
    """Runs one plan. Everything that happens is an event at a time; equal times go in the order of their making."""

    runs: Mapping[str, Run]
    options: PlanOptions
    state: State = field(default_factory=State)
    now: float = 0.0
    started: list[str] = field(default_factory=list)
    applied: set[str] = field(default_factory=set)
    settled: dict[str, TaskResult] = field(default_factory=dict)
    finished: list[PlanFinished] = field(default_factory=list)
    progress: list[Progress] = field(default_factory=list)
    added: list[Task] = field(default_factory=list)
    running: dict[str, str] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    _events: list[tuple[float, int, Callable[[], Iterable[PlanEffect]]]] = field(default_factory=list)
    _made: int = 0
    machine: PlanMachine = field(init=False)

    def __post_init__(self) -> None:
        self.machine = PlanMachine(contract_of, self.options)

    # ------------------------------------------------------------ what is to happen

    def at(self, time: float, happens: Callable[[], Iterable[PlanEffect]]) -> None:
        self._made += 1
        heapq.heappush(self._events, (time, self._made, happens))

    def add_at(self, time: float, tasks: Sequence[Task]) -> None:
        def happens() -> Iterable[PlanEffect]:
            try:
                effects = self.machine.add(tasks, self.now)
            except PlanError as error:
                assert error.reason == "closed"
                return ()
            self.added.extend(tasks)
            return effects

        self.at(time, happens)

    def run(self, events: int = 100_000) -> None:
        """Lets events happen until there are none, or that many have."""
        while events and (self._events or self.machine.next_time() is not None):
            events -= 1
            due = self.machine.next_time()
            if due is not None and (not self._events or due < self._events[0][0]):
                self.now = due
                self._take(self.machine.tick(self.now))
                continue
            self.now, _, happens = heapq.heappop(self._events)
            self._take(happens())

    def forget(self) -> None:
        """Whoever ran the plan is lost, with everything that was under way."""
        self._events.clear()
        self.running.clear()
        self.machine = PlanMachine(contract_of, self.options)

    def take(self, effects: Iterable[PlanEffect]) -> None:
        self._take(effects)

    # ------------------------------------------------------------ effects

    def _take(self, effects: Iterable[PlanEffect]) -> None:
        for effect in effects:
            if isinstance(effect, StartTask):
                self._start(effect)
            elif isinstance(effect, CancelTask):
                self._cancel(effect.id)
            elif isinstance(effect, TaskSettled):
                assert effect.result.id not in self.settled, "settled twice"
                self.settled[effect.result.id] = effect.result
                self.running.pop(effect.result.id, None)
            elif isinstance(effect, ShareTask):
                assert effect.leader < effect.index
            elif isinstance(effect, Progress):
                self.progress.append(effect)
            else:
                self.finished.append(effect)

    def _start(self, start: StartTask) -> None:
        assert start.id not in self.running and start.id not in self.settled
        assert canonical(start.value) == start.arguments
        self.started.append(start.id)
        self.running[start.id] = start.tool
        assert len(self.running) <= self.options.in_flight
        for tool, count in Counter(self.running.values()).items():
            assert count <= contract_of(tool).concurrency
        run = self.runs[start.id]
        assert isinstance(start.value, dict)
        arguments = start.value
        status = failing(arguments)
        end: list[TaskEnd] = []

        def work() -> Iterable[PlanEffect]:
            if start.id not in self.gone:
                content = b""
                if status is TaskStatus.OK:
                    content = canonical(self.state.call(start.tool, arguments))
                    self.applied.add(start.id)
                end.append(TaskEnd(status=status, content=content, media_type="application/json"))
            return ()

        def finish() -> Iterable[PlanEffect]:
            if start.id in self.gone:
                return ()
            self.running.pop(start.id, None)
            return self.machine.finished(start.id, end[0], self.now)

        self.at(self.now + run.seconds * run.effect_at, work)
        self.at(self.now + run.seconds, finish)

    def _cancel(self, task: str) -> None:
        run = self.runs[task]
        if not run.stops:
            self.gone.add(task)
            return

        def stopped() -> Iterable[PlanEffect]:
            self.gone.add(task)
            self.running.pop(task, None)
            never = TaskEnd(status=TaskStatus.CANCELLED, not_started=False)
            return self.machine.finished(task, never, self.now)

        self.at(self.now + 0.5, stopped)


def failing(arguments: Mapping[str, JsonValue]) -> TaskStatus:
    """How an execution with these arguments ends: some tools fail, some are away."""
    fails = arguments.get("fails")
    return TaskStatus(fails) if isinstance(fails, str) else TaskStatus.OK


STOPPED = {TaskStatus.CANCELLED, TaskStatus.TIMEOUT, TaskStatus.OUTCOME_UNKNOWN}
PLAN_ENDED = ("task_failed", "plan_cancelled", "cut_off")


def one_after_another(world: World) -> tuple[State, dict[str, tuple[TaskStatus, bytes]]]:
    """The same tasks in call order. Of tasks that were stopped it is taken over whether they had had their effect."""
    state = State()
    ends: dict[str, tuple[TaskStatus, bytes]] = {}
    for task in world.added:
        actual = world.settled[task.id]
        template = compile_arguments(task.arguments)
        if any(ends[one.task][0] is not TaskStatus.OK for one in template.references):
            ends[task.id] = (TaskStatus.SKIPPED, b"") if actual.status not in STOPPED else (actual.status, b"")
            continue
        stopped = actual.status in STOPPED or (actual.cause is not None and actual.cause.reason in PLAN_ENDED)
        if stopped and task.id not in world.applied:
            ends[task.id] = (actual.status, b"")
            continue
        try:
            arguments = template.resolve(lambda one: value_of(ends[one][1], "application/json"))
        except ReferenceProblem:
            ends[task.id] = (TaskStatus.REJECTED, b"")
            continue
        status = failing(arguments)
        content = canonical(state.call(task.tool, arguments)) if status is TaskStatus.OK else b""
        ends[task.id] = (actual.status, b"") if stopped else (status, content)
    return state, ends
