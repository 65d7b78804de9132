"""Sandbox workers: their tools, and the execution of actions on them."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Mapping
from typing import Final

from google.protobuf.message import DecodeError

from forerun.core import limits
from forerun.core.contracts import Effect
from forerun.core.outcomes import CallStatus
from forerun.core.session import Execute, ExecutionResult, Failure, MergeFork
from forerun.orchestrator.fleet import Fleet, Worker
from forerun.orchestrator.lanes import ResultTooLargeError
from forerun.orchestrator.preparation import Tool, tool_of
from forerun.orchestrator.records import failure_from, failure_of, status_of
from forerun.runtime.auth import Caller, on_behalf_of
from forerun.runtime.bus import Message
from forerun.runtime.errors import (
    Aborted,
    ErrorReason,
    FailedPrecondition,
    ForerunError,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    Unavailable,
    never_started,
)
from forerun.runtime.network import Network, rpc_errors
from forerun.v1 import common_pb2, sandbox_pb2

_LOG: Final = logging.getLogger(__name__)

_TRANSPORT_MARGIN_SECONDS: Final = 5.0
_SHORT_SECONDS: Final = 5.0
_LIST_SECONDS: Final = 20.0
_MERGE_ATTEMPTS: Final = 6
_TOOL_LISTS: Final = 1_024
_AT_THE_DOOR: Final = frozenset({ErrorReason.NO_FREE_SLOT, ErrorReason.QUEUE_FULL})

_ListKey = tuple[str, str, str, str]


class Workers:
    """The workers of an installation.

    Args:
        network: How they are reached.
        targets: Addresses that are known from the settings; others are learned from load reports.
        tools_changed: Called when a worker says that its tools are others now.
    """

    def __init__(self, network: Network, targets: tuple[str, ...], *, tools_changed: Callable[[], None]) -> None:
        self._fleet = Fleet(network, targets)
        self._tools_changed = tools_changed
        self._tools: dict[_ListKey, Mapping[str, Tool]] = {}
        self._listing: dict[_ListKey, asyncio.Future[Mapping[str, Tool]]] = {}
        self._generation: dict[str, int] = {}
        self._running: dict[str, Worker] = {}

    async def hear(self, message: Message) -> None:
        """Takes a load report."""
        try:
            report = sandbox_pb2.LoadReport.FromString(message.data)
        except DecodeError:
            return
        if not self._fleet.heard(report):
            return
        if self._generation.get(report.address, 0) != report.tools_generation:
            self._generation[report.address] = report.tools_generation
            self._tools = {key: tools for key, tools in self._tools.items() if key[0] != report.address}
            self._tools_changed()

    def holder(self, session: str) -> str:
        """The id of the worker that holds a session's workspace; empty where that is not known."""
        return self._fleet.holder(session)

    def place(self, session: str) -> str:
        """The address of the worker that a session is given.

        Raises:
            Unavailable: none is known.
        """
        return self._fleet.choose(session).address

    def restore(self, session: str, worker: str, *, used: bool, certain: bool) -> None:
        """Goes on with a session of another owner at the worker that it was given.

        Args:
            session: The session.
            worker: That worker's address; empty where nobody wrote it down.
            used: Its workspace may have been used.
            certain: It certainly was.
        """
        if not worker:
            return
        self._fleet.pin(session, worker)
        if used:
            self._fleet.hold(session, worker, certain=certain)

    def forget(self, session: str) -> None:
        """A session is not open here any more."""
        self._fleet.forget(session)

    # ------------------------------------------------------------ tools

    async def tools(self, caller: Caller, session: str = "") -> Mapping[str, Tool]:
        """The tools that a caller can use, by name, on the session's worker. Kept until it says that they changed.

        Raises:
            ForerunError: the worker cannot be asked.
        """
        worker = self._fleet.choose(session, anywhere=True)
        key = (worker.address, caller.tenant, caller.principal, caller.credential_scope)
        known = self._tools.get(key)
        if known is not None:
            return known
        listing = self._listing.get(key)
        if listing is None:
            # One request for all who ask meanwhile: after a change of tools every session does.
            listing = self._listing[key] = asyncio.ensure_future(self._list(worker, caller))
            listing.add_done_callback(lambda _: self._listing.pop(key, None))
        return await asyncio.shield(listing)

    async def _list(self, worker: Worker, caller: Caller) -> Mapping[str, Tool]:
        key = (worker.address, caller.tenant, caller.principal, caller.credential_scope)
        generation = self._generation.get(worker.address)
        request = sandbox_pb2.ListToolsRequest(
            caller=common_pb2.Caller(
                tenant=caller.tenant, principal=caller.principal, credential_scope=caller.credential_scope
            )
        )
        with worker.noticed(), rpc_errors():
            response = await worker.stub.ListTools(request, timeout=_LIST_SECONDS, metadata=on_behalf_of(caller))
        tools = {message.name: tool_of(message) for message in response.tools}
        if generation == self._generation.get(worker.address):  # else they are others again already
            if len(self._tools) >= _TOOL_LISTS:
                self._tools.clear()
            self._tools[key] = tools
        return tools

    # ------------------------------------------------------------ executions

    def has_slot(self, session: str) -> bool:
        """A speculation may start now: a slot is free by the last report, and no real call waits there."""
        try:
            worker = self._fleet.choose(session)
        except Unavailable:
            return False
        return worker.speculative_free > 0 and worker.waiting == 0 and not worker.away

    async def execute(
        self, effect: Execute, caller: Caller, session: str, label: str, *, expects_state: bool = False
    ) -> ExecutionResult:
        """Runs an action to its end. Never raises but for cancellation, which stops the tool.

        Args:
            effect: What to run.
            caller: On whose behalf.
            session: The session.
            label: Its logical name.
            expects_state: An earlier call of the session has used the connection that keeps state for it.
        """
        prepared = effect.prepared
        held = self._fleet.held(session) if prepared.uses_workspace else None
        request = sandbox_pb2.ExecuteRequest(
            execution=effect.execution,
            caller=common_pb2.Caller(
                tenant=caller.tenant, principal=caller.principal, credential_scope=caller.credential_scope
            ),
            session=session,
            # A real call runs whatever version there is; what runs ahead is of use only in the one it was meant for.
            action=common_pb2.Action(
                tool=prepared.tool,
                tool_version=prepared.version if effect.ahead else "",
                arguments=prepared.arguments,
            ),
            priority=(sandbox_pb2.PRIORITY_SPECULATIVE if effect.speculative else sandbox_pb2.PRIORITY_AUTHORITATIVE),
            timeout_seconds=effect.timeout_seconds,
            fork=effect.fork,
            merge_on_success=effect.merge_on_success,
            idempotency_key=effect.idempotency_key,
            tool_concurrency=prepared.contract.concurrency,
            session_label=label,
            provider=effect.provider,
            expects_state=expects_state or (held is not None and held.certain),
        )
        if prepared.contract.output_cap_bytes is not None:
            request.output_cap_bytes = prepared.contract.output_cap_bytes
        begun_at = asyncio.get_running_loop().time()
        try:
            reads = prepared.contract.effect is not Effect.WRITE
            # The session's workspace and connections are at its own worker only.
            anywhere = reads and not (prepared.uses_workspace or prepared.connection)
            worker = self._fleet.choose(session, anywhere=anywhere, workspace=prepared.uses_workspace)
            self._running[effect.execution] = worker
            if effect.speculative:
                worker.speculative_free -= 1
            with worker.noticed():
                result = _result(
                    *await worker.lanes.execute(request, effect.timeout_seconds + _TRANSPORT_MARGIN_SECONDS)
                )
            if prepared.uses_workspace and result.status is CallStatus.OK:
                self._fleet.hold(session, worker.address)
            return result
        except ResultTooLargeError as error:
            return _too_large(error.size_bytes)
        except ForerunError as error:
            seconds = asyncio.get_running_loop().time() - begun_at
            return _failed(error, speculative=effect.speculative, seconds=seconds)
        finally:
            self._running.pop(effect.execution, None)

    def _at(self, execution: str, session: str) -> Worker:
        """Where an execution runs."""
        return self._running.get(execution) or self._fleet.choose(session)

    async def promote(self, execution: str, timeout_seconds: float, caller: Caller, session: str) -> None:
        """Makes a running speculation authoritative. When it is too late its end is on the way: nothing to do."""
        try:
            with rpc_errors():
                await self._at(execution, session).stub.Promote(
                    sandbox_pb2.PromoteRequest(execution=execution, timeout_seconds=max(0.001, timeout_seconds)),
                    timeout=_SHORT_SECONDS,
                    metadata=on_behalf_of(caller),
                )
        except NotFound:
            return
        except ForerunError as error:
            _LOG.warning("promotion failed", extra={"fields": {"error.type": error.reason}})

    async def stop(self, execution: str, caller: Caller, session: str) -> None:
        """Stops an execution and waits until its tool has ended; what came of it comes by its own stream."""
        try:
            with rpc_errors():
                await self._at(execution, session).stub.StopExecution(
                    sandbox_pb2.StopExecutionRequest(execution=execution),
                    timeout=limits.CANCEL_SETTLE_SECONDS,
                    metadata=on_behalf_of(caller),
                )
        except ForerunError as error:
            _LOG.info("an execution was not stopped", extra={"fields": {"error.type": error.reason}})

    async def merge(self, effect: MergeFork, caller: Caller, session: str) -> bool | None:
        """Merges a fork: True when it is merged, False when it certainly is not, None when nobody knows.

        Merging is idempotent, so a lost answer is asked for again. One that was refused may have been merged for the
        call by somebody else, an earlier owner: whoever executes the call learns that.
        """
        request = sandbox_pb2.MergeForkRequest(session=session, fork=effect.fork, as_fork=effect.as_fork)
        for attempt in range(_MERGE_ATTEMPTS):
            try:
                with rpc_errors():
                    await self._fleet.choose(session, workspace=True).stub.MergeFork(
                        request, timeout=_SHORT_SECONDS * 2, metadata=on_behalf_of(caller)
                    )
                return True
            except (Aborted, NotFound, FailedPrecondition, InvalidArgument, ResourceExhausted) as error:
                _LOG.info("a fork was not merged", extra={"fields": {"error.type": error.reason}})
                return False
            except ForerunError as error:
                _LOG.warning("a merge is not certain yet", extra={"fields": {"error.type": error.reason}})
                await asyncio.sleep(0.2 * 2**attempt)
        return None

    async def drop(self, fork: str, caller: Caller, session: str) -> None:
        """Drops a fork; the worker drops it with the session at the latest."""
        try:
            with rpc_errors():
                await self._fleet.choose(session, workspace=True).stub.DropFork(
                    sandbox_pb2.DropForkRequest(session=session, fork=fork),
                    timeout=_SHORT_SECONDS,
                    metadata=on_behalf_of(caller),
                )
        except ForerunError as error:
            _LOG.info("a fork was not dropped", extra={"fields": {"error.type": error.reason}})

    async def close_session(self, caller: Caller, session: str) -> None:
        """Drops a session's workspace and connections, and forgets it."""
        try:
            with rpc_errors():
                await self._fleet.choose(session).stub.CloseSession(
                    sandbox_pb2.CloseSessionRequest(session=session),
                    timeout=_SHORT_SECONDS,
                    metadata=on_behalf_of(caller),
                )
        except ForerunError as error:
            _LOG.info("a session was not closed on its worker", extra={"fields": {"error.type": error.reason}})
        finally:
            self.forget(session)


def _result(message: sandbox_pb2.ExecutionFinished, chunks: bytes) -> ExecutionResult:
    status = status_of(message.status)
    content = chunks or message.observation.content
    digest = "sha256:" + hashlib.sha256(content).hexdigest()
    if status is CallStatus.OK and message.observation.digest not in ("", digest):
        failure = Failure(ErrorReason.CALL_INTERRUPTED, "the result arrived damaged")
        return ExecutionResult(status=CallStatus.UNAVAILABLE, failure=failure, seconds=message.seconds)
    return ExecutionResult(
        status=status,
        content=content,
        media_type=message.observation.media_type,
        tool_error=message.observation.tool_error,
        digest=digest if status is CallStatus.OK else "",
        failure=failure_of(message.failure) if message.HasField("failure") else None,
        seconds=message.seconds,
        not_started=message.not_started,
        preempted=message.preempted,
        may_continue=message.may_continue,
    )


def _too_large(size: int) -> ExecutionResult:
    failure = Failure(
        "RESULT_TOO_LARGE",
        f"the tool returned more than RESULT_BYTES ({limits.RESULT_BYTES}); give its contract an output_cap_bytes",
        {"limit": "RESULT_BYTES", "limit_bytes": str(limits.RESULT_BYTES), "size_bytes": str(size)},
    )
    return ExecutionResult(status=CallStatus.REJECTED, failure=failure, may_continue=True)


def _failed(error: ForerunError, *, speculative: bool, seconds: float) -> ExecutionResult:
    """What a broken or refused stream means for the call."""
    if isinstance(error, ResourceExhausted) and error.reason in _AT_THE_DOOR:
        # Nothing ran, whatever the contract says. Other limits are met on the way back, too.
        return ExecutionResult(
            status=CallStatus.UNAVAILABLE, failure=failure_from(error), not_started=True, no_slot=speculative
        )
    if isinstance(error, InvalidArgument | NotFound):
        return ExecutionResult(status=CallStatus.REJECTED, failure=failure_from(error), not_started=True)
    # A connection that was refused never carried the request. After one that broke anything may have been done.
    not_started = never_started(error)
    return ExecutionResult(
        status=CallStatus.UNAVAILABLE,
        failure=failure_from(error),
        seconds=seconds,
        not_started=not_started,
        may_continue=not not_started,
    )
