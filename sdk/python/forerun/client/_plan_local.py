"""A plan that the client runs itself, because the platform is away.

Without the platform nobody orders conflicts, and contracts may be missing. So the tasks run one after another in the
plan's order, which is an order that every plan has (a task refers to earlier ones only) and whose outcome every other
order of the platform equals. Each task is a call of the plan's message under (turn, place), as on the platform: where
the platform is back it goes there, and one that the platform may have begun already is left to the platform, which
knows, unless it only reads. With `reads_first` nothing runs before its round is complete.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from forerun.client._calls import DEADLINE_MAX_SECONDS, Batch
from forerun.client._errors import InvalidRequest
from forerun.client._exact import JsonValue, NotExact, parse_exact, spelled
from forerun.client._plan import PlanStatus, Progress, TaskResult, TaskStatus
from forerun.client._references import ReferenceProblem, resolve, targets, value_of
from forerun.client._results import Call, Failure, Result, Status
from forerun.v1 import plan_pb2, session_pb2

PLAN_TASKS: Final = 1_000
"""Most tasks of a plan, over all rounds (the platform's own bound, compared by a contract test)."""
REPLANS: Final = 3
"""Most rounds after the first (likewise)."""
_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,256}\Z")
_FAILS: Final = frozenset({TaskStatus.REJECTED, TaskStatus.TIMEOUT, TaskStatus.UNAVAILABLE, TaskStatus.OUTCOME_UNKNOWN})

Part = session_pb2.RunPlanRequest


class TaskCalls(Protocol):
    """What a plan needs of its session to run in the client."""

    @property
    def direct(self) -> bool:
        """Calls run around the platform now."""
        ...

    def reads(self, tool: str) -> bool:
        """Whether a tool only reads, as far as the platform has said."""
        ...

    def ask_task(
        self, turn: int, index: int, call: Call, *, timeout_seconds: float | None, perhaps_begun: bool
    ) -> Batch:
        """Asks for the call of a task; the batch has this one call."""
        ...

    def take_back_task(self, batch: Batch) -> None:
        """Nobody wants it any more; its call has its end soon, also while the platform is away."""
        ...


@dataclass(slots=True)
class _Node:
    """A task with its place.

    The platform may have heard of it, and may have begun it: a read as soon as it is heard of.
    """

    task: plan_pb2.PlanTask
    index: int
    arguments: JsonValue
    needs: tuple[str, ...]
    heard: bool
    perhaps_begun: bool
    result: TaskResult | None = None
    cancelled: bool = False


class LocalPlan:
    """Runs the parts of one plan.

    Args:
        parts: Everything that was said of the plan, the start first; it grows.
        written: How many of them the platform may have heard.
        known: Ends that are known already, by place.
        calls: The session.
        settled: Told the end of each task.
        ended: Told the end of each round: status, failure, number.
        progress: Told how far the plan is.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        written: int,
        known: Mapping[int, TaskResult],
        *,
        calls: TaskCalls,
        settled: Callable[[TaskResult], None],
        ended: Callable[[PlanStatus, Failure | None, int], None],
        progress: Progress | None,
    ) -> None:
        self._parts = parts
        self._written = written
        self._known = known
        self._calls = calls
        self._settled = settled
        self._ended = ended
        self._progress = progress
        self._turn = parts[0].start.turn
        self._options = parts[0].start.options
        self._taken = 1
        self._nodes: list[_Node] = []
        self._by_id: dict[str, _Node] = {}
        self._next = 0
        self._round = 0
        self._complete = self._told = False
        self._stopped: tuple[PlanStatus, Failure] | None = None
        self._failed: Failure | None = None

    async def run(self, more: asyncio.Event, closed: Callable[[], bool]) -> None:
        """Runs until the plan is left.

        Args:
            more: Set when a part was added, or the plan was left.
            closed: The plan was left: nothing more will be said.

        Raises:
            ForerunClientError: what was said is no plan, or the session takes nothing any more.
        """
        while True:
            more.clear()
            self._take()
            node = self._startable()
            if node is not None:
                await self._run(node, more)
            elif self._over():
                self._tell_end()
                if closed():
                    return
                await self._wait(more)
            else:
                await self._wait(more)

    async def _wait(self, more: asyncio.Event) -> None:
        if self._taken == len(self._parts):
            await more.wait()

    # ------------------------------------------------------------ what is said

    def _take(self) -> None:
        while self._taken < len(self._parts):
            part = self._parts[self._taken]
            if part.HasField("again") and not self._told:
                return  # what is said after it is about the next round
            match part.WhichOneof("message"):
                case "tasks":
                    self._add(part.tasks.tasks, self._taken)
                case "complete":
                    self._complete = True
                case "cancel":
                    self._cancel(part.cancel.task)
                case "refuse":
                    self._stop(PlanStatus.REFUSED, Failure("source_failed", part.refuse.reason))
                case "again":
                    self._again()
            self._taken += 1

    def _may_have_begun(self, part: int) -> bool:
        """Whether the platform may have begun the tasks of a part. With `reads_first` it waits for the whole round."""
        if part >= self._written:
            return False
        if not self._options.reads_first:
            return True
        rest = (one.WhichOneof("message") for one in self._parts[part : self._written])
        return "complete" in rest

    def _add(self, tasks: Sequence[plan_pb2.PlanTask], part: int) -> None:
        stopped = self._stopped is not None and self._stopped[0] is not PlanStatus.FAILED
        if self._complete or stopped:
            raise _refused("closed", "the plan takes no more tasks: it is complete, cancelled or refused", "")
        most = self._options.tasks if self._options.HasField("tasks") else PLAN_TASKS
        if len(self._nodes) + len(tasks) > most:
            raise _refused("too_many_tasks", f"the plan may have {most} tasks", tasks[-1].id)
        places = {task.id: place for place, task in reversed(list(enumerate(tasks)))}
        for place, task in enumerate(tasks):
            node = self._node(task, place, places, part)
            self._nodes.append(node)
            self._by_id[task.id] = node
            node.result = self._known.get(node.index)

    def _node(self, task: plan_pb2.PlanTask, place: int, places: Mapping[str, int], part: int) -> _Node:
        if not _ID.match(task.id):
            raise _refused("bad_id", f"task {task.id[:40]!r}: an id has letters, digits, _ and -", task.id)
        if task.id in self._by_id:
            raise _refused("duplicate_id", f"two tasks have the id {task.id}", task.id)
        if task.HasField("timeout_seconds") and not 0 < task.timeout_seconds <= DEADLINE_MAX_SECONDS:
            raise _refused("bad_timeout", f"task {task.id}: a timeout is above 0 and bounded", task.id)
        try:
            arguments = parse_exact(task.arguments)
            needs = () if task.literal else targets(arguments)
        except NotExact as error:
            raise _refused("bad_arguments", f"task {task.id}: {error}", task.id) from error
        except ReferenceProblem as error:
            raise _refused(error.reason, f"task {task.id}: {error}", task.id) from error
        for target in (*needs, *task.after):
            if target in self._by_id:
                continue
            at = places.get(target)
            kind = "unknown" if at is None else "self" if at == place else "forward"
            raise _refused(
                f"{kind}_reference", f"task {task.id} names {target}; a task can need earlier ones only", task.id
            )
        heard, begun = part < self._written, self._may_have_begun(part)
        return _Node(task, len(self._nodes), arguments, needs, heard, begun)

    def _cancel(self, task: str) -> None:
        if not task:
            self._stop(PlanStatus.CANCELLED, Failure("plan_cancelled", "the plan was taken back"))
        elif task in self._by_id:
            self._by_id[task].cancelled = True

    def _stop(self, status: PlanStatus, failure: Failure) -> None:
        if self._stopped is None and not self._told:
            self._stopped = (status, failure)

    def _again(self) -> None:
        if self._stopped is not None and self._stopped[0] is PlanStatus.CANCELLED:
            raise _refused("closed", "a plan that was taken back cannot be continued", "")
        if self._round == REPLANS:
            raise _refused("too_many_replans", f"the plan was continued {self._round} times (REPLANS)", "")
        self._round += 1
        self._complete = self._told = False
        self._stopped = self._failed = None

    # ------------------------------------------------------------ one task after the other

    def _startable(self) -> _Node | None:
        """The next task that runs. Those on the way that have an end already, or get none of their own, are settled."""
        while self._next < len(self._nodes):
            node = self._nodes[self._next]
            if node.result is not None:
                self._settle(node, node.result)
                continue
            if node.cancelled:
                failure = Failure("task_cancelled", f"task {node.task.id} was taken back", {"task": node.task.id})
                self._settle(node, self._not_run(node, TaskStatus.CANCELLED, failure))
            elif self._stopped is not None:
                status = TaskStatus.CANCELLED if self._stopped[0] is PlanStatus.CANCELLED else TaskStatus.SKIPPED
                self._settle(node, self._not_run(node, status, self._stopped[1]))
            elif self._options.reads_first and not self._complete:
                return None
            elif (failed := self._failed_input(node)) is not None:
                self._settle(node, _end(node, TaskStatus.SKIPPED, failed))
            else:
                return node
        return None

    def _not_run(self, node: _Node, status: TaskStatus, failure: Failure) -> TaskResult:
        """The end of a task that is not run any more. Of one that the platform may have begun nobody knows here."""
        if not node.heard:
            return _end(node, status, failure)
        if not node.perhaps_begun or self._calls.reads(node.task.tool):
            return _end(node, TaskStatus.CANCELLED, failure)  # it may be a read that was begun
        text = f"{failure.message}; the platform may have begun the task: look at the tool before running it again"
        unknown = Failure("outcome_unknown", text, {"task": node.task.id, "reason": failure.reason})
        return _end(node, TaskStatus.OUTCOME_UNKNOWN, unknown)

    def _failed_input(self, node: _Node) -> Failure | None:
        for name in node.needs:
            result = self._by_id[name].result
            if result is None or result.status is TaskStatus.OK:
                continue
            first = name
            if result.failure is not None:
                if result.failure.reason == "input_failed":
                    return result.failure
                first = result.failure.metadata.get("task", name)
            return Failure("input_failed", f"task {name} has no result to refer to", {"task": first})
        return None

    async def _run(self, node: _Node, more: asyncio.Event) -> None:
        try:
            arguments = self._resolved(node)
        except ReferenceProblem as error:
            message = f"task {node.task.id} cannot be started: {error}"
            self._settle(node, _end(node, TaskStatus.REJECTED, Failure(error.reason, message, {"task": node.task.id})))
            return
        loop = asyncio.get_running_loop()
        began = loop.time()
        begun = node.perhaps_begun and not self._calls.reads(node.task.tool)
        seconds = node.task.timeout_seconds if node.task.HasField("timeout_seconds") else None
        batch = self._calls.ask_task(
            self._turn, node.index, Call(node.task.tool, arguments), timeout_seconds=seconds, perhaps_begun=begun
        )
        (one,) = batch.calls
        try:
            while not one.answer.done():
                self._say_progress(running=1)
                said = asyncio.ensure_future(more.wait())
                await asyncio.wait((one.answer, said), return_when=asyncio.FIRST_COMPLETED)
                said.cancel()
                more.clear()
                self._take()
                if self._stopped is not None or node.cancelled:
                    self._calls.take_back_task(batch)
        finally:
            if not one.answer.done():
                self._calls.take_back_task(batch)
        result = one.answer.result()
        self._settle(node, _task_result(node, result, begun=begun, seconds=loop.time() - began))

    def _resolved(self, node: _Node) -> bytes:
        if node.task.literal or b"$" not in node.task.arguments:
            return node.task.arguments
        values: dict[str, JsonValue] = {}

        def value(task: str) -> JsonValue:
            if task not in values:
                result = self._by_id[task].result
                assert result is not None  # it stands before this one
                values[task] = value_of(result.content, result.media_type)
            return values[task]

        try:
            return spelled(resolve(node.arguments, value))
        except NotExact as error:
            raise ReferenceProblem("not_typed", str(error)) from error

    def _settle(self, node: _Node, result: TaskResult) -> None:
        node.result = result
        self._next = node.index + 1
        self._settled(result)
        if result.status in _FAILS:
            self._judge(node, result)
        self._say_progress(running=0)

    def _judge(self, node: _Node, result: TaskResult) -> None:
        policy = node.task.on_failure or self._options.failure
        failure = Failure(
            "task_failed",
            f"task {result.id} ended {result.status.value.replace('_', ' ')}",
            {"task": result.id, "reason": result.failure.reason if result.failure else ""},
        )
        if policy == plan_pb2.FAILURE_POLICY_WAIT_ALL:
            self._failed = self._failed or failure
        elif policy == plan_pb2.FAILURE_POLICY_FAIL_FAST:
            self._stop(PlanStatus.FAILED, failure)

    # ------------------------------------------------------------ the end of a round

    def _over(self) -> bool:
        return self._next == len(self._nodes) and (self._complete or self._stopped is not None)

    def _tell_end(self) -> None:
        if self._told:
            return
        self._told = True
        status, failure = self._stopped or (PlanStatus.FAILED if self._failed else PlanStatus.OK, self._failed)
        self._ended(status, failure, self._round)

    def _say_progress(self, *, running: int) -> None:
        if self._progress is not None:
            self._progress(len(self._nodes), running, self._next)


def _end(node: _Node, status: TaskStatus, failure: Failure) -> TaskResult:
    return TaskResult(
        id=node.task.id, index=node.index, status=status, content=b"", media_type="", failure=failure,
        shared_with="", seconds=0.0, direct=True,
    )  # fmt: skip


def _task_result(node: _Node, result: Result, *, begun: bool, seconds: float) -> TaskResult:
    status, failure = TaskStatus(result.status.value), result.failure
    if result.status is Status.OK and result.tool_error:
        status = TaskStatus.ERROR
    if begun and failure is not None and failure.reason == "CALL_KEY_CONFLICT":
        # The platform has begun it with other arguments: what those have done is not known here.
        status = TaskStatus.OUTCOME_UNKNOWN
    return TaskResult(
        id=node.task.id,
        index=node.index,
        status=status,
        content=result.content,
        media_type=result.media_type,
        failure=failure,
        shared_with="",
        seconds=seconds,
        direct=True,
    )


def _refused(problem: str, message: str, task: str) -> InvalidRequest:
    return InvalidRequest("ARGUMENT_INVALID", message, metadata={"problem": problem, "tasks": task[:256]})
