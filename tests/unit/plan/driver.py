"""Short words for plans in tests."""

from __future__ import annotations

from collections.abc import Iterable

from forerun.core.canonical import JsonValue, canonical
from forerun.core.contracts import Contract, Effect, ResourceTemplate, unknown
from forerun.core.plan import (
    CancelTask,
    PlanEffect,
    PlanFinished,
    PlanMachine,
    PlanOptions,
    StartTask,
    Task,
    TaskEnd,
    TaskResult,
    TaskSettled,
    TaskStatus,
)

NOTES = (ResourceTemplate("notes/{path:path}"),)
CONTRACTS = {
    "search": Contract("search", "", Effect.READ, reads=(ResourceTemplate("web"),)),
    "calc": Contract("calc", "", Effect.PURE),
    "read": Contract("read", "", Effect.READ, reads=NOTES, concurrency=4),
    "write": Contract("write", "", Effect.WRITE, writes=NOTES),
    "put": Contract("put", "", Effect.WRITE, writes=NOTES, idempotent=True),
    "take": Contract("take", "", Effect.READ, consuming=True, reads=(ResourceTemplate("queue"),)),
    "buy": Contract("buy", "", Effect.READ, metered=True, reads=(ResourceTemplate("shop"),)),
    "shell": Contract(
        "shell",
        "",
        Effect.WRITE,
        staged=True,
        shell_argument="command",
        reads=(ResourceTemplate("workspace"),),
        writes=(ResourceTemplate("workspace"),),
    ),
}


def contract_of(tool: str) -> Contract:
    return CONTRACTS.get(tool) or unknown(tool, "")


def task(id: str, tool: str = "search", after: tuple[str, ...] = (), **arguments: JsonValue) -> Task:
    return Task(id=id, tool=tool, arguments=arguments, after=after)


def ok(value: JsonValue = None) -> TaskEnd:
    return TaskEnd(status=TaskStatus.OK, content=canonical(value), media_type="application/json")


def ended(status: TaskStatus) -> TaskEnd:
    return TaskEnd(status=status, content=b"what it said", media_type="text/plain")


class Driver:
    """Drives a machine and notes what it wants."""

    def __init__(self, options: PlanOptions | None = None, *, begun: Iterable[int] = ()) -> None:
        self.machine = PlanMachine(contract_of, options, workspace_root="/workspace", begun=tuple(begun))
        self.now = 0.0
        self.starts: dict[str, StartTask] = {}
        self.cancels: list[str] = []
        self.settled: dict[str, TaskResult] = {}
        self.plans: list[PlanFinished] = []

    def take(self, effects: Iterable[PlanEffect]) -> list[str]:
        """Notes effects and returns the tasks that were started."""
        started: list[str] = []
        for effect in effects:
            if isinstance(effect, StartTask):
                assert effect.id not in self.starts, "started twice"
                self.starts[effect.id] = effect
                started.append(effect.id)
            elif isinstance(effect, CancelTask):
                self.cancels.append(effect.id)
            elif isinstance(effect, TaskSettled):
                assert effect.result.id not in self.settled, "settled twice"
                self.settled[effect.result.id] = effect.result
            elif isinstance(effect, PlanFinished):
                self.plans.append(effect)
        return started

    def add(self, *tasks: Task, complete: bool = False) -> list[str]:
        started = self.take(self.machine.add(tasks, self.now))
        return started + (self.complete() if complete else [])

    def complete(self) -> list[str]:
        return self.take(self.machine.complete(self.now))

    def end(self, id: str, end: TaskEnd | None = None) -> list[str]:
        return self.take(self.machine.finished(id, end or ok(), self.now))

    def tick(self, now: float) -> list[str]:
        self.now = now
        return self.take(self.machine.tick(now))

    def statuses(self) -> list[str]:
        """How the tasks ended, in call order, as the plan says it."""
        return [result.status.value for result in self.plans[-1].results]
