"""What the plan machine wants done, in order."""

from __future__ import annotations

from dataclasses import dataclass

from forerun.core.canonical import JsonValue
from forerun.core.plan.model import Cause, PlanStatus, TaskResult


@dataclass(frozen=True, slots=True)
class StartTask:
    """Run a task. Its end comes through `PlanMachine.finished`.

    Attributes:
        id: Which task.
        index: Its place in call order, over all rounds.
        tool: The tool.
        arguments: The bytes to run: as sent, or with every reference resolved.
        value: The same, parsed.
        timeout_seconds: Longest execution.
        repeatable: It may be run again when its outcome is not known. What may not be has to be journalled first.
    """

    id: str
    index: int
    tool: str
    arguments: bytes
    value: JsonValue
    timeout_seconds: float
    repeatable: bool


@dataclass(frozen=True, slots=True)
class CancelTask:
    """Stop a task, down to the tool. Its end still comes, and is waited for within CANCEL_SETTLE_SECONDS.

    Attributes:
        id: Which task.
        late: Its own time is up. An execution that has the same deadline stops by itself.
    """

    id: str
    late: bool = False


@dataclass(frozen=True, slots=True)
class ShareTask:
    """A task has the outcome of an equal one, and no execution: to be recorded, so that nobody executes it later.

    Attributes:
        index: Its place.
        tool: The tool.
        arguments: The bytes that would have been run.
        leader: The place of the other one.
    """

    index: int
    tool: str
    arguments: bytes
    leader: int


@dataclass(frozen=True, slots=True)
class TaskSettled:
    """A task has its end."""

    result: TaskResult


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the plan is.

    Attributes:
        known: Tasks that have arrived.
        running: Tasks that run, or are on their way to a stop.
        settled: Tasks that have their end.
        complete: No more are expected.
    """

    known: int
    running: int
    settled: int
    complete: bool


@dataclass(frozen=True, slots=True)
class PlanFinished:
    """Nothing of the plan is open any more.

    Attributes:
        status: How it ended.
        results: One for each task, in call order, over all rounds.
        cause: Set where the status is not OK.
        round: 0, or the number of the last replan.
    """

    status: PlanStatus
    results: tuple[TaskResult, ...]
    cause: Cause | None
    round: int


PlanEffect = StartTask | CancelTask | ShareTask | TaskSettled | Progress | PlanFinished
