"""The transport of sessions: between the contract's messages and the engine."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import grpc.aio

from forerun.core import limits
from forerun.orchestrator.engine import Orchestrator
from forerun.orchestrator.erasing import Erasing
from forerun.orchestrator.observer import Observer
from forerun.orchestrator.opening import check_event_id
from forerun.orchestrator.plan_records import options_of
from forerun.orchestrator.planning import PlanRun
from forerun.orchestrator.policies import PolicySource
from forerun.orchestrator.preparation import Tool
from forerun.orchestrator.records import failure_from, failure_message, mode_message, totals_message
from forerun.orchestrator.runner import OWNER_CHANGED, Runner
from forerun.orchestrator.stream import Stream
from forerun.orchestrator.workers import Workers
from forerun.runtime.auth import Caller, Role, current_caller
from forerun.runtime.erasures import ErasedHistories
from forerun.runtime.errors import (
    INTERNAL_MESSAGE,
    Bug,
    DeadlineExceeded,
    ErrorReason,
    FailedPrecondition,
    ForerunError,
    InvalidArgument,
    PermissionDenied,
    ResourceExhausted,
    Unauthenticated,
)
from forerun.runtime.network import remaining_seconds
from forerun.runtime.network_inbound import AllowedRequests
from forerun.runtime.policy import Policy, contract_message
from forerun.runtime.switch import Switch
from forerun.v1 import session_pb2, session_pb2_grpc

_LOG: Final = logging.getLogger(__name__)
_Context = grpc.aio.ServicerContext[Any, Any]
_HELLO_SECONDS: Final = 30.0
_WRITTEN_DOWN: Final = frozenset({"batch", "event"})
_RUNS: Final = frozenset({"batch", "partial"})
_UNARY_SECONDS: Final = limits.DEADLINE_MAX_SECONDS

Requests = AsyncIterator[session_pb2.ConnectRequest]
Responses = Stream[session_pb2.ConnectResponse]


class SessionServicer(session_pb2_grpc.SessionServiceServicer):
    """Serves SessionService.

    Args:
        engine: The sessions.
        policies: For listings.
        workers: For listings.
        switch: The kill switch.
        erasing: Erases tenants at model servers.
        observer: Totals of the replica.
        admitted: The caller of a call's metadata now; raises when its credential is not valid any more.
    """

    def __init__(
        self,
        engine: Orchestrator,
        *,
        policies: PolicySource,
        workers: Workers,
        switch: Switch,
        erasing: Erasing,
        observer: Observer,
        admitted: Callable[[_Context], Caller],
    ) -> None:
        self._engine = engine
        self._policies = policies
        self._workers = workers
        self._switch = switch
        self._erasing = erasing
        self._observer = observer
        self._admitted = admitted

    async def Connect(  # noqa: N802  (the contract's name)
        self, request_iterator: Requests, context: _Context
    ) -> AsyncIterator[session_pb2.ConnectResponse]:
        """The session's stream; see the contract."""
        caller = current_caller()
        hello = await _hello(request_iterator)
        runner = await self._engine.open(caller, hello)
        stream = runner.outlet.attach()
        reader = asyncio.ensure_future(self._read(runner, request_iterator, context))

        def read(reader: asyncio.Future[None]) -> None:
            # A reader that failed ends the stream after what waits. One that is done has a client that listens on.
            if not reader.cancelled() and reader.exception() is not None:
                stream.end()

        reader.add_done_callback(read)
        try:
            yield session_pb2.ConnectResponse(welcome=_welcome(runner))
            while (response := await stream.take()) is not None:
                yield response
                if response.HasField("ended"):
                    return
            _raise_end(runner, stream, reader)
        finally:
            reader.cancel()
            runner.outlet.detach(stream)

    async def _read(self, runner: Runner, requests: Requests, context: _Context) -> None:
        try:
            await self._read_all(runner, requests, context)
        except Unauthenticated as error:
            if isinstance(requests, AllowedRequests) and requests.refused is not None:
                _refuse(runner, requests.refused, error)
            raise

    async def _read_all(self, runner: Runner, requests: Requests, context: _Context) -> None:
        async for request in requests:
            kind = request.WhichOneof("message")
            if kind in _WRITTEN_DOWN:
                await runner.journal.room()
                if runner.closed or runner.leaving:
                    return  # another owner goes on; the client is told by the end of the stream
            try:
                if kind in _RUNS and not self._admitted(context).acts_as(runner.session.caller):
                    raise PermissionDenied(
                        ErrorReason.CALLER_NOT_ALLOWED, "the rights of this token have changed; open a new session"
                    )
                if kind == "batch":
                    self._engine.ask(runner, request.batch)
                elif kind == "event":
                    self._engine.record(runner, request.event)
                elif kind == "partial":
                    self._engine.partial(runner, request.partial)
                elif kind == "cancel":
                    self._engine.cancel(runner, request.cancel.turn, request.cancel.index)
                elif kind == "tool_result":
                    runner.outlet.client_tools.answered(request.tool_result)
                elif kind == "end":
                    runner.close(request.end.reason or "ended by the client")
                    return
                else:
                    raise InvalidArgument(
                        ErrorReason.PROTOCOL_VIOLATION, "Hello comes once, as the first message; this one says nothing"
                    )
            except (InvalidArgument, ResourceExhausted) as error:
                _refuse(runner, request, error)
            except (PermissionDenied, Unauthenticated) as error:
                _refuse(runner, request, error)
                raise

    async def _opened(self, hello: session_pb2.Hello) -> Runner:
        """The session of a unary call, once its journal has room."""
        runner = await self._engine.open(current_caller(), hello)
        await runner.journal.room()
        if runner.closed or runner.leaving:
            raise OWNER_CHANGED
        return runner

    async def CallTools(  # noqa: N802
        self, request: session_pb2.CallToolsRequest, context: _Context
    ) -> session_pb2.CallToolsResponse:
        """The calls of one message, for simple clients."""
        runner = await self._opened(request.hello)
        turn = request.batch.turn
        calls = [(turn, call.index) for call in request.batch.calls]
        waiting = [runner.outlet.wait_for(call) for call in calls]
        try:
            self._engine.ask(runner, request.batch)
            async with asyncio.timeout(remaining_seconds(context, _UNARY_SECONDS)):
                results = await asyncio.gather(*waiting)
        except TimeoutError:
            raise DeadlineExceeded(
                ErrorReason.DEADLINE_EXCEEDED, "the deadline passed before all calls were answered; ask again"
            ) from None
        except asyncio.CancelledError:
            if runner.closed:
                raise OWNER_CHANGED from None
            raise
        finally:
            runner.outlet.forget(calls, waiting)
        response = session_pb2.CallToolsResponse(results=results)
        if response.ByteSize() > limits.MESSAGE_BYTES - limits.KIB:
            raise ResourceExhausted(
                ErrorReason.MESSAGE_TOO_LARGE,
                f"the results have {response.ByteSize()} bytes, above MESSAGE_BYTES ({limits.MESSAGE_BYTES}); "
                "use the stream (Connect), which sends them in chunks",
                metadata={"limit": "MESSAGE_BYTES"},
            )
        return response

    async def RunPlan(  # noqa: N802
        self, request_iterator: AsyncIterator[session_pb2.RunPlanRequest], context: _Context
    ) -> AsyncIterator[session_pb2.RunPlanResponse]:
        """A plan of calls; see the contract."""
        start = await _plan_start(request_iterator)
        options = options_of(start.options)
        runner = await self._opened(start.hello)
        plan = self._engine.plan(runner, start.turn, options)
        reader = asyncio.ensure_future(_read_plan(plan, runner, request_iterator))
        try:
            async for response in plan.responses():
                yield response
        finally:
            reader.cancel()
            plan.leave()

    async def RecordEvent(  # noqa: N802
        self, request: session_pb2.RecordEventRequest, context: _Context
    ) -> session_pb2.RecordEventResponse:
        """Records an event, for simple clients."""
        runner = await self._opened(request.hello)
        number = self._engine.record(runner, request.event, check_event_id(request.id))
        return session_pb2.RecordEventResponse(number=number)

    async def EndSession(  # noqa: N802
        self, request: session_pb2.EndSessionRequest, context: _Context
    ) -> session_pb2.EndSessionResponse:
        """Ends a session, wherever it is open."""
        return await self._engine.end(current_caller(), request.session, request.reason)

    async def SetSpeculation(  # noqa: N802
        self, request: session_pb2.SetSpeculationRequest, context: _Context
    ) -> session_pb2.SetSpeculationResponse:
        """The kill switch. An operator may switch any tenant and all of them, a user its own by name."""
        _may_name(request.tenant, "switch other tenants or all of them")
        revision = await self._switch.set(request.tenant, on=request.on, reason=request.reason)
        return session_pb2.SetSpeculationResponse(revision=revision)

    async def EraseHistories(  # noqa: N802
        self, request: session_pb2.EraseHistoriesRequest, context: _Context
    ) -> session_pb2.EraseHistoriesResponse:
        """Makes model servers forget a tenant. An operator may name any tenant, a user its own."""
        _may_name(request.tenant, "erase other tenants")
        if not 1 <= len(request.tenant) <= limits.NAME_CHARS:
            raise InvalidArgument(
                ErrorReason.ARGUMENT_INVALID, f"tenant has to have 1 to {limits.NAME_CHARS} characters (NAME_CHARS)"
            )
        if not 0 <= request.wait_seconds <= limits.ERASURE_WAIT_SECONDS:
            raise InvalidArgument(
                ErrorReason.ARGUMENT_INVALID,
                f"wait_seconds has to be from 0 to {limits.ERASURE_WAIT_SECONDS:g} (ERASURE_WAIT_SECONDS)",
            )
        found = await self._erasing.erase(request.tenant, request.wait_seconds)
        servers = [_erased_server(name, done) for name, done in found.servers.items()]
        return session_pb2.EraseHistoriesResponse(erasure=found.name, servers=servers)

    async def GetTotals(  # noqa: N802
        self, request: session_pb2.GetTotalsRequest, context: _Context
    ) -> session_pb2.GetTotalsResponse:
        """Counts of the caller's tenant since start."""
        tenant = current_caller().tenant
        return session_pb2.GetTotalsResponse(
            totals=totals_message(self._observer.totals(tenant), sessions=self._engine.open_sessions(tenant))
        )

    async def ListSessionTools(  # noqa: N802
        self, request: session_pb2.ListSessionToolsRequest, context: _Context
    ) -> session_pb2.ListSessionToolsResponse:
        """The tools with their effective contracts."""
        caller = current_caller()
        policy = self._policies.current.choose(caller.tenant, request.agent)
        tools = await self._workers.tools(caller)
        return session_pb2.ListSessionToolsResponse(
            tools=[_session_tool(tool, policy) for _, tool in sorted(tools.items())]
        )


def _may_name(tenant: str, deed: str) -> None:
    """Operators may name any tenant, users their own."""
    caller = current_caller()
    if caller.role is not Role.OPERATOR and tenant != caller.tenant:
        raise PermissionDenied(
            ErrorReason.CALLER_NOT_ALLOWED,
            f"only an operator's token may {deed}; a user may name its own tenant",
            metadata={"tenant": caller.tenant},
        )


def _erased_server(name: str, done: ErasedHistories | None) -> session_pb2.ErasedServer:
    if done is None:
        return session_pb2.ErasedServer(name=name)
    return session_pb2.ErasedServer(
        name=name, erased=True, histories=done.histories, tokens=done.tokens, files=done.files
    )


def _session_tool(tool: Tool, policy: Policy) -> session_pb2.SessionTool:
    return session_pb2.SessionTool(
        name=tool.name,
        version=tool.version,
        input_schema=tool.schema_text,
        description=tool.description,
        contract=contract_message(tool.contract(policy)),
    )


async def _plan_start(requests: AsyncIterator[session_pb2.RunPlanRequest]) -> session_pb2.PlanStart:
    try:
        async with asyncio.timeout(_HELLO_SECONDS):
            first = await anext(requests, None)
    except TimeoutError:
        first = None
    if first is None or not first.HasField("start") or not first.start.turn:
        raise InvalidArgument(
            ErrorReason.PROTOCOL_VIOLATION,
            "the first message of a plan's stream must be PlanStart, with a `turn`",
        )
    return first.start


async def _read_plan(plan: PlanRun, runner: Runner, requests: AsyncIterator[session_pb2.RunPlanRequest]) -> None:
    async for request in requests:
        await runner.journal.room()
        try:
            plan.take(request)
        except InvalidArgument as error:
            plan.fail(error)
            return
        except Exception:
            # Nobody reads on: what is still to come of the plan would be waited for until the client gives up.
            _LOG.exception("a plan could not be read on")
            plan.fail(Bug(ErrorReason.INTERNAL, INTERNAL_MESSAGE))
            return
    plan.source_over()


async def _hello(requests: Requests) -> session_pb2.Hello:
    try:
        async with asyncio.timeout(_HELLO_SECONDS):
            first = await anext(requests, None)
    except TimeoutError:
        first = None
    if first is None or not first.HasField("hello"):
        raise InvalidArgument(ErrorReason.PROTOCOL_VIOLATION, "the first message of a session's stream must be Hello")
    return first.hello


def _refuse(runner: Runner, request: session_pb2.ConnectRequest, error: ForerunError) -> None:
    """Tells the client that nothing of a message was begun; only then it knows."""
    failure = failure_message(failure_from(error))
    if request.HasField("batch"):
        failure.metadata["turn"] = str(request.batch.turn)
    runner.outlet.send(session_pb2.ConnectResponse(failure=failure))


def _welcome(runner: Runner) -> session_pb2.Welcome:
    session = runner.session
    return session_pb2.Welcome(
        epoch=session.context.epoch,
        mode=mode_message(session.machine.mode),
        held_out=session.held_out,
        last_turn=session.machine.last_turn,
        policy=session.policy.label,
        client_tools=[
            _session_tool(tool, session.policy) for _, tool in sorted(session.tools.items()) if tool.in_client
        ],
    )


def _raise_end(runner: Runner, stream: Responses, reader: asyncio.Future[None]) -> None:
    """Says why a stream ends that its client did not end."""
    if stream.error is not None:
        raise stream.error
    if reader.done() and not reader.cancelled():
        error = reader.exception()
        if error is not None:
            raise error
    if runner.closed or runner.leaving:
        raise OWNER_CHANGED
    raise FailedPrecondition(
        ErrorReason.SESSION_TAKEN_OVER, "another stream of this session was opened; this one has no use any more"
    )
