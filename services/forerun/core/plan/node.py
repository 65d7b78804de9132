"""One task inside the machine."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum

from forerun.core.plan.check import Checked
from forerun.core.plan.footprints import Ordering
from forerun.core.plan.model import Cause, TaskEnd, TaskResult, TaskStatus


class Stage(StrEnum):
    """Where a task stands."""

    WAITING = "waiting"  # for tasks before it
    SHARING = "sharing"  # for the outcome of an equal one
    HELD = "held"  # for the end of the message
    OFFERED = "offered"  # for a free place
    RUNNING = "running"
    STOPPING = "stopping"
    DONE = "done"


NEVER_STARTED = frozenset({Stage.WAITING, Stage.SHARING, Stage.HELD, Stage.OFFERED})


@dataclass(slots=True, kw_only=True)
class Node:
    """A task, where it stands, and who waits for it.

    Attributes:
        index: Its place in call order.
        checked: The task.
        ordering: When it may start.
        position: Its place in the order of conflicts; tasks that share an outcome have one together.
        dependents: Tasks that refer to it.
        sharers: Tasks that wait for its outcome.
        stage: Where it stands.
        due: When it is late, or when its stop is.
        started_at: When it was started.
        stopping: How it ends once it has stopped, and why.
        result: Its end.
    """

    index: int
    checked: Checked
    ordering: Ordering
    position: int = -1
    dependents: list[int] = field(default_factory=list)
    sharers: list[int] = field(default_factory=list)
    stage: Stage = Stage.WAITING
    due: float = 0.0
    started_at: float | None = None
    stopping: tuple[TaskStatus, Cause] | None = None
    result: TaskResult | None = None

    @property
    def id(self) -> str:
        """The task's id."""
        return self.checked.task.id

    @property
    def tool(self) -> str:
        """The task's tool."""
        return self.checked.task.tool

    def sharing(self, result: TaskResult) -> TaskResult:
        """The result of an equal task, as this one's."""
        return replace(
            result,
            id=self.id,
            index=self.index,
            shared_with=result.shared_with or result.id,
            seconds=0.0,
            provider_call_id=self.checked.task.provider_call_id,
        )

    def ended(
        self,
        status: TaskStatus,
        now: float,
        *,
        cause: Cause | None = None,
        end: TaskEnd | None = None,
        unsettled: bool = False,
    ) -> TaskResult:
        """The result of an end. Content is kept of ends that have one to tell."""
        told = end if end is not None and status in {TaskStatus.OK, TaskStatus.ERROR} else None
        return TaskResult(
            id=self.id,
            index=self.index,
            tool=self.tool,
            status=status,
            content=told.content if told else b"",
            media_type=told.media_type if told else "",
            digest=told.digest if told else "",
            stored_bytes=told.stored_bytes if told else 0,
            cause=cause,
            seconds=0.0 if self.started_at is None else now - self.started_at,
            unsettled=unsettled,
            provider_call_id=self.checked.task.provider_call_id,
        )
