"""The gRPC face of the worker: messages to calls and back."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any, Final

import grpc.aio

from forerun.runtime.auth import current_caller, require_service
from forerun.runtime.errors import ErrorReason, InvalidArgument, PermissionDenied
from forerun.runtime.tracing import SpanName, Tracing, use_trace
from forerun.sandbox.connectors.port import Ended, Invocation, ToolFault
from forerun.sandbox.demand import Demand
from forerun.sandbox.isolation.levels import Ladder
from forerun.sandbox.owner import Owner
from forerun.sandbox.registry import Registry
from forerun.sandbox.tools import Hints, Tool
from forerun.sandbox.turns import Turns
from forerun.sandbox.worker.engine import Engine
from forerun.sandbox.worker.execution import Chunk, Finished, Request, Started, Step
from forerun.sandbox.worker.slots import Priority
from forerun.v1 import common_pb2, sandbox_pb2, sandbox_pb2_grpc

_Context = grpc.aio.ServicerContext[Any, Any]

_PRIORITIES: Final[Mapping[int, Priority]] = {
    sandbox_pb2.PRIORITY_SPECULATIVE: Priority.SPECULATIVE,
    sandbox_pb2.PRIORITY_AUTHORITATIVE: Priority.AUTHORITATIVE,
    sandbox_pb2.PRIORITY_AUDIT: Priority.AUDIT,
}
_STATUSES: Final[Mapping[Ended, common_pb2.CallStatus.ValueType]] = {
    Ended.OK: common_pb2.CALL_STATUS_OK,
    Ended.REJECTED: common_pb2.CALL_STATUS_REJECTED,
    Ended.TIMEOUT: common_pb2.CALL_STATUS_TIMEOUT,
    Ended.CANCELLED: common_pb2.CALL_STATUS_CANCELLED,
    Ended.UNAVAILABLE: common_pb2.CALL_STATUS_UNAVAILABLE,
    Ended.OUTCOME_UNKNOWN: common_pb2.CALL_STATUS_OUTCOME_UNKNOWN,
}
_MOST_TIMEOUT_SECONDS: Final = 24 * 3600.0
_IN_TURN: Final = f"/{sandbox_pb2.DESCRIPTOR.services_by_name['SandboxService'].full_name}/ExecuteInTurn"


class SandboxServicer(sandbox_pb2_grpc.SandboxServiceServicer):
    """Serves `SandboxService`, to services of the installation only.

    Args:
        engine: Runs executions.
        registry: Knows the tools.
        ladder: Isolation of this machine.
        worker: Name of this worker.
        slots: Authoritative and speculative slots.
        tracing: Where the spans of executions go that share a stream.
    """

    def __init__(
        self,
        engine: Engine,
        registry: Registry,
        ladder: Ladder,
        *,
        worker: str,
        slots: tuple[int, int],
        tracing: Tracing,
    ) -> None:
        self._engine = engine
        self._registry = registry
        self._ladder = ladder
        self._worker = worker
        self._slots = slots
        self._tracing = tracing
        self._turns = Turns()

    def refuse(self) -> None:
        """Ends the streams on which nothing runs, and each other one after what runs."""
        self._turns.refuse()

    async def Execute(  # noqa: N802
        self, request: sandbox_pb2.ExecuteRequest, context: _Context
    ) -> AsyncIterator[sandbox_pb2.ExecuteResponse]:
        """Runs one action."""
        require_service()
        if request.caller.tenant != current_caller().tenant:
            raise PermissionDenied(
                ErrorReason.CALLER_NOT_ALLOWED, "the request names another tenant than the one it is made for"
            )
        async with aclosing(self._execution(request)) as responses:
            async for response in responses:
                yield response

    async def ExecuteInTurn(  # noqa: N802
        self, request_iterator: AsyncIterator[sandbox_pb2.ExecuteInTurnRequest], context: _Context
    ) -> AsyncIterator[sandbox_pb2.ExecuteInTurnResponse]:
        """Runs one action after the other."""
        require_service()
        while (message := await self._turns.next(request_iterator)) is not None:
            if not message.request.caller.tenant:
                raise PermissionDenied(ErrorReason.CALLER_NOT_ALLOWED, "the request names no tenant")
            span = self._tracing.start(
                SpanName.RPC, parent=message.traceparent or None, attributes={"rpc.method": _IN_TURN}
            )
            use_trace(span.context)
            try:
                async with aclosing(self._execution(message.request, started=False)) as responses:
                    async for response in responses:
                        yield sandbox_pb2.ExecuteInTurnResponse(response=response)
            finally:
                span.end()

    async def _execution(
        self, request: sandbox_pb2.ExecuteRequest, *, started: bool = True
    ) -> AsyncGenerator[sandbox_pb2.ExecuteResponse, None]:
        tool = self._registry.find(request.action.tool)
        asked = _request(request, tool)
        if request.action.tool_version not in ("", tool.version):
            yield _other_version()
            return
        # Closed also when the caller hangs up: the tool has ended when this returns.
        async with aclosing(self._engine.execute(asked)) as steps:
            async for step in steps:
                if started or not isinstance(step, Started):
                    yield self._message(step)

    async def Promote(  # noqa: N802
        self, request: sandbox_pb2.PromoteRequest, context: _Context
    ) -> sandbox_pb2.PromoteResponse:
        """Makes a running speculation authoritative."""
        require_service()
        seconds = self._engine.promote(current_caller().tenant, request.execution, _timeout(request.timeout_seconds))
        return sandbox_pb2.PromoteResponse(running_seconds=seconds)

    async def StopExecution(  # noqa: N802
        self, request: sandbox_pb2.StopExecutionRequest, context: _Context
    ) -> sandbox_pb2.StopExecutionResponse:
        """Stops an execution, and answers when it has ended."""
        require_service()
        await self._engine.end(current_caller().tenant, request.execution)
        return sandbox_pb2.StopExecutionResponse()

    async def MergeFork(  # noqa: N802
        self, request: sandbox_pb2.MergeForkRequest, context: _Context
    ) -> sandbox_pb2.MergeForkResponse:
        """Merges a fork."""
        require_service()
        return sandbox_pb2.MergeForkResponse(
            workspace_version=await self._engine.merge(_owner(request.session), request.fork, name=request.as_fork)
        )

    async def DropFork(  # noqa: N802
        self, request: sandbox_pb2.DropForkRequest, context: _Context
    ) -> sandbox_pb2.DropForkResponse:
        """Drops a fork."""
        require_service()
        await self._engine.drop(_owner(request.session), request.fork)
        return sandbox_pb2.DropForkResponse()

    async def CloseSession(  # noqa: N802
        self, request: sandbox_pb2.CloseSessionRequest, context: _Context
    ) -> sandbox_pb2.CloseSessionResponse:
        """Forgets a session."""
        require_service()
        await self._engine.close_session(_owner(request.session))
        return sandbox_pb2.CloseSessionResponse()

    async def ListTools(  # noqa: N802
        self, request: sandbox_pb2.ListToolsRequest, context: _Context
    ) -> sandbox_pb2.ListToolsResponse:
        """Lists the tools."""
        require_service()
        return sandbox_pb2.ListToolsResponse(tools=[_description(tool) for tool in self._registry.tools()])

    async def Describe(  # noqa: N802
        self, request: sandbox_pb2.DescribeRequest, context: _Context
    ) -> sandbox_pb2.DescribeResponse:
        """Says what is active."""
        require_service()
        authoritative, speculative = self._slots
        return sandbox_pb2.DescribeResponse(
            worker=self._worker,
            isolation=self._ladder.in_use.value,
            levels=[
                sandbox_pb2.IsolationLevel(
                    name=level.name.value, available=level.available, why=level.why, gives=level.gives
                )
                for level in self._ladder.levels
            ],
            workspace_fork=self._engine.workspaces.strategy.value,
            authoritative_slots=authoritative,
            speculative_slots=speculative,
        )

    def _message(self, step: Step) -> sandbox_pb2.ExecuteResponse:
        match step:
            case Started(tool_version):
                started = sandbox_pb2.ExecutionStarted(worker=self._worker, tool_version=tool_version)
                return sandbox_pb2.ExecuteResponse(started=started)
            case Chunk(data):
                return sandbox_pb2.ExecuteResponse(chunk=sandbox_pb2.ExecutionChunk(data=data))
            case Finished():
                return sandbox_pb2.ExecuteResponse(finished=_finished(step))


def _owner(session: str) -> Owner:
    """The session of that name of the tenant for whom the call is made."""
    return Owner(current_caller().tenant, session)


def _request(request: sandbox_pb2.ExecuteRequest, tool: Tool) -> Request:
    priority = _PRIORITIES.get(request.priority)
    for field, given in (
        ("priority", priority is not None),
        ("execution", request.execution),
        ("session", request.session),
    ):
        if not given:
            raise InvalidArgument(ErrorReason.ARGUMENT_INVALID, f"{field} is missing", metadata={"field": field})
    assert priority is not None
    if request.merge_on_success and (priority is not Priority.AUTHORITATIVE or not request.fork):
        raise InvalidArgument(
            ErrorReason.ARGUMENT_INVALID, "merge_on_success needs PRIORITY_AUTHORITATIVE and a fork",
            metadata={"field": "merge_on_success"},
        )  # fmt: skip
    raw = request.action.arguments
    invocation = Invocation(
        tool=tool, raw=raw, arguments=tool.checked(raw),
        tenant=request.caller.tenant, principal=request.caller.principal,
        credential_scope=request.caller.credential_scope, session=request.session, session_label=request.session_label,
        demand=Demand(priority is Priority.AUTHORITATIVE), timeout_seconds=_timeout(request.timeout_seconds),
        idempotency_key=request.idempotency_key,
        output_cap_bytes=request.output_cap_bytes if request.HasField("output_cap_bytes") else None, fork=request.fork,
        provider=request.provider, expects_state=request.expects_state,
    )  # fmt: skip
    concurrency = request.tool_concurrency if request.HasField("tool_concurrency") else None
    return Request(request.execution, invocation, priority, concurrency or None, request.merge_on_success)


def _timeout(seconds: float) -> float:
    if not 0 < seconds <= _MOST_TIMEOUT_SECONDS:
        raise InvalidArgument(
            ErrorReason.ARGUMENT_INVALID, f"timeout_seconds must be above 0 and at most {_MOST_TIMEOUT_SECONDS:g}",
            metadata={"field": "timeout_seconds"},
        )  # fmt: skip
    return seconds


def _finished(step: Finished) -> sandbox_pb2.ExecutionFinished:
    message = sandbox_pb2.ExecutionFinished(
        status=_STATUSES[step.ended], seconds=step.seconds, queued_seconds=step.queued_seconds,
        preempted=step.preempted, promoted=step.promoted, may_continue=step.may_continue,
    )  # fmt: skip
    if step.result is not None:
        message.observation.CopyFrom(
            common_pb2.Observation(
                content=step.result.content, media_type=step.result.media_type, tool_error=step.result.tool_error,
                digest=step.digest, size_bytes=step.size_bytes,
            )
        )  # fmt: skip
        if step.result.cpu_seconds is not None:
            message.cpu_seconds = step.result.cpu_seconds
    if step.fault is not None:
        message.failure.CopyFrom(_failure(step.fault))
        message.not_started = step.fault.not_started
    return message


def _failure(fault: ToolFault) -> common_pb2.Failure:
    return common_pb2.Failure(
        reason=fault.reason.value, message=fault.message, metadata=fault.metadata,
        retry_after_seconds=fault.retry_after_seconds,
    )  # fmt: skip


def _other_version() -> sandbox_pb2.ExecuteResponse:
    """The caller reasons about another version of the tool than the one that would run: nothing runs."""
    fault = ToolFault(
        Ended.UNAVAILABLE, ErrorReason.STATE_CONFLICT, "the tool has another version here now; list the tools again",
        not_started=True,
    )  # fmt: skip
    return sandbox_pb2.ExecuteResponse(
        finished=sandbox_pb2.ExecutionFinished(
            status=_STATUSES[fault.ended], failure=_failure(fault), not_started=fault.not_started
        )
    )


def _description(tool: Tool) -> sandbox_pb2.ToolDescription:
    message = sandbox_pb2.ToolDescription(
        name=tool.name, server=tool.server.name, version=tool.version, input_schema=tool.input_schema,
        description=tool.description, uses_workspace=tool.uses_workspace, stateful=tool.stateful,
    )  # fmt: skip
    if tool.hints != Hints():
        message.hints.CopyFrom(
            sandbox_pb2.ToolHints(
                read_only=tool.hints.read_only, destructive=tool.hints.destructive, idempotent=tool.hints.idempotent,
                open_world=tool.hints.open_world,
            )
        )  # fmt: skip
    return message
