"""Runs executions: one seat, one tool call, one result each.

An execution is a task of its own, so that its caller's stream, a preemption or a shutdown can end it at any moment, and
it always ends by one `Finished`. Nothing here touches sockets or processes: connectors do.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from forerun.runtime.clock import Clock
from forerun.runtime.errors import (
    NEVER_STARTED,
    STARTED_KEY,
    AlreadyExists,
    ErrorReason,
    ForerunError,
    NotFound,
    Unavailable,
)
from forerun.sandbox.completion import to_the_end
from forerun.sandbox.connectors.port import Connector, Ended, Result, ToolFault
from forerun.sandbox.owner import Owner
from forerun.sandbox.tools import Endpoint
from forerun.sandbox.worker.execution import Execution, Finished, Request, Sizes, Started, Step
from forerun.sandbox.worker.replay import packed, unpacked
from forerun.sandbox.worker.slots import Priority, Slots
from forerun.sandbox.workspaces.store import Workspaces
from forerun.sandbox.workspaces.workspace import Workspace

_LOG: Final = logging.getLogger(__name__)

# From the cancellation of an execution to the end of its tool. Connectors kill within milliseconds.
_SETTLE_SECONDS: Final = 10.0


class Engine:
    """Runs executions on one worker.

    Args:
        connectors: Which connector calls which kind of endpoint.
        workspaces: Where staged tools work.
        slots: Who may run.
        clock: For durations.
        sizes: How answers travel.
        ended: Told of every end, with the request, for metrics.
    """

    def __init__(
        self, connectors: Mapping[type[Endpoint], Connector], workspaces: Workspaces, slots: Slots, clock: Clock,
        *, sizes: Sizes, ended: Callable[[Request, Finished], None],
    ) -> None:  # fmt: skip
        self._connectors = connectors
        self.workspaces = workspaces
        self._slots = slots
        self._clock = clock
        self._sizes = sizes
        self._ended = ended
        # By tenant and id: ids are made by callers.
        self._running: dict[tuple[str, str], Execution] = {}
        self._merging: Counter[tuple[Owner, str]] = Counter()
        self._stopping = False

    def execute(self, request: Request) -> AsyncGenerator[Step, None]:
        """Runs a call. Closing the iterator stops the tool; it has ended when the closing returns.

        Raises:
            ResourceExhausted: Work ahead of time without a free slot, at once.
            AlreadyExists: An execution of this id runs.
            Unavailable: The worker is stopping.
        """
        if self._stopping:
            raise Unavailable(
                ErrorReason.SHUTTING_DOWN,
                "this worker is stopping; another one takes new work",
                metadata={STARTED_KEY: NEVER_STARTED},
            )
        key = (request.invocation.tenant, request.execution)
        if key in self._running:
            raise AlreadyExists(ErrorReason.ALREADY_EXISTS, "an execution of this id is running")
        execution = Execution(request, self._clock.monotonic(), self._sizes)
        if request.priority is not Priority.AUTHORITATIVE:
            execution.seat = self._slots.ahead(
                request.invocation.tool.name, request.tool_concurrency, request.priority, execution.preempt
            )
        self._running[key] = execution
        execution.task = asyncio.ensure_future(self._run(execution))
        return self._steps(execution)

    def promote(self, tenant: str, execution_id: str, timeout_seconds: float) -> float:
        """Makes a running speculation authoritative. Idempotent. The seconds it has been running.

        Raises:
            NotFound: It does not run here any more, or is being stopped.
        """
        execution = self._running.get((tenant, execution_id))
        if execution is None or execution.seat is None or not execution.promote(self._slots, timeout_seconds):
            raise NotFound(ErrorReason.NOT_FOUND, "this execution does not run here any more")
        return self._clock.monotonic() - execution.started_at

    async def end(self, tenant: str, execution_id: str) -> None:
        """Stops an execution; its tool has ended when this returns. Idempotent.

        Raises:
            NotFound: It does not run here.
            Unavailable: The tool ignores its end.
        """
        execution = self._running.get((tenant, execution_id))
        if execution is None:
            raise NotFound(ErrorReason.NOT_FOUND, "this execution does not run here")
        await self._stop([execution])
        if execution.task is not None and not execution.task.done():
            raise Unavailable(ErrorReason.TOOL_FAILED, "the tool was told to stop and goes on")

    async def merge(self, owner: Owner, fork: str, *, name: str = "") -> int:
        """Merges a fork, under a name if it has another one; the workspace's new version.

        Raises:
            NotFound: There is no such fork.
            Aborted: The workspace has changed since, or another fork was merged under the name.
        """
        workspace = await self._workspace(owner)
        if workspace is None:
            raise NotFound(ErrorReason.SNAPSHOT_NOT_FOUND, "no such fork; the session has no workspace on this worker")
        self._merging[owner, name or fork] += 1
        try:
            async with workspace.writing():
                return await to_the_end(workspace.merge(fork, name=name))
        finally:
            self._merging -= Counter([(owner, name or fork)])

    async def drop(self, owner: Owner, fork: str) -> None:
        """Drops a fork, stopping what runs in it. Idempotent."""
        await self._stop([e for e in self._of(owner) if e.request.invocation.fork == fork])
        if (workspace := await self._workspace(owner)) is not None:
            await workspace.drop(fork)

    async def close_session(self, owner: Owner) -> None:
        """Stops everything of a session and forgets its workspace and connections. Idempotent."""
        await self._stop(self._of(owner))
        for connector in self._connectors.values():
            await connector.close_session(owner)

    async def refuse(self) -> None:
        """Takes no new work, and stops what runs ahead of time: nobody will ask for it here."""
        self._stopping = True
        running = list(self._running.values())
        await self._stop([execution for execution in running if execution.priority is not Priority.AUTHORITATIVE])

    async def stop(self, grace_seconds: float) -> None:
        """Lets executions end within the grace, then stops what is left and closes the connectors."""
        await self.refuse()
        tasks = [execution.task for execution in self._running.values() if execution.task is not None]
        if tasks and grace_seconds > 0:
            await asyncio.wait(tasks, timeout=grace_seconds)
        await self._stop(list(self._running.values()))
        for connector in self._connectors.values():
            await connector.close()

    def _of(self, owner: Owner) -> list[Execution]:
        return [execution for execution in self._running.values() if execution.request.invocation.owner == owner]

    async def _workspace(self, owner: Owner) -> Workspace | None:
        opening = self.workspaces.known(owner)
        return None if opening is None else await asyncio.shield(opening)

    async def _stop(self, executions: list[Execution]) -> None:
        for execution in executions:
            execution.cancel()
        tasks = [execution.task for execution in executions if execution.task is not None]
        if tasks:
            _, hanging = await asyncio.wait(tasks, timeout=_SETTLE_SECONDS)
            if hanging:
                _LOG.error("executions ignore their end", extra={"fields": {"forerun.count": len(hanging)}})

    async def _steps(self, execution: Execution) -> AsyncGenerator[Step, None]:
        try:
            while True:
                step = await execution.steps.get()
                yield step
                if isinstance(step, Finished):
                    return
        finally:
            if execution.task is not None and not execution.task.done():
                execution.cancel()
                await to_the_end(asyncio.wait([execution.task], timeout=_SETTLE_SECONDS))

    async def _run(self, execution: Execution) -> None:
        request = execution.request
        result: Result | None = None
        fault: ToolFault | None = None
        execution.begun = True
        try:
            if execution.withdrawn:
                raise asyncio.CancelledError
            async with asyncio.timeout(request.invocation.timeout_seconds) as bound:
                execution.bound = bound
                if request.merge_on_success and request.invocation.tool.uses_workspace:
                    await self._look_for_earlier(execution)
                await self._take_seat(execution)
                result = await self._call(execution)
        except TimeoutError:
            fault = ToolFault(
                Ended.TIMEOUT, ErrorReason.TOOL_TIMEOUT,
                f"{request.invocation.tool.name} did not answer within its time limit; it was stopped",
                metadata={"tool": request.invocation.tool.name}, not_started=not execution.reached,
            )  # fmt: skip
        except asyncio.CancelledError:
            fault = execution.why_cancelled()
        except ToolFault as error:
            fault = error
        except ForerunError as error:
            fault = ToolFault(
                Ended.REJECTED, error.reason, error.message, metadata=error.metadata,
                not_started=not execution.reached,
                retry_after_seconds=error.retry_after_seconds,
            )  # fmt: skip
        except Exception:
            _LOG.exception("a connector failed", extra={"fields": {"gen_ai.tool.name": request.invocation.tool.name}})
            fault = ToolFault(
                Ended.OUTCOME_UNKNOWN, ErrorReason.INTERNAL, "the worker failed during the call; its log says why"
            )
        may_continue = self._may_continue(execution, result, fault)
        finished = execution.finish(result, fault, self._clock.monotonic(), may_continue=may_continue)
        del self._running[request.invocation.tenant, request.execution]
        if execution.seat is not None:
            self._slots.release(execution.seat)
        self._ended(request, finished)
        execution.steps.put_nowait(finished)

    def _may_continue(self, execution: Execution, result: Result | None, fault: ToolFault | None) -> bool:
        """Whether what the tool was told to do may still happen, now that the call has ended."""
        if fault is None:
            return result is not None and result.may_continue
        if fault.not_started or not execution.reached:
            return False
        if execution.elsewhere or fault.reason is ErrorReason.INTERNAL:
            return True
        invocation = execution.request.invocation
        return not self._connectors[type(invocation.tool.endpoint)].ends_with_call(invocation)

    async def _look_for_earlier(self, execution: Execution) -> None:
        """Finds out whether this call was merged, or is done already: for a stream that broke, or by a speculation.

        Then this execution cannot say that nothing was started, not even when it gives up while it waits.
        """
        owner, fork = execution.request.invocation.owner, execution.request.invocation.fork
        others = (other.request.invocation.fork for other in self._of(owner) if other is not execution)
        execution.reached = execution.elsewhere = (owner, fork) in self._merging or fork in others
        if not execution.reached:
            execution.reached = execution.elsewhere = await (await self._workspace_for(execution)).merged(fork)

    async def _workspace_for(self, execution: Execution) -> Workspace:
        invocation = execution.request.invocation
        seed = invocation.tool.server.workspace_seed
        return await self.workspaces.of(
            invocation.owner, Path(seed) if seed else None, expected=invocation.expects_state
        )

    async def _take_seat(self, execution: Execution) -> None:
        request = execution.request
        if execution.seat is None:
            execution.seat = await self._slots.authoritative(
                request.invocation.tool.name, request.tool_concurrency, execution.preempt
            )
        execution.started_at = self._clock.monotonic()
        execution.steps.put_nowait(Started(request.invocation.tool.version))

    async def _call(self, execution: Execution) -> Result:
        request = execution.request
        invocation = request.invocation
        connector = self._connectors[type(invocation.tool.endpoint)]
        if not (invocation.fork and invocation.tool.uses_workspace):
            execution.reached = True
            return await connector.call(replace(invocation, fork="") if invocation.fork else invocation, execution.take)
        workspace = await self._workspace_for(execution)
        if not request.merge_on_success:
            return await self._in_fork(execution, connector, workspace)
        async with workspace.writing():
            execution.elsewhere = False  # whoever was at it before has left the workspace
            if await workspace.merged(invocation.fork):
                return unpacked(await workspace.outcome(invocation.fork))
            execution.reached = False
            await workspace.drop(invocation.fork)
            result = await self._in_fork(execution, connector, workspace)
            try:
                await to_the_end(workspace.merge(invocation.fork))
            except asyncio.CancelledError:
                # Taken back too late: the changes are merged, so the true end of this call is its answer.
                execution.decided = True
            return result

    async def _in_fork(self, execution: Execution, connector: Connector, workspace: Workspace) -> Result:
        """Calls in a fork, which stays for a merge with the answer if there is one, and is dropped otherwise."""
        fork = execution.request.invocation.fork
        await workspace.fork(fork)
        try:
            execution.reached = True
            result = await connector.call(execution.request.invocation, execution.take)
            if (outcome := packed(result)) is not None:
                await workspace.note(fork, outcome)
            return result
        except BaseException:
            await to_the_end(workspace.drop(fork))
            raise
