"""Commands and their ends as messages between worker and runner."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Final

from forerun.core import limits
from forerun.sandbox.commands.output import Captured
from forerun.sandbox.commands.runner import CommandPlan, CommandResult
from forerun.sandbox.isolation.launch import Bind
from forerun.sandbox.isolation.levels import LevelName
from forerun.sandbox.isolation.limits import CommandLimits, LimitReason
from forerun.v1 import runner_pb2

LIMITS: Final[Mapping[LimitReason, runner_pb2.RunLimit.ValueType]] = {
    LimitReason.MEMORY: runner_pb2.RUN_LIMIT_MEMORY,
    LimitReason.PIDS: runner_pb2.RUN_LIMIT_PIDS,
    LimitReason.CPU: runner_pb2.RUN_LIMIT_CPU,
    LimitReason.DISK: runner_pb2.RUN_LIMIT_DISK,
    LimitReason.OUTPUT: runner_pb2.RUN_LIMIT_OUTPUT,
    LimitReason.TIME: runner_pb2.RUN_LIMIT_TIME,
}
_REASONS: Final = {number: reason for reason, number in LIMITS.items()}
_MOST_EXIT_CODE: Final = 255
_REPLACED: Final = "\ufffd"

SETUP_FAILURE_CHARACTERS: Final = 1000
"""Of the reason why no command came up; it goes into an error that an agent sees."""


class WrongEnd(Exception):
    """What came is the end of no command."""


def announcement(plan: CommandPlan, claim: bytes) -> runner_pb2.RunCommand:
    """That there will be a command, and what it needs; nothing that could be run."""
    return runner_pb2.RunCommand(claim=claim, has_workspace=plan.workspace is not None)


def command_message(plan: CommandPlan, claim: bytes) -> runner_pb2.RunCommand:
    """A command to run, without its workspace."""
    bounds = plan.limits
    return runner_pb2.RunCommand(
        claim=claim, argv=plan.argv, environment=plan.environment, stdin=plan.stdin,
        has_workspace=plan.workspace is not None,
        read_only=isinstance(plan.workspace, Bind) and plan.workspace.read_only,
        memory_bytes=bounds.memory_bytes, pids=bounds.pids, cpu_seconds=bounds.cpu_seconds,
        disk_bytes=bounds.disk_bytes, output_bytes=bounds.output_bytes, output_total_bytes=bounds.output_total_bytes,
        wall_seconds=bounds.wall_seconds,
    )  # fmt: skip


def plan_of(message: runner_pb2.RunCommand, workspace: str | None) -> CommandPlan:
    """The command as the runner runs it.

    Args:
        message: What came.
        workspace: Where its workspace lies here.
    """
    bounds = CommandLimits(
        memory_bytes=message.memory_bytes, pids=message.pids, cpu_seconds=message.cpu_seconds,
        disk_bytes=message.disk_bytes,
        output_bytes=message.output_bytes if message.HasField("output_bytes") else None,
        output_total_bytes=message.output_total_bytes, wall_seconds=message.wall_seconds,
    )  # fmt: skip
    return CommandPlan(
        argv=tuple(message.argv), environment=dict(message.environment),
        workspace=None if workspace is None else Bind(workspace),
        watched=() if workspace is None else (workspace,),
        stdin=message.stdin if message.HasField("stdin") else None, limits=bounds,
    )  # fmt: skip


def output_messages(result: CommandResult) -> Iterator[runner_pb2.RunResponse]:
    """The output, in parts."""
    for error, stream in ((False, result.stdout), (True, result.stderr)):
        data = stream.text.encode()
        for start in range(0, len(data), limits.CHUNK_BYTES):
            part = data[start : start + limits.CHUNK_BYTES]
            yield runner_pb2.RunResponse(output=runner_pb2.RunOutput(error=error, data=part))


def ended_message(result: CommandResult) -> runner_pb2.RunResponse:
    """The end of a command that ran."""
    limit = runner_pb2.RUN_LIMIT_UNSPECIFIED if result.limit is None else LIMITS[result.limit]
    return runner_pb2.RunResponse(
        ended=runner_pb2.RunEnded(
            exit_code=result.exit_code, limit=limit, cpu_seconds=result.cpu_seconds,
            stdout=_stream(result.stdout), stderr=_stream(result.stderr),
        )
    )  # fmt: skip


def result_of(ended: runner_pb2.RunEnded, stdout: bytes, stderr: bytes) -> CommandResult:
    """The end of a command as the worker tells it. What a runner says is taken for what a command says.

    Raises:
        WrongEnd: No command ends so.
    """
    code = ended.exit_code if ended.HasField("exit_code") else None
    if code is not None and not 0 <= code <= _MOST_EXIT_CODE:
        raise WrongEnd("no command has this exit code")
    if not (math.isfinite(ended.cpu_seconds) and ended.cpu_seconds >= 0.0):
        raise WrongEnd("no command takes such a time")
    return CommandResult(
        exit_code=code,
        stdout=_captured(ended.stdout, stdout),
        stderr=_captured(ended.stderr, stderr),
        limit=_REASONS.get(ended.limit),
        cpu_seconds=ended.cpu_seconds if ended.HasField("cpu_seconds") else None,
        level=LevelName.POD,
    )


def _stream(captured: Captured) -> runner_pb2.RunStream:
    return runner_pb2.RunStream(
        total_bytes=captured.total_bytes, omitted_bytes=captured.omitted_bytes, replaced_bytes=captured.replaced_bytes
    )


def _captured(message: runner_pb2.RunStream, data: bytes) -> Captured:
    text = data.decode("utf-8", "replace")
    # It is told with the answer, and each of these bytes is shown as one character.
    replaced = min(message.replaced_bytes, text.count(_REPLACED))
    return Captured(text, message.total_bytes, message.omitted_bytes, replaced)
