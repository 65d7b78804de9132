"""What Forerun costs: the ways of a call on the real processes, against the direct call and a plain gRPC echo.

    python -m tests.bench.overhead [--quick] [--sessions N...] [--minutes N]

Everything is paired and interleaved in one run: each step makes the direct call, the echo and the call through the
platform, one after the other, and the cases take turns in every round. Steps come at a fixed rate, spread over the
sessions, because a closed loop of many sessions on few cores would only measure the queue that it makes itself.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from tests.bench.cases import CASES, EVENT, JOINED, OPEN, READY, Agent, Case, Sample, run
from tests.bench.memory import flatness
from tests.bench.overhead_floor import UNARY, floors
from tests.bench.results import Row, write
from tests.bench.stage import PROCESSES, Stage, staged

_IDLE_SECONDS: Final = 3.0
_WARM_UP_SECONDS: Final = 30.0
_OPENING: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is measured.

    Attributes:
        sessions: Concurrent sessions, one level after the other.
        rounds: Repetitions of all cases.
        steps: Steps of a case in a round.
        per_second: Rate of the steps.
        memory_minutes: Time under load whose memory is looked at; 0: none.
    """

    sessions: tuple[int, ...] = (1, 16, 64, 192)
    rounds: int = 5
    steps: int = 100
    per_second: float = 50.0
    memory_minutes: float = 1.0


QUICK: Final = Plan(sessions=(4,), rounds=1, steps=20, per_second=40.0, memory_minutes=0.02)


@dataclass(slots=True)
class Measured:
    """One case at one level.

    Attributes:
        rounds: Its samples, by round.
        cpu: Milliseconds of CPU beyond an idle platform, by process.
    """

    rounds: list[list[Sample]] = field(default_factory=list)
    cpu: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PROCESSES, 0.0))

    @property
    def steps(self) -> int:
        """All of them."""
        return sum(len(samples) for samples in self.rounds)


async def measure(stage: Stage, plan: Plan, say: Any) -> list[Row]:
    """Measures everything; rows for the file."""
    idle = await _idle(stage)
    bounds = await floors(stage)
    floor = next(row.value for row in bounds if row.name == UNARY)
    rows = [
        Row(name="idle platform", value=sum(idle.values()), unit="ms CPU/s", n=1, more={"cpu_by_process": dict(idle)}),
        *bounds,
    ]
    for count in plan.sessions:
        measured = {case.name: Measured() for case in CASES}
        async with AsyncExitStack() as stack:
            groups = {case.name: await _group(stage, case, count, stack) for case in CASES}
            for number in range(plan.rounds):
                say(f"{count} sessions, round {number + 1} of {plan.rounds}")
                for case in CASES:
                    await _round(stage, plan, groups[case.name], idle, measured[case.name])
        rows += [row for case in CASES for row in _rows(case, count, measured[case.name], floor)]
    if plan.memory_minutes > 0.0:
        say(f"memory, {plan.memory_minutes:g} min under load")
        rows += await flatness(stage, plan.memory_minutes)
    return rows


async def _group(stage: Stage, case: Case, count: int, stack: AsyncExitStack) -> list[Agent]:
    """The agents of a case with open sessions, and where it is about hits, a predictor that knows them."""
    agents = [Agent(stage, case, f"{count} {number}") for number in range(count)]
    for first in range(0, count, _OPENING):
        await asyncio.gather(*(agent.open() for agent in agents[first : first + _OPENING]))
    for agent in agents:
        stack.push_async_callback(agent.close)
    if case in (READY, JOINED):
        async with asyncio.timeout(_WARM_UP_SECONDS):
            while not all(sample.expected for sample in await run(agents[:4], 12, 100.0)):
                pass
    return agents


async def _idle(stage: Stage) -> dict[str, float]:
    """Milliseconds of CPU in a second in which nobody asks for anything."""
    before = stage.cpu()
    await asyncio.sleep(_IDLE_SECONDS)
    after = stage.cpu()
    return {name: (after[name] - before[name]) * 1000.0 / _IDLE_SECONDS for name in after}


async def _round(
    stage: Stage, plan: Plan, agents: Sequence[Agent], idle: Mapping[str, float], measured: Measured
) -> None:
    before, began_at = stage.cpu(), time.monotonic()
    measured.rounds.append(await run(agents, plan.steps, plan.per_second))
    seconds, after = time.monotonic() - began_at, stage.cpu()
    for name in after:
        measured.cpu[name] += (after[name] - before[name]) * 1000.0 - idle[name] * seconds


# ---------------------------------------------------------------- figures


def _rows(case: Case, count: int, measured: Measured, floor: float | None) -> list[Row]:
    name = f"{case.name}, {count} sessions"
    rounds = [[_figure(case, one) for one in samples if one.expected] for samples in measured.rounds]
    figures = [figure for one in rounds for figure in one]
    samples = [one for samples in measured.rounds for one in samples]
    echo = [one.echo for one in samples]
    medians = [statistics.median(one) for one in rounds if one]
    limits = _limits(case, echo)
    p50, p99 = _percentile(figures, 0.5), _percentile(figures, 0.99)
    time_row = Row(
        name=name, value=p50, unit="ms", baseline=_percentile(echo, 0.5), n=len(figures),
        spread=(min(medians), max(medians)) if medians else None,
        more={
            "p99": p99, "baseline_p99": _percentile(echo, 0.99), "limit": limits, "holds": _holds((p50, p99), limits),
            "direct_p50": _percentile([one.direct for one in samples if one.direct], 0.5),
            "stream_echo_p50": _percentile([one.stream for one in samples], 0.5),
            "answered_otherwise": len(samples) - len(figures),
        },
    )  # fmt: skip
    cpu = {process: spent / max(1, measured.steps) for process, spent in measured.cpu.items()}
    total = sum(cpu.values())
    cpu_row = Row(
        name=f"CPU of {name}", value=total, unit="ms CPU/call", baseline=floor, n=measured.steps,
        more={"cpu_by_process": cpu, "limit": [3.0], "holds": _holds((total,), [3.0])},
    )  # fmt: skip
    return [time_row, cpu_row]


def _figure(case: Case, sample: Sample) -> float:
    return sample.forerun - sample.direct if case.added else sample.forerun


def _limits(case: Case, echo: Sequence[float]) -> list[float | None] | None:
    """The targets of p50 and p99; twice the echo on a machine that is too slow for them itself."""
    p50, p99 = _percentile(echo, 0.5), _percentile(echo, 0.99)
    if p50 is None or p99 is None or case in (EVENT, OPEN):
        return None
    slow = p50 > 0.75 or p99 > 3.0
    if case.added:
        return [max(2.5, 2.0 * p50) if slow else 2.5, None]
    return [max(1.5, 2.0 * p50), max(6.0, 2.0 * p99)] if slow else [1.5, 6.0]


def _holds(values: Sequence[float | None], limits: Sequence[float | None] | None) -> bool | None:
    if limits is None or any(value is None for value in values):
        return None
    return all(limit is None or value <= limit for value, limit in zip(values, limits, strict=True))  # type: ignore[operator]


def _percentile(values: Sequence[float], share: float) -> float | None:
    """The nearest rank; None of nothing."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None


# ---------------------------------------------------------------- for people


def show(rows: Sequence[Row], console: Console) -> None:
    """Prints the tables."""
    times = Table(title="ms at the client; joined, miss, pass-through, write: beyond the direct call")
    for heading in ("case", "p50", "p99", "echo p50", "echo p99", "p50 / echo", "p99 / echo", "target", "n"):
        times.add_column(heading, justify="left" if heading == "case" else "right")
    usage = Table(title="ms of CPU, per call or per second, beyond an idle platform")
    for heading in ("case", "all", "x echo", *PROCESSES):
        usage.add_column(heading, justify="left" if heading == "case" else "right")
    memory = Table(title="MiB in RAM")
    for heading in ("process", "last sixth", "second sixth", "ratio"):
        memory.add_column(heading, justify="left" if heading == "process" else "right")
    for row in rows:
        more = row.more
        if row.unit == "ms":
            ratio = _over(more["p99"], more["baseline_p99"])
            times.add_row(
                row.name, _text(row.value), _text(more["p99"]), _text(row.baseline), _text(more["baseline_p99"]),
                _text(_over(row.value, row.baseline)), _text(ratio), _verdict(more["holds"]), str(row.n),
            )  # fmt: skip
        elif "CPU" in row.unit:
            by_process = more.get("cpu_by_process", {})
            times_echo = _text(_over(row.value, row.baseline))
            usage.add_row(row.name, _text(row.value), times_echo, *(_text(by_process.get(name)) for name in PROCESSES))
        else:
            memory.add_row(row.name, _text(row.value), _text(row.baseline), _text(_over(row.value, row.baseline)))
    for table in (times, usage, memory):
        if table.row_count:
            console.print(table)


def _over(value: float | None, baseline: float | None) -> float | None:
    return value / baseline if value is not None and baseline else None


def _text(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _verdict(holds: bool | None) -> str:
    return {None: "", True: "holds", False: "missed"}[holds]


async def _main(plan: Plan, console: Console) -> list[Row]:
    async with staged() as stage:
        return await measure(stage, plan, lambda text: console.print(text, style="dim"))


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.overhead", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few calls, to see that it works")
    parser.add_argument(
        "--minutes", type=float, help="minutes under load in which memory is looked at; 0: none (default: 1)"
    )
    parser.add_argument("--sessions", type=int, nargs="+", help="concurrent sessions (default: 1 16 64 192)")
    args = parser.parse_args()
    plan = QUICK if args.quick else Plan()
    plan = replace(plan, sessions=tuple(args.sessions or plan.sessions))
    if args.minutes is not None:
        plan = replace(plan, memory_minutes=args.minutes)
    with contextlib.suppress(KeyboardInterrupt):
        rows = asyncio.run(_main(plan, Console(stderr=True)))
        show(rows, Console(width=180))
        print(write("overhead-quick" if args.quick else "overhead", rows))


if __name__ == "__main__":
    main()
