"""The executions of one session: started, stopped down to their tools, and waited for within a bound."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Final

from forerun.core import limits
from forerun.core.outcomes import CallStatus
from forerun.core.session import CancelExecution, Execute, ExecutionResult, Failure
from forerun.orchestrator.client_tools import ClientTools
from forerun.orchestrator.observer import Step
from forerun.orchestrator.ports import Ports
from forerun.orchestrator.session import Session

_LEAST_SECONDS: Final = 0.001
_RETRY_SECONDS: Final = 0.2

_STOPPED: Final = Failure("CALL_CANCELLED", "the execution was stopped")
_NOT_STARTED: Final = ExecutionResult(status=CallStatus.CANCELLED, failure=_STOPPED, not_started=True)
_INTERRUPTED: Final = ExecutionResult(status=CallStatus.CANCELLED, failure=_STOPPED, may_continue=True)


class Executions:
    """Runs actions at workers and in the client, each as a task that ends with one result.

    Args:
        session: Whose they are.
        ports: What sessions share.
        client_tools: Tools of the client.
        step: Where traces begin.
        ended: Told of every end.
    """

    def __init__(
        self,
        session: Session,
        ports: Ports,
        client_tools: ClientTools,
        step: Step,
        ended: Callable[[Execute, ExecutionResult], None],
    ) -> None:
        self._session = session
        self._ports = ports
        self._client_tools = client_tools
        self._step = step
        self._ended = ended
        self._tasks: dict[str, asyncio.Task[ExecutionResult]] = {}
        self._at_worker: set[str] = set()
        self.ending = False
        """The session ends: whatever is stopped from now on is waited for."""
        self.unsettled = 0
        """Executions that were stopped at the session's end and of which no end was known in time."""

    def start(self, effect: Execute) -> None:
        """Starts an execution; its end is told in any case."""
        task = self._ports.tasks.spawn(self._run(effect), name=f"execute {effect.prepared.tool}")
        self._tasks[effect.execution] = task

        def ended(done: asyncio.Task[ExecutionResult]) -> None:
            self._tasks.pop(effect.execution, None)
            self._ports.places.stopped(effect.execution)
            if not self._ports.tasks.closed:
                self._ended(effect, _result_of(done))

        task.add_done_callback(ended)

    def cancel(self, effect: CancelExecution) -> None:
        """Stops an execution: at once, or where it matters not before its tool has really ended."""
        task = self._tasks.get(effect.execution)
        if task is None:
            return
        if effect.execution in self._at_worker and (effect.settle or self.ending):
            self._ports.tasks.spawn(self._stop(effect.execution, task), name="stop")
        else:
            task.cancel()

    async def wait(self) -> None:
        """Waits until everything that was stopped has ended, or was given up."""
        if self._tasks:
            await asyncio.wait(list(self._tasks.values()))

    async def _stop(self, execution: str, task: asyncio.Task[ExecutionResult]) -> None:
        """Stops an execution through its worker, so that its end is the end of its tool; within a bound."""
        workers, session = self._ports.workers, self._session
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limits.CANCEL_SETTLE_SECONDS):
                while not task.done():
                    # Asked again, because the execution may be on its way to the worker, or its end on the way back.
                    await workers.stop(execution, session.caller, session.context.session)
                    await asyncio.wait([task], timeout=_RETRY_SECONDS)
        if not task.done():
            self.unsettled += self.ending
            task.cancel()

    async def _run(self, effect: Execute) -> ExecutionResult:
        result = _NOT_STARTED
        with contextlib.suppress(asyncio.CancelledError):  # the end of the task, and what was known then
            if effect.speculative or effect.prepared.in_client:
                result = _INTERRUPTED
                result = await self._executed(effect)
            else:
                async with self._place(effect) as placed:
                    result = _INTERRUPTED
                    result = await self._executed(placed)
        return result

    @contextlib.asynccontextmanager
    async def _place(self, effect: Execute) -> AsyncIterator[Execute]:
        """Waits until the call may run; its time runs meanwhile."""
        ports, tenant = self._ports, self._session.caller.tenant
        asked_at = ports.monotonic()
        await ports.places.take(tenant)
        try:
            waited = ports.monotonic() - asked_at
            ports.observer.placed(waited)
            left = max(_LEAST_SECONDS, effect.timeout_seconds - waited)
            yield effect if waited < _LEAST_SECONDS else replace(effect, timeout_seconds=left)
        finally:
            ports.places.leave(tenant)

    async def _executed(self, effect: Execute) -> ExecutionResult:
        session = self._session
        with self._ports.observer.execution(effect, self._step.context):
            if effect.prepared.in_client:
                return await self._client_tools.call(effect)
            self._at_worker.add(effect.execution)
            expects_state = effect.prepared.connection in session.connections
            result = _INTERRUPTED
            try:
                result = await self._ports.workers.execute(
                    effect, session.caller, session.context.session, session.label, expects_state=expects_state
                )
                return result
            finally:
                self._at_worker.discard(effect.execution)
                self._note_connection(effect, result)

    def _note_connection(self, effect: Execute, result: ExecutionResult) -> None:
        """Notes that a server keeps state for the session, or that a call was told of its loss: once is enough."""
        server, connections = effect.prepared.connection, self._session.connections
        if server and not result.not_started:
            connections.add(server)
        elif result.state_lost and not effect.ahead:
            connections.discard(server)


def _result_of(done: asyncio.Task[ExecutionResult]) -> ExecutionResult:
    if done.cancelled():
        return _NOT_STARTED  # before its first step
    return _INTERRUPTED if done.exception() is not None else done.result()
