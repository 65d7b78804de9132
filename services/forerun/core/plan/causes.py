"""The causes that the plan machine itself gives."""

from __future__ import annotations

from dataclasses import replace

from forerun.core.plan.model import Cause, TaskResult, TaskStatus

PLAN_CANCELLED = Cause("plan_cancelled", "the plan was taken back")


def cancelled(task: str) -> Cause:
    """Somebody took the task back."""
    return Cause("task_cancelled", f"task {task} was taken back", task=task)


def late(task: str, seconds: float) -> Cause:
    """Its time was up."""
    return Cause("task_timeout", f"task {task} did not end within {seconds:g} s; its tool was told to stop", task=task)


def unknown(cause: Cause) -> Cause:
    """It was told to stop after it had begun to change something."""
    return replace(
        cause,
        reason="outcome_unknown",
        message=f"{cause.message}; it may have had its effect: look at the tool before running it again",
    )


def interrupted(task: str) -> Cause:
    """It was started, and who ran it was lost."""
    return Cause(
        "outcome_unknown",
        f"task {task} was started, its owner was lost, and it may not be repeated; look at the tool before running it"
        " again",
        task=task,
    )


def ended(task: str, status: TaskStatus) -> Cause:
    """Its executor said no more than how it ended."""
    return Cause(f"task_{status.value}", f"task {task} ended {status.value.replace('_', ' ')}", task=task)


def skipped(result: TaskResult) -> Cause:
    """Something that it refers to failed. What failed first is named, however long the way."""
    if result.cause is None:
        return Cause("input_failed", f"the tool of task {result.id} reports a failure", task=result.id)
    if result.cause.reason == "input_failed":
        return result.cause
    first = result.cause.task or result.id
    return Cause(
        "input_failed",
        f"task {result.id} has no result to refer to: {result.cause.message}",
        task=first,
        metadata={"reason": result.cause.reason},
        retry_after_seconds=result.cause.retry_after_seconds,
    )


def failed(result: TaskResult) -> Cause:
    """A task failed, and its policy makes that the failure of the plan."""
    cause = result.cause or ended(result.id, result.status)
    return Cause(
        "task_failed",
        f"task {result.id} ended {result.status.value.replace('_', ' ')}: {cause.message}",
        task=result.id,
        metadata={"reason": cause.reason},
        retry_after_seconds=cause.retry_after_seconds,
    )
