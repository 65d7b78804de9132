"""Plans on the wire: what becomes of the end of a call, and of what is no plan."""

from __future__ import annotations

import pytest

from forerun.core.plan import TaskStatus
from forerun.orchestrator.plan_records import end_of, options_of, tasks_of
from forerun.runtime.errors import InvalidArgument
from forerun.v1 import common_pb2, plan_pb2, session_pb2


@pytest.mark.parametrize(
    ("status", "tool_error", "ended"),
    [
        (common_pb2.CALL_STATUS_OK, False, TaskStatus.OK),
        (common_pb2.CALL_STATUS_OK, True, TaskStatus.ERROR),
        (common_pb2.CALL_STATUS_REJECTED, False, TaskStatus.REJECTED),
        (common_pb2.CALL_STATUS_TIMEOUT, False, TaskStatus.TIMEOUT),
        (common_pb2.CALL_STATUS_CANCELLED, False, TaskStatus.CANCELLED),
        (common_pb2.CALL_STATUS_UNAVAILABLE, False, TaskStatus.UNAVAILABLE),
        (common_pb2.CALL_STATUS_OUTCOME_UNKNOWN, False, TaskStatus.OUTCOME_UNKNOWN),
    ],
)
def test_the_end_of_a_call_is_the_end_of_its_task(
    status: common_pb2.CallStatus.ValueType, tool_error: bool, ended: TaskStatus
) -> None:
    observation = common_pb2.Observation(content=b"x", media_type="text/plain", tool_error=tool_error)
    end = end_of(session_pb2.CallResult(status=status, observation=observation))
    assert (end.status, end.content, end.media_type) == (ended, b"x", "text/plain")


def test_why_a_call_failed_is_why_its_task_did() -> None:
    failure = common_pb2.Failure(reason="RATE_LIMITED", message="later", metadata={"a": "b"}, retry_after_seconds=2.0)
    end = end_of(session_pb2.CallResult(status=common_pb2.CALL_STATUS_UNAVAILABLE, failure=failure))
    assert end.cause is not None
    assert (end.cause.reason, end.cause.message, end.cause.metadata) == ("RATE_LIMITED", "later", {"a": "b"})
    assert end.cause.retry_after_seconds == 2.0


@pytest.mark.parametrize("arguments", [b"", b"[1]", b'{"a": NaN}', b'{"a": 1', b'{"a": 1, "a": 2}'])
def test_arguments_that_are_no_object_are_refused_with_the_task(arguments: bytes) -> None:
    with pytest.raises(InvalidArgument) as caught:
        tasks_of([plan_pb2.PlanTask(id="one", tool="get", arguments=arguments)])
    assert caught.value.metadata == {"task": "one"}


def test_bounds_out_of_range_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="PLAN_TASKS_MAX"):
        options_of(plan_pb2.PlanOptions(tasks=1_000_000))


@pytest.mark.parametrize(
    ("status", "certain"),
    [
        (common_pb2.CALL_STATUS_TIMEOUT, True),
        (common_pb2.CALL_STATUS_CANCELLED, True),
        (common_pb2.CALL_STATUS_UNAVAILABLE, True),
        (common_pb2.CALL_STATUS_REJECTED, True),
        (common_pb2.CALL_STATUS_OUTCOME_UNKNOWN, False),
        (common_pb2.CALL_STATUS_OK, False),
    ],
)
def test_a_call_that_had_begun_ends_unknown_and_any_other_failure_says_that_it_had_not(
    status: common_pb2.CallStatus.ValueType, certain: bool
) -> None:
    assert end_of(session_pb2.CallResult(status=status)).not_started is certain
