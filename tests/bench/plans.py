"""Side by side: what plans, early issue, races and prediction gain against sequential and ordered parallel calls.

    python -m tests.bench.plans [--quick]

Everything runs on the real processes, in one run, interleaved; each figure is the median of the repetitions. The model
is a stand-in that takes a drawn time and writes its calls evenly over it; the draws are the same for every arm.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import resource
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from rich.console import Console
from rich.table import Table

from forerun.client import AsyncSession, Call, Mode, PlanStatus, PlanTask
from forerun.core.contracts import Contract, Effect, ResourceTemplate
from forerun.core.plan import PlanFinished, PlanMachine, PlanOptions, StartTask, Task, TaskEnd, TaskStatus
from tests.bench.replicas import replicas
from tests.bench.results import Row, write
from tests.bench.servers import TOOL_SECONDS
from tests.bench.stage import Stage, staged
from tests.bench.streaming import streaming

Arm = Callable[[Stage, str], Awaitable[tuple[float, object]]]

_TURNS: Final = 8
_WARM_UP: Final = 5
_MODEL_SECONDS: Final = (0.05, 0.2)
_CHAIN: Final = (
    ("a", ()), ("b", ("a",)), ("c", ("a",)), ("d", ("b",)), ("e", ("b", "c")), ("f", ("c",)), ("g", ("d",)),
    ("h", ("e", "f")), ("i", ("f",)), ("j", ("g", "h")), ("k", ("i", "j")),
)  # fmt: skip
"""A plan of eleven tasks whose longest chain is a, b or c, e, h, j, k: six calls."""
_LONGEST: Final = 6


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    repetitions: int = 5
    racing: int = 1_200
    requests: int = 600
    tasks: int = 1_000
    many: int = 10_000


QUICK: Final = Size(repetitions=1, racing=120, requests=120, tasks=100, many=500)


# ---------------------------------------------------------------- four calls a turn


Calls = Sequence[tuple[str, str]]
Answer = Callable[[float, Calls], Awaitable[list[str]]]
"""Waits for the model, which takes so many seconds to write these calls, and runs them; what each observation names."""


async def agent(name: str, answer: Answer) -> tuple[float, object]:
    """An agent with four calls a turn: three reads and a write among them; its seconds, and all that it observed.

    It follows what the observations name, as agents that page through records do, and writes to a page that it has read
    in the turn before.
    """
    draw = random.Random(f"model {name}")
    pages, before = [f"{name}-a", f"{name}-b", f"{name}-c"], f"{name}-0"
    began, seen = time.perf_counter(), []
    for _ in range(_TURNS):
        calls = [("look", pages[0]), ("note", before), ("look", pages[1]), ("look", pages[2])]
        following = await answer(draw.uniform(*_MODEL_SECONDS), calls)
        before, pages = pages[1], [following[0], following[2], following[3]]
        seen += following
    return time.perf_counter() - began, seen


async def _direct(stage: Stage, tool: str, name: str) -> str:
    response = await stage.direct.post(f"/{tool}", content=json.dumps({"id": name}))
    return str(response.json()["next"])


async def sequential(stage: Stage, name: str) -> tuple[float, object]:
    """The calls of a message one after another, without Forerun."""

    async def answer(seconds: float, calls: Calls) -> list[str]:
        await asyncio.sleep(seconds)
        return [await _direct(stage, *call) for call in calls]

    return await agent(name, answer)


async def ordered(stage: Stage, name: str) -> tuple[float, object]:
    """Ordinary ordered parallel: nothing in one message is in conflict, so that all of it runs together."""

    async def answer(seconds: float, calls: Calls) -> list[str]:
        await asyncio.sleep(seconds)
        return await asyncio.gather(*(_direct(stage, *call) for call in calls))

    return await agent(name, answer)


async def forerun(stage: Stage, name: str) -> tuple[float, object]:
    """Forerun, with each message handed over while it streams."""
    async with stage.client.session("four-calls") as session:

        async def answer(seconds: float, calls: Calls) -> list[str]:
            began = time.perf_counter()
            await session.model_started()
            async with session.streamed_message() as message:
                for index, (tool, page) in enumerate(calls):
                    # A model writes on while its message is handed over, so its time is counted from its start.
                    written = began + seconds * (index + 1) / len(calls)
                    await asyncio.sleep(max(0.0, written - time.perf_counter()))
                    await message.add_call(index, name=tool, arguments=json.dumps({"id": page}))
                return [str(one.json()["next"]) for one in await message.call_tools()]

        return await agent(name, answer)


async def four_calls(stage: Stage, size: Size) -> list[Row]:
    """More than 1.65 times as fast as sequential, with the same results."""
    for number in range(_WARM_UP):
        await forerun(stage, f"warm-{number}")
    seconds = await _interleaved(stage, size, (sequential, ordered, forerun))
    base = statistics.median(seconds[0])
    bounds = [one / _bound(f"run-{repetition}") for repetition, one in enumerate(seconds[0])]
    goal = {"goal": 1.65, "bound": statistics.median(bounds)}
    return [
        Row(
            name=f"four calls a turn: {name}", value=base / statistics.median(one), unit="x sequential", baseline=1.0,
            n=len(one), spread=(base / max(one), base / min(one)), more={"seconds": statistics.median(one)} | more,
        )
        for name, one, more in zip(
            ("sequential", "ordered parallel", "Forerun"), seconds, ({}, {}, goal), strict=True
        )
    ]  # fmt: skip


def _bound(name: str) -> float:
    """Seconds of an agent of whom every read is there when it asks: the model's own time, and the writes after it."""
    draw = random.Random(f"model {name}")
    return sum(draw.uniform(*_MODEL_SECONDS) + TOOL_SECONDS["note"] for _ in range(_TURNS))


async def _interleaved(stage: Stage, size: Size, arms: Sequence[Arm]) -> list[list[float]]:
    seconds: list[list[float]] = [[] for _ in arms]
    for repetition in range(size.repetitions):
        expected: object = None
        name = f"run-{repetition}"
        for number, arm in enumerate(arms):
            taken, seen = await arm(stage, name)
            assert expected in (None, seen), f"{arm.__name__} gave other results"
            expected = seen
            seconds[number].append(taken)
    return seconds


# ---------------------------------------------------------------- plans


async def independent(stage: Stage, size: Size) -> list[Row]:
    """Eight calls that do not depend on each other take as long as one of them."""
    eight, one = [], []
    async with stage.client.session("eight", mode=Mode.OFF) as session:
        for repetition in range(size.repetitions):
            single = await _plan(session, [PlanTask("t", "fetch", {"id": f"one-{repetition}"})])
            one.append(single)
            tasks = [PlanTask(f"t{n}", "fetch", {"id": f"eight-{repetition}-{n}"}) for n in range(8)]
            eight.append(await _plan(session, tasks))
    ideal, taken = statistics.median(one), statistics.median(eight)
    return [
        Row(
            name="plan of 8 independent calls", value=100 * ideal / taken, unit="% of ideal", baseline=100.0,
            n=len(eight), spread=(100 * ideal / max(eight), 100 * ideal / min(eight)),
            more={"goal": 95.0, "seconds": taken, "times_sequential": 8 * ideal / taken},
        )
    ]  # fmt: skip


async def dependent(stage: Stage, size: Size) -> list[Row]:
    """Eleven tasks take as long as their longest chain."""
    plan, single = [], []
    async with stage.client.session("eleven", mode=Mode.OFF) as session:
        for repetition in range(size.repetitions):
            single.append(await _plan(session, [PlanTask("t", "fetch", {"id": f"single-{repetition}"})]))
            tasks = [
                PlanTask(name, "fetch", {"id": f"{repetition}-{name}" + "".join(f" ${one}.next" for one in needs)})
                for name, needs in _CHAIN
            ]
            plan.append(await _plan(session, tasks))
    ideal, taken = _LONGEST * statistics.median(single), statistics.median(plan)
    return [
        Row(
            name="plan of 11 dependent calls", value=100 * ideal / taken, unit="% of longest chain", baseline=100.0,
            n=len(plan), spread=(100 * ideal / max(plan), 100 * ideal / min(plan)),
            more={"goal": 92.0, "seconds": taken},
        )
    ]  # fmt: skip


async def _plan(session: AsyncSession, tasks: Sequence[PlanTask]) -> float:
    began = time.perf_counter()
    result = await session.run_plan(tasks)
    assert result.status is PlanStatus.OK, result.failure
    assert all(one.status.value == "ok" for one in result.tasks)
    return time.perf_counter() - began


# ---------------------------------------------------------------- races


async def races(stage: Stage, size: Size) -> list[Row]:
    """A tool of which 2 % of the calls take 20 times as long, directly and with second attempts."""
    direct, raced = [], []
    before = dict(await stage.launches()).get("find", 0)
    async with stage.client.session("races", mode=Mode.OFF) as session:
        for number in range(size.racing):
            name = f"find-{number}"
            began = time.perf_counter()
            await _direct(stage, "find", name)
            between = time.perf_counter()
            await session.call_tools([Call("find", {"id": name})])
            direct.append(between - began)
            raced.append(time.perf_counter() - between)
    calls = dict(await stage.launches()).get("find", 0) - before - size.racing
    known = raced[len(raced) // 5 :]  # at first nobody knows how long a call takes
    ratio = _high(known) / statistics.median(known)
    return [
        Row(
            name="race against stragglers: p99", value=1_000 * _high(known), unit="ms", baseline=1_000 * _high(direct),
            n=len(known),
            more={
                "goal": 3.0, "p99_over_median": ratio, "median_ms": 1_000 * statistics.median(known),
                "extra_pct": 100 * (calls - size.racing) / size.racing,
            },
        )
    ]  # fmt: skip


def _high(values: Sequence[float]) -> float:
    return sorted(values)[int(0.99 * len(values))]


# ---------------------------------------------------------------- the executor alone


def executor(size: Size) -> list[Row]:
    """CPU of the plan machine for each task, and memory of a large plan."""
    rows = []
    for count, goal in ((size.tasks, 0.5), (size.many, None)):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        taken = [_execute(count) for _ in range(size.repetitions if goal else 1)]
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        each = [1_000 * one / count for one in taken]
        rows.append(
            Row(
                name=f"executor, {count} tasks", value=statistics.median(each), unit="ms/task", n=len(each),
                spread=(min(each), max(each)), more={"goal": goal, "memory_mib": grown},
            )
        )  # fmt: skip
    return rows


def _execute(count: int) -> float:
    """A plan of chains of four with a write in each, performed at once; its CPU seconds."""
    contracts = {
        "get": Contract("get", "s", Effect.READ, reads=(ResourceTemplate("page/{id}"),)),
        "set": Contract("set", "s", Effect.WRITE, writes=(ResourceTemplate("page/{id}"),)),
    }
    machine = PlanMachine(contracts.__getitem__, PlanOptions(tasks=max(1_000, count)))
    end = TaskEnd(status=TaskStatus.OK, content=b'{"next": 1}', media_type="application/json")
    began = time.process_time()
    tasks = []
    for number in range(count):
        previous = {} if number % 4 == 0 else {"from": f"$t{number - 1}.next"}
        tool = "set" if number % 4 == 2 else "get"
        tasks.append(Task(id=f"t{number}", tool=tool, arguments={"id": f"{number // 4}", **previous}))
    waiting = [*machine.add(tasks, 0.0), *machine.complete(0.0)]
    finished = False
    while waiting:
        effect = waiting.pop()
        if isinstance(effect, StartTask):
            waiting += machine.finished(effect.id, end, 0.0)
        finished |= isinstance(effect, PlanFinished)
    assert finished
    return time.process_time() - began


# ---------------------------------------------------------------- for people


def show(rows: Sequence[Row], console: Console) -> None:
    """Prints the table."""
    table = Table(title="side by side")
    for heading in ("case", "value", "unit", "compared with", "goal", "spread", "n", "more"):
        table.add_column(heading, justify="left" if heading in ("case", "unit", "more") else "right")
    for row in rows:
        more = {name: value for name, value in row.more.items() if name != "goal"}
        table.add_row(
            row.name, _text(row.value), row.unit, _text(row.baseline), _text(row.more.get("goal")),
            "" if row.spread is None else f"{row.spread[0]:.2f} to {row.spread[1]:.2f}", str(row.n),
            ", ".join(f"{name} {_text(value)}" for name, value in more.items()),
        )  # fmt: skip
    console.print(table)


def _text(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


async def measure(size: Size, tell: Callable[[str], None]) -> list[Row]:
    """Measures everything."""
    rows = executor(size)
    async with staged() as stage:
        for name, part in (
            ("four calls a turn", four_calls),
            ("plans", independent),
            ("dependent plans", dependent),
            ("streaming", lambda stage, size: streaming(stage, size.repetitions)),
            ("races", races),
            ("replicas", lambda _, size: replicas(size.requests)),
        ):
            tell(name)
            rows += await part(stage, size)
    return rows


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.plans", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a little of each, to see that it works")
    args = parser.parse_args()
    progress = Console(stderr=True)
    with contextlib.suppress(KeyboardInterrupt):
        rows = asyncio.run(measure(QUICK if args.quick else Size(), lambda text: progress.print(text, style="dim")))
        show(rows, Console(width=180))
        print(write("plans-quick" if args.quick else "plans", rows))


if __name__ == "__main__":
    main()
