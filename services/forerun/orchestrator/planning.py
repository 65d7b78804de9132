"""Runs a plan in a session: each task that may start is a call of its message, under (turn, place of the task).

Nothing of a plan is stored but its calls. A client whose stream breaks sends the plan again under the same turn, here
or to another replica: the plan decides the same again, since calls that were answered are answered from the journal, in
the order in which they ended, and calls that run are waited for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Final

from forerun.core import limits
from forerun.core.contracts import Contract, unknown
from forerun.core.plan import (
    CancelTask,
    Cause,
    Early,
    PlanEffect,
    PlanError,
    PlanFinished,
    PlanMachine,
    PlanOptions,
    Progress,
    RecordedEnds,
    ShareTask,
    StartTask,
    TaskEnd,
    TaskSettled,
    TaskStatus,
)
from forerun.orchestrator.plan_records import end_of, ended_message, refused, task_messages, tasks_of
from forerun.orchestrator.runner import Runner
from forerun.orchestrator.session import Session
from forerun.orchestrator.stream import Stream
from forerun.runtime.errors import ErrorReason, ForerunError, InvalidArgument, ResourceExhausted
from forerun.v1 import common_pb2, event_pb2, plan_pb2, session_pb2

Ask = Callable[[Runner, session_pb2.CallBatch], None]
Cancel = Callable[[Runner, int, int], None]
Responses = Stream[session_pb2.RunPlanResponse]

_END_NOT_SAID: Final = InvalidArgument(
    ErrorReason.PROTOCOL_VIOLATION,
    "the stream ended before PlanComplete or PlanRefuse: with `reads_first` nothing but reads begins then",
)


class PlanRun:
    """One plan of one session.

    Args:
        runner: The session.
        turn: Number of its message.
        options: What its owner chose.
        ask: Asks the session for a call.
        cancel: Takes a call of the session back.
        monotonic: The time.
    """

    def __init__(
        self,
        runner: Runner,
        turn: int,
        options: PlanOptions,
        *,
        ask: Ask,
        cancel: Cancel,
        monotonic: Callable[[], float],
    ) -> None:
        self._runner = runner
        self._turn = turn
        self._reads_first = options.early is Early.READS
        self._ask = ask
        self._cancel = cancel
        self._monotonic = monotonic
        self._machine = PlanMachine(
            partial(_contract, runner.session), options, begun=runner.session.machine.calls_of(turn)
        )
        self._responses: Responses = Stream()
        self._ends: RecordedEnds[tuple[str, TaskEnd]] = RecordedEnds(runner.session.machine.answered(turn))
        self._waiting: dict[str, tuple[int, asyncio.Future[session_pb2.CallResult]]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._source_over = False

    # ------------------------------------------------------------ the client's side

    def take(self, request: session_pb2.RunPlanRequest) -> None:
        """Takes a part of the plan.

        Raises:
            InvalidArgument: it is none; nothing of it is taken.
        """
        now = self._monotonic()
        try:
            match request.WhichOneof("message"):
                case "tasks":
                    effects = self._machine.add(tasks_of(request.tasks.tasks), now)
                case "complete":
                    effects = self._machine.complete(now)
                case "cancel":
                    task = request.cancel.task
                    effects = self._machine.cancel_task(task, now) if task else self._machine.cancel(now)
                case "refuse":
                    cause = Cause("source_failed", request.refuse.reason[: limits.CANDIDATE_EXPLANATION_CHARS])
                    effects = self._machine.refuse(cause, now)
                case "again":
                    effects = self._machine.reopen(now)
                case _:
                    raise InvalidArgument(
                        ErrorReason.PROTOCOL_VIOLATION, "PlanStart comes once, as the first message; this says nothing"
                    )
        except PlanError as error:
            raise refused(error) from error
        self._apply(effects)

    def source_over(self) -> None:
        """The client sends nothing more, and the end of what is there is the end of the stream.

        A broken connection looks the same, so a message whose end was not said is not taken for complete: what waits
        for it does not begin. What runs goes on, since the client may come back for it.
        """
        if self._reads_first and not self._machine.arrived:
            self._responses.end(_END_NOT_SAID)
            return
        self._source_over = True
        self._apply(self._machine.complete(self._monotonic()))
        self._end_if_over()

    def fail(self, error: ForerunError) -> None:
        """What arrived is no plan, or is not read on: what runs is taken back, and the stream ends with the error."""
        self._responses.end(error)
        self._apply(self._machine.refuse(Cause(error.reason, error.message), self._monotonic()))

    async def responses(self) -> AsyncIterator[session_pb2.RunPlanResponse]:
        """What happens, until the end.

        Raises:
            ForerunError: the plan was refused, or the client reads too slowly.
        """
        while (response := await self._responses.take()) is not None:
            yield response
        if self._responses.error is not None:
            raise self._responses.error

    def leave(self) -> None:
        """The stream is gone. Calls that run go on: the client may come back for them."""
        if self._timer is not None:
            self._timer.cancel()
        for index, future in self._waiting.values():
            future.cancel()
            self._runner.outlet.forget([(self._turn, index)], [future])
        self._waiting.clear()

    # ------------------------------------------------------------ effects

    def _apply(self, effects: list[PlanEffect]) -> None:
        """Performs effects, and takes the ends that are known at once: a loop, since hundreds may be."""
        while True:
            for effect in effects:
                self._perform(effect)
            ended = self._ends.next(self._machine.expects)
            if ended is None:
                break
            task, end = ended
            effects = self._machine.finished(task, end, self._monotonic())
        self._arm()
        self._end_if_over()

    def _perform(self, effect: PlanEffect) -> None:
        match effect:
            case StartTask():
                self._start(effect)
            case CancelTask(task, late):
                # What is late has the same deadline as a call, so the journal says that it was late.
                if task in self._waiting and not late:
                    self._cancel(self._runner, self._turn, self._waiting[task][0])
            case ShareTask():
                self._share(effect)
            case TaskSettled(result):
                self._send(task_messages(result), len(result.content))
            case Progress(known, running, settled, _):
                progress = plan_pb2.PlanProgress(known=known, running=running, settled=settled)
                self._send(iter((session_pb2.RunPlanResponse(progress=progress),)), 0)
            case PlanFinished():
                self._send(iter((ended_message(effect),)), 0)

    def _start(self, effect: StartTask) -> None:
        if self._runner.closed or self._runner.leaving:
            self._responses.end(self._runner.gone)
            return
        future = self._runner.outlet.wait_for((self._turn, effect.index), alone=True)
        self._waiting[effect.id] = (effect.index, future)
        asked = event_pb2.AskedCall(
            index=effect.index, action=common_pb2.Action(tool=effect.tool, arguments=effect.arguments)
        )
        batch = session_pb2.CallBatch(turn=self._turn, calls=[asked])
        batch.timeout_seconds = min(effect.timeout_seconds, limits.DEADLINE_MAX_SECONDS)
        try:
            self._ask(self._runner, batch)
        except (InvalidArgument, ResourceExhausted) as error:
            end = TaskEnd(
                status=TaskStatus.UNAVAILABLE if isinstance(error, ResourceExhausted) else TaskStatus.REJECTED,
                cause=Cause(error.reason, error.message, metadata=error.metadata),
                not_started=True,
            )
            asyncio.get_running_loop().call_soon(self._not_asked, effect.id, end)
            return
        if future.done():  # answered before: known before anything else is decided
            self._note(effect.id, future)
        else:
            future.add_done_callback(partial(self._answered, effect.id))

    def _share(self, effect: ShareTask) -> None:
        """A client that never heard of this end, and goes on by itself, would have the call executed after all."""
        if self._runner.closed or self._runner.leaving:
            return
        action = common_pb2.Action(tool=effect.tool, arguments=effect.arguments)
        asked = self._runner.session.asked(event_pb2.AskedCall(index=effect.index, action=action))
        machine = self._runner.session.machine
        self._runner.apply(machine.shared(self._turn, asked, effect.leader, self._monotonic()))

    def _not_asked(self, task: str, end: TaskEnd) -> None:
        index, future = self._waiting.pop(task)
        future.cancel()
        self._runner.outlet.forget([(self._turn, index)], [future])
        self._apply(self._machine.finished(task, end, self._monotonic()))

    def _answered(self, task: str, future: asyncio.Future[session_pb2.CallResult]) -> None:
        """A call has its answer. Called by the loop, so never amid other effects."""
        if task in self._waiting:
            self._note(task, future)
            self._apply([])

    def _note(self, task: str, future: asyncio.Future[session_pb2.CallResult]) -> None:
        index, _ = self._waiting.pop(task)
        if future.cancelled():
            self._responses.end(self._runner.gone)
            return
        self._ends.add(index, (task, end_of(future.result())))

    def _send(self, messages: Iterator[session_pb2.RunPlanResponse], size_bytes: int) -> None:
        self._responses.put(messages, size_bytes)

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self._machine.next_time()
        if due is not None:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, due - self._monotonic()), self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._apply(self._machine.tick(self._monotonic()))

    def _end_if_over(self) -> None:
        if self._source_over and self._machine.round_ended:
            self._responses.end()


def _contract(session: Session, name: str) -> Contract:
    tool = session.tool(name)
    return unknown(name, "") if tool is None else tool.contract(session.policy)
