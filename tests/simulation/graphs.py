"""Plans of calls (RunPlan): what agents draw, how they run them, and what they write down of them."""

from __future__ import annotations

import asyncio
import json
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio

from forerun.client import AsyncSession, ForerunClientError, OnFailure, PlanTask, RunningPlan, TaskResult
from tests.simulation.calls import Planned, Taste, draw_call
from tests.simulation.world import BEYOND_LIMIT

_CONTINUED = frozenset({"ok", "failed"})


@dataclass(frozen=True, slots=True)
class Graph:
    """What makes a plan of the calls of a message.

    Attributes:
        refers: Task -> earlier task whose answer names the document that it reads.
        after: Task -> earlier task that must have ended.
        pauses: Seconds before each task is told.
        on_failure: What a failure does to the others.
        reads_first: Only safe reads start before all tasks are told.
        in_flight: Tasks at the same time.
        cancel: (task or None for the plan, seconds) that is taken back.
        cut_off: The message breaks off after its last task.
        again: Tasks from this place on are another round of the plan, where its first one allows that.
        breaks: The stream breaks instead of giving the end of this number, once; then the plan is told again.
    """

    refers: dict[int, int]
    after: dict[int, int]
    pauses: Sequence[float]
    on_failure: OnFailure
    reads_first: bool
    in_flight: int | None
    cancel: tuple[int | None, float] | None
    cut_off: bool
    again: int | None
    breaks: int | None


@dataclass(slots=True)
class GraphRun:
    """What an agent saw of a plan.

    Attributes:
        session: Whose.
        turn: Number of its message.
        calls: Its tasks; arguments that a task took from another one's answer are filled in.
        results: How they ended, by place.
        told: Every time that an end was told, by place: a plan whose stream breaks is told again.
        status: How its last round ended; empty where that was not heard.
        first: The first task of that round.
        complete_at: Place -> when the client said that its round is complete, in loop seconds.
        over_at: When its end was heard, in loop seconds.
    """

    session: str
    turn: int
    graph: Graph
    calls: list[Planned]
    results: dict[int, TaskResult] = field(default_factory=dict)
    told: dict[int, list[TaskResult]] = field(default_factory=lambda: defaultdict(list))
    status: str = ""
    first: int = 0
    complete_at: dict[int, float] = field(default_factory=dict)
    over_at: float = float("inf")

    @classmethod
    def of(cls, session: str, graph: Graph, calls: Sequence[Planned]) -> GraphRun:
        """A run that begins."""
        return cls(session, 0, graph, [call.copy() for call in calls])

    def resolved(self) -> Iterator[tuple[tuple[str, int, int], Planned]]:
        """Tasks that took their arguments from another one's answer, with their keys."""
        for place in self.graph.refers:
            if not self.calls[place].refers:
                yield (self.session, self.turn, place), self.calls[place]


def draw_graph(chance: random.Random, taste: Taste) -> tuple[list[Planned], Graph]:
    """The tasks of a plan, and what else makes it one."""
    calls = [draw_call(chance, taste.reads + taste.writes, taste) for _ in range(chance.randint(2, 7))]
    refers: dict[int, int] = {}
    for place, call in enumerate(calls):
        sources = [one for one in range(place) if calls[one].tool == "get"]
        if call.tool == "get" and sources and chance.random() < 0.6:
            refers[place] = chance.choice(sources)
            call.arguments = {"id": f"$t{refers[place]}.next"}
    after = {place: chance.randrange(place) for place in range(1, len(calls)) if chance.random() < 0.2}
    cancel = None
    if chance.random() < 0.15:
        cancel = chance.choice([None, chance.randrange(len(calls))]), chance.uniform(0.0, 2.0)
    cut_off = chance.random() < 0.2
    graph = Graph(
        refers=refers,
        after=after,
        pauses=[chance.choice([0.0, 0.0, 0.3]) for _ in calls],
        on_failure=chance.choice([OnFailure.ISOLATE, OnFailure.FAIL_FAST, OnFailure.WAIT_ALL]),
        reads_first=chance.random() < (0.6 if cut_off else 0.3),
        in_flight=chance.choice([None, None, 1, 2]),
        cancel=cancel,
        cut_off=cut_off,
        again=chance.randrange(1, len(calls)) if chance.random() < 0.25 else None,
        breaks=chance.randint(0, len(calls)) if chance.random() < 0.3 else None,
    )
    return calls, graph


def failing_last(chance: random.Random) -> tuple[list[Planned], Graph]:
    """A plan of which the first task fails, often after the others have answered, and whose stream breaks then.

    Told again it has to go on from there: the failure that had stopped nothing, for nothing was left, is told first.
    """
    quick = [Planned("calc", {"a": place, "b": chance.randrange(3)}) for place in range(chance.randint(1, 2))]
    calls = [Planned("big", {"id": BEYOND_LIMIT}), *quick]
    graph = Graph(
        refers={},
        after={},
        pauses=[0.0] * len(calls),
        on_failure=OnFailure.FAIL_FAST,
        reads_first=chance.random() < 0.3,
        in_flight=None,
        cancel=None,
        cut_off=False,
        again=None,
        breaks=len(calls) - chance.randrange(2),
    )
    return calls, graph


async def run_graph(session: AsyncSession, run: GraphRun) -> None:
    """Runs a plan to its end, and notes what comes of it, also where it ends by an error.

    Raises:
        ForerunClientError: the platform says that it cannot be run.
    """
    graph, told = run.graph, [call.copy() for call in run.calls]
    plan = session.plan(on_failure=graph.on_failure, reads_first=graph.reads_first, in_flight=graph.in_flight)
    run.turn = plan._parts[0].start.turn
    _overhear(plan, run)
    if graph.breaks is not None:
        plan._stub = _Breaking(plan._stub, graph.breaks)
    listening = None
    try:
        async with plan:
            listening = asyncio.ensure_future(_listen(plan, run))
            withdrawing = asyncio.ensure_future(_withdraw(plan, graph))
            try:
                await _rounds(plan, told, run)
            finally:
                withdrawing.cancel()
    finally:
        if listening is not None:
            await asyncio.wait([listening])  # it ends with the plan


def _overhear(plan: RunningPlan, run: GraphRun) -> None:
    """Notes every end that the client is told, also those that it drops because it knows one."""
    take = plan._task_over

    def noted(result: TaskResult) -> None:
        run.told[result.index].append(result)
        take(result)

    plan._task_over = noted  # type: ignore[method-assign]


class _Breaking:
    """Stubs whose first stream breaks instead of giving one of its messages."""

    def __init__(self, stub: Callable[[], Any], left: int) -> None:
        self._stub = stub
        self._left = left

    def __call__(self) -> Any:
        return self

    def RunPlan(self, **more: Any) -> Any:  # noqa: N802
        call = self._stub().RunPlan(**more)
        if self._left < 0:
            return call
        read = call.read

        async def breaking() -> Any:
            message = await read()
            if message is not grpc.aio.EOF and message.WhichOneof("message") in ("task", "ended"):
                self._left -= 1
                if self._left < 0:
                    call.cancel()
                    nothing = grpc.aio.Metadata()
                    raise grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, nothing, nothing, "the stream broke")
            return message

        call.read = breaking
        return call


async def _rounds(plan: RunningPlan, told: Sequence[Planned], run: GraphRun) -> None:
    graph, last = run.graph, len(told)
    for first, end in ((0, last),) if graph.again is None else ((0, graph.again), (graph.again, last)):
        if first:
            if run.status not in _CONTINUED:
                return
            await plan.again()
            run.status, run.first = "", first
        await _tell(plan, told, graph, range(first, end))
        if graph.cut_off and end == last:
            await plan.refuse("the model's message broke off")
        else:
            run.complete_at |= dict.fromkeys(range(first, end), asyncio.get_running_loop().time())
        result = await plan.finish()
        run.status, run.over_at = result.status.value, asyncio.get_running_loop().time()


async def _tell(plan: RunningPlan, calls: Sequence[Planned], graph: Graph, places: range) -> None:
    for place in places:
        call = calls[place]
        await asyncio.sleep(graph.pauses[place])
        after = [f"t{graph.after[place]}"] if place in graph.after else []
        task = PlanTask(f"t{place}", call.tool, dict(call.arguments), after=after)
        await plan.add(task)


async def _withdraw(plan: RunningPlan, graph: Graph) -> None:
    if graph.cancel is None:
        return
    task, seconds = graph.cancel
    await asyncio.sleep(seconds)
    with suppress(ForerunClientError):
        await plan.cancel("" if task is None else f"t{task}")


async def _listen(plan: RunningPlan, run: GraphRun) -> None:
    async for result in plan.results():
        run.results[result.index] = result
        for place, source in run.graph.refers.items():
            if source == result.index and result.status.value == "ok":
                with suppress(ValueError, KeyError):  # nonsense: then no task can refer to it
                    run.calls[place].arguments = {"id": next_of(result.content)}


def next_of(content: bytes) -> int:
    """The document that an answer of `get` names as the next one.

    Raises:
        KeyError, ValueError: it is no answer of `get`.
    """
    answer: Any = json.loads(content)
    return int(answer["next"])
