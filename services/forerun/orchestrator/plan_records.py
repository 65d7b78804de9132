"""Between plans and the wire."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from forerun.core import limits
from forerun.core.canonical import CanonicalError, JsonValue, parse_strict
from forerun.core.plan import (
    Cause,
    Early,
    FailurePolicy,
    PlanError,
    PlanFinished,
    PlanOptions,
    Task,
    TaskEnd,
    TaskResult,
    TaskStatus,
)
from forerun.runtime.errors import ErrorReason, InvalidArgument
from forerun.v1 import common_pb2, plan_pb2, session_pb2

_POLICIES: Final[Mapping[int, FailurePolicy]] = {
    plan_pb2.FAILURE_POLICY_ISOLATE: FailurePolicy.ISOLATE,
    plan_pb2.FAILURE_POLICY_FAIL_FAST: FailurePolicy.FAIL_FAST,
    plan_pb2.FAILURE_POLICY_WAIT_ALL: FailurePolicy.WAIT_ALL,
}

_NOT_STARTED: Final = frozenset({TaskStatus.REJECTED, TaskStatus.TIMEOUT, TaskStatus.CANCELLED, TaskStatus.UNAVAILABLE})
"""Ends of calls that were not begun, where they may not be repeated: else those end `OUTCOME_UNKNOWN`."""


def options_of(message: plan_pb2.PlanOptions) -> PlanOptions:
    """What the owner of a plan chose.

    Raises:
        InvalidArgument: a bound is out of its range.
    """
    usual = PlanOptions()
    try:
        return PlanOptions(
            failure=_POLICIES.get(message.failure, usual.failure),
            early=Early.READS if message.reads_first else Early.ALL,
            in_flight=message.in_flight if message.HasField("in_flight") else usual.in_flight,
            tasks=message.tasks if message.HasField("tasks") else usual.tasks,
        )
    except ValueError as error:
        raise InvalidArgument(ErrorReason.ARGUMENT_INVALID, str(error), metadata={"field": "options"}) from error


def tasks_of(messages: Sequence[plan_pb2.PlanTask]) -> list[Task]:
    """Tasks from the wire.

    Raises:
        InvalidArgument: arguments are not the JSON text of an object.
    """
    return [
        Task(
            id=message.id,
            tool=message.tool,
            arguments=_arguments(message),
            literal=message.literal,
            text=message.arguments,
            after=tuple(message.after),
            timeout_seconds=message.timeout_seconds if message.HasField("timeout_seconds") else None,
            on_failure=_POLICIES.get(message.on_failure),
            provider_call_id=message.provider_call_id,
        )
        for message in messages
    ]


def _arguments(message: plan_pb2.PlanTask) -> Mapping[str, JsonValue]:
    place = {"task": message.id[: limits.NAME_CHARS]}
    try:
        value = parse_strict(message.arguments)
    except CanonicalError as error:
        raise InvalidArgument(
            ErrorReason.ARGUMENTS_NOT_JSON, f"the arguments of task {place['task']!r} are no JSON: {error}",
            metadata=place,
        ) from error  # fmt: skip
    if not isinstance(value, dict):
        raise InvalidArgument(
            ErrorReason.ARGUMENTS_REFUSED, f"the arguments of task {place['task']!r} are no object", metadata=place
        )
    return value


def refused(error: PlanError) -> InvalidArgument:
    """What is no plan, as the client hears of it: every problem at once."""
    tasks = [task for problem in error.problems for task in problem.tasks]
    return InvalidArgument(
        ErrorReason.ARGUMENT_INVALID,
        str(error),
        metadata={"problem": error.reason, "tasks": ",".join(dict.fromkeys(tasks))[: limits.NAME_CHARS]},
    )


def end_of(message: session_pb2.CallResult) -> TaskEnd:
    """The end of a task's call."""
    name = common_pb2.CallStatus.Name(message.status).removeprefix("CALL_STATUS_")
    status = TaskStatus[name] if name in TaskStatus.__members__ else TaskStatus.UNAVAILABLE
    observation = message.observation
    if status is TaskStatus.OK and observation.tool_error:
        status = TaskStatus.ERROR
    cause = None
    if message.HasField("failure"):
        failure = message.failure
        retry = failure.retry_after_seconds if failure.HasField("retry_after_seconds") else None
        cause = Cause(failure.reason, failure.message, metadata=dict(failure.metadata), retry_after_seconds=retry)
    return TaskEnd(
        status=status,
        content=observation.content,
        media_type=observation.media_type,
        digest=observation.digest,
        cause=cause,
        not_started=status in _NOT_STARTED,
    )


def task_messages(result: TaskResult) -> Iterator[session_pb2.RunPlanResponse]:
    """What the client gets for a task that has its end: chunks of a large observation first."""
    large = len(result.content) > limits.CHUNK_BYTES
    for start in range(0, len(result.content) if large else 0, limits.CHUNK_BYTES):
        chunk = plan_pb2.PlanChunk(data=result.content[start : start + limits.CHUNK_BYTES])
        yield session_pb2.RunPlanResponse(chunk=chunk)
    yield session_pb2.RunPlanResponse(
        task=plan_pb2.PlanTaskEnded(
            id=result.id,
            index=result.index,
            status=plan_pb2.TaskStatus.Value(f"TASK_STATUS_{result.status.name}"),
            observation=common_pb2.Observation(
                content=b"" if large else result.content,
                media_type=result.media_type,
                tool_error=result.status is TaskStatus.ERROR,
                digest=result.digest,
                size_bytes=len(result.content),
            ),
            failure=_failure(result.cause),
            shared_with=result.shared_with,
            seconds=result.seconds,
            unsettled=result.unsettled,
        )
    )


def ended_message(finished: PlanFinished) -> session_pb2.RunPlanResponse:
    """The end of a round."""
    return session_pb2.RunPlanResponse(
        ended=plan_pb2.PlanEnded(
            status=plan_pb2.PlanStatus.Value(f"PLAN_STATUS_{finished.status.name}"),
            failure=_failure(finished.cause),
            round=finished.round,
        )
    )


def _failure(cause: Cause | None) -> common_pb2.Failure | None:
    if cause is None:
        return None
    metadata = dict(cause.metadata) | ({"task": cause.task} if cause.task else {})
    message = common_pb2.Failure(reason=cause.reason, message=cause.message, metadata=metadata)
    if cause.retry_after_seconds is not None:
        message.retry_after_seconds = cause.retry_after_seconds
    return message
