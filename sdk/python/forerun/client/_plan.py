"""Plans: calls that refer to each other's results, run as parallel as their inputs and contracts allow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import TracebackType
from typing import Any, Final

import grpc
import grpc.aio

from forerun.client._backoff import BACKOFF_INITIAL_SECONDS, BACKOFF_MAX_SECONDS
from forerun.client._errors import InvalidRequest, PlatformError, StreamFailure, from_rpc_error
from forerun.client._json import Arguments, decode, encode_arguments
from forerun.client._results import Failure, failure_of
from forerun.v1 import plan_pb2, session_pb2, session_pb2_grpc

# Tries without any news in between; with news the count begins again.
_TRIES: Final = 60


class OnFailure(StrEnum):
    """What the failure of a task does to the others. Tasks that refer to it are skipped in every case."""

    ISOLATE = "isolate"
    """Nothing: each task has its own end."""
    FAIL_FAST = "fail_fast"
    """What runs is cancelled, nothing else starts, and the plan has failed."""
    WAIT_ALL = "wait_all"
    """Everything runs to its end, and then the plan has failed."""


class TaskStatus(StrEnum):
    """How a task ended."""

    OK = "ok"
    ERROR = "error"
    """The tool answered, and reports a failure of its own."""
    REJECTED = "rejected"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    UNAVAILABLE = "unavailable"
    OUTCOME_UNKNOWN = "outcome_unknown"
    SKIPPED = "skipped"
    """It never ran, because something before it failed."""


class PlanStatus(StrEnum):
    """How a plan ended."""

    OK = "ok"
    FAILED = "failed"
    CANCELLED = "cancelled"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class PlanTask:
    """One task of a plan.

    Attributes:
        id: Its name within the plan: letters, digits, `_` and `-`.
        tool: Name of the tool.
        arguments: A mapping or JSON text. `$id` and `$id.path[0]` in its strings stand for results of earlier tasks; a
            string that is only a reference becomes the value with its type; `$$` is a `$`.
        after: Tasks that must have ended before, however they ended.
        timeout_seconds: Longest execution. None: the tool's own limit.
        on_failure: What its failure does. None: what the plan says.
        literal: The arguments are a model's own: a `$` in them is a `$`.
    """

    id: str
    tool: str
    arguments: Arguments = field(default_factory=dict)
    after: Sequence[str] = ()
    timeout_seconds: float | None = None
    on_failure: OnFailure | None = None
    literal: bool = False


@dataclass(frozen=True, slots=True)
class TaskResult:
    """How a task ended.

    Attributes:
        id: Its name.
        index: Its place in the plan.
        status: How it ended.
        content: The observation, byte for byte.
        media_type: Its type.
        failure: Why there is none, where the status is neither `ok` nor `error`.
        shared_with: The task whose execution answered it, or empty.
        seconds: From its start to its end; 0 where it never started.
    """

    id: str
    index: int
    status: TaskStatus
    content: bytes
    media_type: str
    failure: Failure | None
    shared_with: str
    seconds: float

    def json(self) -> Any:
        """The observation as a value; numbers are exact.

        Raises:
            ResultNotJson: it is no JSON.
        """
        return decode(self.content)


@dataclass(frozen=True, slots=True)
class PlanResult:
    """How a plan, or a round of it, ended.

    Attributes:
        status: How.
        tasks: The tasks in the order of the plan, over all rounds.
        failure: Set where the status is not `ok`.
        round: 0, or the number of the last continuation.
    """

    status: PlanStatus
    tasks: Sequence[TaskResult]
    failure: Failure | None
    round: int

    def __getitem__(self, task: str) -> TaskResult:
        """The task of that name.

        Raises:
            KeyError: there is none.
        """
        for one in self.tasks:
            if one.id == task:
                return one
        raise KeyError(task)


Progress = Callable[[int, int, int], None]
"""Told how many tasks are known, run, and have ended."""


class RunningPlan:
    """A plan that runs. Made by `AsyncSession.plan`, used as an async context manager.

        async with session.plan() as plan:
            await plan.add(PlanTask("a", "search", {"text": "order 17"}))
            await plan.add(PlanTask("b", "get_order", {"id": "$a.hits[0].id"}))
            result = await plan.finish()

    A task starts when its inputs are there, also while others are still to be added. A broken connection is made again
    and loses and repeats nothing. Leaving the block before the end takes back what runs.
    """

    def __init__(
        self,
        stub: Callable[[], session_pb2_grpc.SessionServiceStub],
        start: session_pb2.PlanStart,
        *,
        metadata: Callable[[], tuple[tuple[str, str], ...]],
        address: Callable[[], str],
        progress: Progress | None,
    ) -> None:
        self._stub = stub
        self._metadata = metadata
        self._address = address
        self._progress = progress
        self._parts: list[session_pb2.RunPlanRequest] = [session_pb2.RunPlanRequest(start=start)]
        self._more = asyncio.Event()
        self._closed = False
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
        self._say(session_pb2.RunPlanRequest(tasks=plan_pb2.PlanTasks(tasks=[_message(one) for one in tasks])))

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
        """
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
                known = len(self._known)
                try:
                    await self._stream()
                    return
                except grpc.aio.AioRpcError as error:
                    failure: StreamFailure = from_rpc_error(error, self._address())
                tries = 0 if len(self._known) > known else tries + 1
                taken_over = failure.error.reason == "SESSION_TAKEN_OVER"
                if not (failure.transient or taken_over) or tries >= _TRIES:
                    self._fail(failure)
                    return
                await asyncio.sleep(max(pause, failure.error.retry_after_seconds or 0.0))
                pause = min(pause * 2, BACKOFF_MAX_SECONDS) if tries else BACKOFF_INITIAL_SECONDS
        finally:
            self._news.put_nowait(None)
            if not self._rounds[-1].done():
                # Also after a defect of the client nobody waits for ever.
                self._rounds[-1].set_exception(PlatformError("INTERNAL", "the plan ended without its end"))

    def _fail(self, failure: StreamFailure) -> None:
        if not self._rounds[-1].done():
            self._rounds[-1].set_exception(failure.error)

    async def _stream(self) -> None:
        """One stream from the plan's start to its end; everything that was said is said again."""
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
                        self._ended(message.task, bytes(chunks) or message.task.observation.content)
                        chunks = bytearray()
                    case "ended":
                        self._round_over(message.ended)
        finally:
            writer.cancel()
            await asyncio.wait([writer])
            call.cancel()

    async def _write(self, call: Any) -> None:
        try:
            said = 0
            while True:
                while said < len(self._parts):
                    await call.write(self._parts[said])
                    said += 1
                if self._closed:
                    await call.done_writing()
                    return
                self._more.clear()
                await self._more.wait()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return  # the stream is over; whoever reads it learns why

    def _ended(self, message: plan_pb2.PlanTaskEnded, content: bytes) -> None:
        if message.index in self._known:
            return
        result = TaskResult(
            id=message.id,
            index=message.index,
            status=TaskStatus(_name(plan_pb2.TaskStatus.Name(message.status), "TASK_STATUS_")),
            content=content,
            media_type=message.observation.media_type,
            failure=failure_of(message.failure) if message.HasField("failure") else None,
            shared_with=message.shared_with,
            seconds=message.seconds,
        )
        self._known[message.index] = result
        self._news.put_nowait(result)

    def _round_over(self, message: plan_pb2.PlanEnded) -> None:
        waiting = self._rounds[message.round] if message.round < len(self._rounds) else None
        if waiting is None or waiting.done():
            return
        waiting.set_result(
            PlanResult(
                status=PlanStatus(_name(plan_pb2.PlanStatus.Name(message.status), "PLAN_STATUS_")),
                tasks=[self._known[index] for index in sorted(self._known)],
                failure=failure_of(message.failure) if message.HasField("failure") else None,
                round=message.round,
            )
        )


def _name(name: str, prefix: str) -> str:
    return name.removeprefix(prefix).lower()


def policy_message(policy: OnFailure | None) -> plan_pb2.FailurePolicy.ValueType:
    """A failure policy on the wire; None leaves it open."""
    name = "UNSPECIFIED" if policy is None else policy.name
    return plan_pb2.FailurePolicy.Value(f"FAILURE_POLICY_{name}")


def _message(task: PlanTask) -> plan_pb2.PlanTask:
    message = plan_pb2.PlanTask(
        id=task.id,
        tool=task.tool,
        arguments=encode_arguments(task.arguments),
        after=task.after,
        on_failure=policy_message(task.on_failure),
        literal=task.literal,
    )
    if task.timeout_seconds is not None:
        message.timeout_seconds = task.timeout_seconds
    return message
