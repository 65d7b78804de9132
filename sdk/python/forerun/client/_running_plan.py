"""A plan that runs: a stream to the platform that is made again when it breaks, or the client itself."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Any, Final

import grpc
import grpc.aio

from forerun.client._backoff import BACKOFF_INITIAL_SECONDS, BACKOFF_MAX_SECONDS
from forerun.client._errors import (
    ForerunClientError,
    InvalidRequest,
    NotConfigured,
    PlatformError,
    StreamFailure,
    from_rpc_error,
)
from forerun.client._plan import (
    PlanResult,
    PlanStatus,
    PlanTask,
    Progress,
    TaskResult,
    TaskStatus,
    name_of,
    task_message,
    task_result,
)
from forerun.client._plan_local import LocalPlan, TaskCalls
from forerun.client._results import Failure, failure_of
from forerun.v1 import plan_pb2, session_pb2, session_pb2_grpc

_LOG: Final = logging.getLogger("forerun.client")
# Longer than the platform waits for what it stops with a plan (CANCEL_SETTLE_SECONDS).
_LEAVE_SECONDS: Final = 8.0
# Tries without any news in between; with news the count begins again.
_TRIES: Final = 60


class RunningPlan:
    """A plan that runs. Made by `AsyncSession.plan`, used as an async context manager.

        async with session.plan() as plan:
            await plan.add(PlanTask("a", "search", {"text": "order 17"}))
            await plan.add(PlanTask("b", "get_order", {"id": "$a.hits[0].id"}))
            result = await plan.finish()

    A task starts when its inputs are there, also while others are still to be added. A broken connection is made again
    and loses and repeats nothing. Leaving the block before the end takes back what runs. While the platform is away and
    there is a way around it (`AsyncClient(direct=...)`), the client runs the tasks itself, one after the other.
    """

    def __init__(
        self,
        stub: Callable[[], session_pb2_grpc.SessionServiceStub],
        start: session_pb2.PlanStart,
        *,
        metadata: Callable[[], tuple[tuple[str, str], ...]],
        address: Callable[[], str],
        progress: Progress | None,
        calls: TaskCalls,
    ) -> None:
        self._stub = stub
        self._metadata = metadata
        self._address = address
        self._progress = progress
        self._calls = calls
        self._written = 0
        self._heard = 0
        self._round_heard = asyncio.Event()
        self._parts: list[session_pb2.RunPlanRequest] = [session_pb2.RunPlanRequest(start=start)]
        self._more = asyncio.Event()
        self._closed = False
        self._lost: ForerunClientError | None = None
        self._known: dict[int, TaskResult] = {}
        self._news: asyncio.Queue[TaskResult | None] = asyncio.Queue()
        self._rounds: list[asyncio.Future[PlanResult]] = []
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> RunningPlan:
        self._rounds.append(asyncio.get_running_loop().create_future())
        self._task = asyncio.get_running_loop().create_task(self._run(), name="forerun plan")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if self._task is None:
            return
        if not self._rounds[-1].done():
            self._say(session_pb2.RunPlanRequest(cancel=plan_pb2.PlanCancel()))
        self._closed = True
        self._more.set()
        await asyncio.wait([self._task], timeout=_LEAVE_SECONDS)
        if not self._task.done():
            _LOG.warning("the platform did not say in time how a plan has ended that was left")
            self._task.cancel()
            await asyncio.wait([self._task])
        for one in self._rounds:
            if one.done() and not one.cancelled():
                one.exception()  # what nobody asked for is no unhandled error
            one.cancel()

    # ------------------------------------------------------------ used by the agent

    async def add(self, *tasks: PlanTask) -> None:
        """Adds tasks, in call order. All of them are taken, or the plan is refused.

        Raises:
            InvalidRequest: arguments without an exact JSON form, or a round that is finished.
        """
        if self._closed or self._complete:
            raise InvalidRequest("PROTOCOL_VIOLATION", "the round is finished; `again` begins another one")
        self._say(session_pb2.RunPlanRequest(tasks=plan_pb2.PlanTasks(tasks=[task_message(one) for one in tasks])))

    async def cancel(self, task: str = "") -> None:
        """Takes one task back, or without a name the whole plan."""
        self._say(session_pb2.RunPlanRequest(cancel=plan_pb2.PlanCancel(task=task)))

    async def refuse(self, reason: str) -> None:
        """What writes the plan has failed: nothing more of it is done."""
        self._say(session_pb2.RunPlanRequest(refuse=plan_pb2.PlanRefuse(reason=reason)))

    async def finish(self) -> PlanResult:
        """Every task of this round was added: waits for its end.

        Raises:
            ForerunClientError: the plan was no plan, or the platform cannot be reached.
        """
        if not self._complete:
            self._say(session_pb2.RunPlanRequest(complete=plan_pb2.PlanComplete()))
        return await asyncio.shield(self._rounds[-1])

    async def again(self) -> None:
        """Begins another round, whose tasks may refer to all that went before.

        Raises:
            InvalidRequest: the last round has not ended.
            ForerunClientError: the plan was lost since then, for example because its session has ended.
        """
        if self._lost is not None:
            raise self._lost
        if not self._rounds[-1].done():
            raise InvalidRequest("PROTOCOL_VIOLATION", "wait for the end of the round with `finish` before `again`")
        self._rounds.append(asyncio.get_running_loop().create_future())
        self._say(session_pb2.RunPlanRequest(again=plan_pb2.PlanAgain()))

    async def results(self) -> AsyncIterator[TaskResult]:
        """The tasks as they end, over all rounds, until the plan is left or fails."""
        while (one := await self._news.get()) is not None:
            yield one

    @property
    def _complete(self) -> bool:
        last = next((p.WhichOneof("message") for p in reversed(self._parts) if not p.HasField("cancel")), "")
        return last in ("complete", "refuse")

    def _say(self, part: session_pb2.RunPlanRequest) -> None:
        self._parts.append(part)
        self._more.set()

    # ------------------------------------------------------------ the stream

    async def _run(self) -> None:
        pause, tries = BACKOFF_INITIAL_SECONDS, 0
        try:
            while True:
                if self._calls.direct:
                    await self._run_here()
                    return
                known = len(self._known)
                try:
                    await self._stream()
                    return
                except grpc.aio.AioRpcError as error:
                    failure: StreamFailure = from_rpc_error(error, self._address())
                except NotConfigured as error:
                    failure = StreamFailure(error, transient=True)
                tries = 0 if len(self._known) > known else tries + 1
                taken_over = failure.error.reason == "SESSION_TAKEN_OVER"
                if not (failure.transient or taken_over) or tries >= _TRIES:
                    self._fail(failure.error)
                    return
                if self._was_stopped():
                    await self._run_here()
                    return
                await asyncio.sleep(max(pause, failure.error.retry_after_seconds or 0.0))
                pause = min(pause * 2, BACKOFF_MAX_SECONDS) if tries else BACKOFF_INITIAL_SECONDS
        finally:
            self._news.put_nowait(None)
            if not self._rounds[-1].done():
                # Also after a defect of the client nobody waits for ever.
                self._rounds[-1].set_exception(PlatformError("INTERNAL", "the plan ended without its end"))

    def _was_stopped(self) -> bool:
        """Something of the plan was stopped, so that what never started depends on when that was.

        Said again from the beginning, the plan might start it. The client knows what did not start.
        """
        if any(part.WhichOneof("message") in ("refuse", "cancel") for part in self._parts):
            return True
        return any(
            one.status in (TaskStatus.SKIPPED, TaskStatus.CANCELLED)
            and (one.failure is None or one.failure.reason != "input_failed")
            for one in self._known.values()
        )

    async def _run_here(self) -> None:
        local = LocalPlan(
            self._parts,
            self._written,
            dict(self._known),
            calls=self._calls,
            settled=self._task_over,
            ended=self._round_over,
            progress=self._progress,
        )
        try:
            await local.run(self._more, lambda: self._closed)
        except ForerunClientError as error:
            self._fail(error)

    def _fail(self, error: ForerunClientError) -> None:
        self._lost = error
        if not self._rounds[-1].done():
            self._rounds[-1].set_exception(error)

    async def _stream(self) -> None:
        """One stream from the plan's start to its end; everything that was said is said again."""
        self._heard = 0
        self._round_heard.clear()
        call: Any = self._stub().RunPlan(metadata=self._metadata())
        writer = asyncio.get_running_loop().create_task(self._write(call))
        chunks = bytearray()
        try:
            while (message := await call.read()) is not grpc.aio.EOF:
                match message.WhichOneof("message"):
                    case "progress" if self._progress is not None:
                        self._progress(message.progress.known, message.progress.running, message.progress.settled)
                    case "chunk":
                        chunks += message.chunk.data
                    case "task":
                        self._task_over(task_result(message.task, bytes(chunks) or message.task.observation.content))
                        chunks = bytearray()
                    case "ended":
                        status = PlanStatus(name_of(plan_pb2.PlanStatus.Name(message.ended.status), "PLAN_STATUS_"))
                        ended = message.ended
                        failed = failure_of(ended.failure) if ended.HasField("failure") else None
                        self._round_over(status, failed, ended.round)
                        self._heard = ended.round + 1
                        self._round_heard.set()
        finally:
            writer.cancel()
            await asyncio.wait([writer])
            call.cancel()

    async def _write(self, call: Any) -> None:
        try:
            said = rounds = 0
            while True:
                while said < len(self._parts):
                    if self._parts[said].HasField("again"):
                        rounds += 1
                        await self._until_heard(rounds)
                    self._written = max(self._written, said + 1)
                    await call.write(self._parts[said])
                    said += 1
                if self._closed:
                    await call.done_writing()
                    return
                self._more.clear()
                await self._more.wait()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return  # the stream is over; whoever reads it learns why

    async def _until_heard(self, rounds: int) -> None:
        """Another round begins when the last one has ended, also where all of them are said again."""
        while self._heard < rounds:
            self._round_heard.clear()
            await self._round_heard.wait()

    def _task_over(self, result: TaskResult) -> None:
        if result.index not in self._known:
            self._known[result.index] = result
            self._news.put_nowait(result)

    def _round_over(self, status: PlanStatus, failure: Failure | None, number: int) -> None:
        waiting = self._rounds[number] if number < len(self._rounds) else None
        if waiting is not None and not waiting.done():
            tasks = [self._known[index] for index in sorted(self._known)]
            waiting.set_result(PlanResult(status=status, tasks=tasks, failure=failure, round=number))
