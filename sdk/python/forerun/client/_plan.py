"""Plans: calls that refer to each other's results, run as parallel as their inputs and contracts allow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from forerun.client._json import Arguments, decode, encode_arguments
from forerun.client._results import Failure, failure_of
from forerun.v1 import plan_pb2


class OnFailure(StrEnum):
    """What the failure of a task does to the others. Tasks that refer to it are skipped in every case."""

    ISOLATE = "isolate"
    """Nothing: each task has its own end."""
    FAIL_FAST = "fail_fast"
    """What runs is cancelled, nothing else starts, and the plan has failed."""
    WAIT_ALL = "wait_all"
    """Everything runs to its end, and then the plan has failed."""


class TaskStatus(StrEnum):
    """How a task ended."""

    OK = "ok"
    ERROR = "error"
    """The tool answered, and reports a failure of its own."""
    REJECTED = "rejected"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    UNAVAILABLE = "unavailable"
    OUTCOME_UNKNOWN = "outcome_unknown"
    SKIPPED = "skipped"
    """It never ran, because something before it failed."""


class PlanStatus(StrEnum):
    """How a plan ended."""

    OK = "ok"
    FAILED = "failed"
    CANCELLED = "cancelled"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class PlanTask:
    """One task of a plan.

    Attributes:
        id: Its name within the plan: letters, digits, `_` and `-`.
        tool: Name of the tool.
        arguments: A mapping or JSON text. `$id` and `$id.path[0]` in its strings stand for results of earlier tasks; a
            string that is only a reference becomes the value with its type; `$$` is a `$`.
        after: Tasks that must have ended before, however they ended.
        timeout_seconds: Longest execution. None: the tool's own limit.
        on_failure: What its failure does. None: what the plan says.
        literal: The arguments are a model's own: a `$` in them is a `$`.
    """

    id: str
    tool: str
    arguments: Arguments = field(default_factory=dict)
    after: Sequence[str] = ()
    timeout_seconds: float | None = None
    on_failure: OnFailure | None = None
    literal: bool = False


@dataclass(frozen=True, slots=True)
class TaskResult:
    """How a task ended.

    Attributes:
        id: Its name.
        index: Its place in the plan.
        status: How it ended.
        content: The observation, byte for byte.
        media_type: Its type.
        failure: Why there is none, where the status is neither `ok` nor `error`.
        shared_with: The task whose execution answered it, or empty.
        seconds: From its start to its end; 0 where it never started.
        direct: The client ran the plan itself when this task ended, because the platform was away.
    """

    id: str
    index: int
    status: TaskStatus
    content: bytes
    media_type: str
    failure: Failure | None
    shared_with: str
    seconds: float
    direct: bool = False

    def json(self) -> Any:
        """The observation as a value; numbers are exact.

        Raises:
            ResultNotJson: it is no JSON.
        """
        return decode(self.content)


@dataclass(frozen=True, slots=True)
class PlanResult:
    """How a plan, or a round of it, ended.

    Attributes:
        status: How.
        tasks: The tasks in the order of the plan, over all rounds.
        failure: Set where the status is not `ok`.
        round: 0, or the number of the last continuation.
    """

    status: PlanStatus
    tasks: Sequence[TaskResult]
    failure: Failure | None
    round: int

    @property
    def direct(self) -> bool:
        """The client ran some of it itself, one task after the other, because the platform was away."""
        return any(one.direct for one in self.tasks)

    def __getitem__(self, task: str) -> TaskResult:
        """The task of that name.

        Raises:
            KeyError: there is none.
        """
        for one in self.tasks:
            if one.id == task:
                return one
        raise KeyError(task)


Progress = Callable[[int, int, int], None]
"""Told how many tasks are known, run, and have ended."""


def name_of(name: str, prefix: str) -> str:
    """The value of an enum of this module, from its name on the wire."""
    return name.removeprefix(prefix).lower()


def policy_message(policy: OnFailure | None) -> plan_pb2.FailurePolicy.ValueType:
    """A failure policy on the wire; None leaves it open."""
    name = "UNSPECIFIED" if policy is None else policy.name
    return plan_pb2.FailurePolicy.Value(f"FAILURE_POLICY_{name}")


def task_message(task: PlanTask) -> plan_pb2.PlanTask:
    """A task on the wire.

    Raises:
        InvalidRequest: its arguments have no exact JSON form.
    """
    message = plan_pb2.PlanTask(
        id=task.id,
        tool=task.tool,
        arguments=encode_arguments(task.arguments),
        after=task.after,
        on_failure=policy_message(task.on_failure),
        literal=task.literal,
    )
    if task.timeout_seconds is not None:
        message.timeout_seconds = task.timeout_seconds
    return message


def task_result(message: plan_pb2.PlanTaskEnded, content: bytes) -> TaskResult:
    """How a task ended, from the wire."""
    return TaskResult(
        id=message.id,
        index=message.index,
        status=TaskStatus(name_of(plan_pb2.TaskStatus.Name(message.status), "TASK_STATUS_")),
        content=content,
        media_type=message.observation.media_type,
        failure=failure_of(message.failure) if message.HasField("failure") else None,
        shared_with=message.shared_with,
        seconds=message.seconds,
    )
