"""Whether 192 sessions at once are slower where speculation is on than where it is off.

    python -m tests.bench.harm [--data FOLDER] [--quick]

Two ways to look at it. In **virtual time** every message passes one core, first come, first served, and holds it for
the CPU time that the real processes need for it, which is measured at the start; recorded sessions run with mode off,
with Forerun, and with a predictor that is always wrong. What other programs do on the machine is not in it, so this is
the judgement. In **real time** the same sessions run on the real processes, off and on in turn; the machine is in it,
so the paired interval is printed, and only one that lies above 2 % as a whole fails.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table
from starlette.requests import Request
from starlette.responses import Response

from forerun.cli.replay.agent import Observed, SessionLike, SessionRun
from forerun.cli.replay.arms import REHEARSAL, Connect
from forerun.cli.replay.foresight import Foreseen, all_wrong, perfect
from forerun.cli.replay.positions import Recording, record
from forerun.cli.replay.real_run import RealReplay
from forerun.cli.replay.scoring import interval_by_task, saved, seconds_of
from forerun.cli.replay.serving import served
from forerun.cli.replay.toolserver import ToolServer
from forerun.cli.replay.traces import RecordedCall, Session, Step
from forerun.cli.replay.virtual_run import VirtualReplay
from forerun.cli.replay.workload import Selection, Workload, load
from forerun.client import AsyncClient, Mode
from forerun.core.statistics import percentile
from tests.bench import overhead
from tests.bench.results import REPOSITORY, Row, write
from tests.bench.stage import PROCESSES, staged

LIMIT_PCT: Final = 2.0
_TOOL_SECONDS: Final = 2.0
_SEED: Final = 1
_COSTS: Final = overhead.Plan(sessions=(16,), rounds=2, memory_minutes=0.02)
OFF, EXACT, WRONG = "off", "exact", "all-wrong"


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much is measured.

    Attributes:
        at_once: Sessions at a time.
        sessions: Sessions in virtual time.
        hurries: In virtual time everything but the costs takes its time divided by each of these.
        windows: Times that each arm runs in real time.
        window_seconds: What of a session is run in real time: its first steps, for about so long.
        costs: How the costs are measured.
    """

    at_once: int = 192
    sessions: int = 384
    hurries: tuple[float, ...] = (1.0, 4.0)
    windows: int = 3
    window_seconds: float = 30.0
    costs: overhead.Plan = _COSTS


QUICK: Final = Size(at_once=8, sessions=12, hurries=(1.0,), windows=1, window_seconds=4.0, costs=overhead.QUICK)


# ---------------------------------------------------------------- what things cost


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of CPU of some processes.

    Attributes:
        event: An event that is no call.
        answer: A call that is answered without an execution.
        execution: The execution of a call, beyond that.
        speculation: Everything about an execution ahead of its call, up to its certification.
    """

    event: float
    answer: float
    execution: float
    speculation: float

    @staticmethod
    def of(rows: Sequence[Row], sessions: int, processes: Sequence[str]) -> Costs:
        """From the rows of `tests.bench.overhead`."""

        def cpu(case: str) -> float:
            (row,) = [row for row in rows if row.name == f"CPU of {case}, {sessions} sessions"]
            return sum(max(0.0, float(row.more["cpu_by_process"][name])) for name in processes) / 1_000.0

        event, memo, miss, ready = cpu("event"), cpu("memo hit"), cpu("miss"), cpu("ready hit")
        return Costs(event, memo, max(0.0, miss - memo), max(0.0, ready - memo - event))


class Core:
    """One processor core of the running loop's time: first come, first served."""

    def __init__(self) -> None:
        self._free_at = self._since = asyncio.get_running_loop().time()
        self.busy_seconds = 0.0

    @property
    def busy_share(self) -> float:
        """How much of the time from its making to the end of the last work it was in use."""
        seconds = self._free_at - self._since
        return self.busy_seconds / seconds if seconds else 0.0

    def take(self, seconds: float) -> float:
        """Books work; when it will be done, as seconds from now."""
        now = asyncio.get_running_loop().time()
        self._free_at = max(now, self._free_at) + seconds
        self.busy_seconds += seconds
        return self._free_at - now

    async def serve(self, seconds: float) -> None:
        """Books work and waits until it is done."""
        await asyncio.sleep(self.take(seconds))


# ---------------------------------------------------------------- virtual time


class _Tools(ToolServer):
    """The recorded tools behind the core. What arrives without having been asked for runs ahead."""

    def __init__(self, workload: Workload, costs: Costs) -> None:
        super().__init__(dict(enumerate(workload.recordings)), workload.durations)
        self.costs = costs
        self.core: Core
        self.asked: Counter[str] = Counter()
        self.ahead = 0

    async def _handle(self, request: Request) -> Response:
        called = "/".join(request.path_params[name] for name in ("session", "tool"))
        if called.startswith(REHEARSAL):
            return await super()._handle(request)
        if self.asked[called] > 0:
            self.asked[called] -= 1
            await self.core.serve(self.costs.execution)
        else:
            self.ahead += 1
            await self.core.serve(self.costs.speculation)
        return await super()._handle(request)


class _Queued:
    """A session whose messages pass the core."""

    def __init__(self, session: SessionLike, label: str, tools: _Tools) -> None:
        self._session = session
        self._label = label
        self._tools = tools

    async def user_turn(self, text: str) -> None:
        self._tools.core.take(self._tools.costs.event)
        await self._session.user_turn(text)

    async def model_started(self, turn: int) -> None:
        self._tools.core.take(self._tools.costs.event)
        await self._session.model_started(turn)

    async def assistant_message(self, turn: int, text: str) -> None:
        self._tools.core.take(self._tools.costs.event)
        await self._session.assistant_message(turn, text)

    async def call_batch(self, turn: int, calls: Sequence[RecordedCall]) -> Sequence[Observed]:
        names = [f"{self._label}/{call.tool}" for call in calls]
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        self._tools.asked.update(names)
        await self._tools.core.serve(self._tools.costs.answer * len(calls))
        observed = await self._session.call_batch(turn, calls)
        for name in names:  # what was answered without an execution is not expected any more
            self._tools.asked[name] = 0
        waited = loop.time() - began_at
        return [replace(one, seconds=waited) for one in observed]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Replay(VirtualReplay):
    """A replay in which all sessions share one core."""

    tools: _Tools

    async def _run(self, arm: str, connect: Connect) -> list[SessionRun]:
        if arm == REHEARSAL:
            return await VirtualReplay._run(self, arm, connect)
        self.tools.core = Core()

        @asynccontextmanager
        async def queued(number: int, recording: Recording) -> AsyncIterator[SessionLike]:
            async with connect(number, recording) as session:
                yield _Queued(session, f"{arm}.{number}", self.tools)

        return await VirtualReplay._run(self, arm, queued)


@dataclass(frozen=True, slots=True)
class Arm:
    """What an arm gave: its sessions, executions ahead of their calls, and the share of the core that was in use."""

    runs: Sequence[SessionRun]
    ahead: int = 0
    busy: float = 0.0


def in_virtual_time(workload: Workload, size: Size, costs: Costs, say: Callable[[str], None]) -> dict[str, Arm]:
    """All three arms."""
    arms: dict[str, Arm] = {}
    for name in (OFF, EXACT, WRONG):
        say(f"virtual time, {name}")
        tools = _Tools(workload, costs)
        replaying = _Replay(
            workload=workload,
            tools=tools,
            seed=_SEED,
            charged_seconds=0.0,
            at_once=size.at_once,
            progress=lambda *_: None,
        )
        if name == WRONG:
            runs = replaying.foreseen(name, Foreseen(all_wrong, rehearsed=perfect)).runs
        else:
            runs = replaying.forerun(name, mode=Mode.OFF if name == OFF else None).runs
        arms[name] = Arm(runs, tools.ahead, tools.core.busy_share)
    return arms


# ---------------------------------------------------------------- real time


def beginning(session: Session, seconds: float) -> Session:
    """The first steps of a session whose models and tools take no longer than that; one at least."""
    steps: list[Step] = []
    total = 0.0
    for step in session.steps:
        total += step.model_seconds + sum(call.seconds for call in step.calls)
        if steps and total > seconds:
            break
        steps.append(step)
    return replace(session, steps=tuple(steps))


async def in_real_time(
    workload: Workload, size: Size, say: Callable[[str], None]
) -> dict[str, list[Sequence[SessionRun]]]:
    """Windows of both arms in turn, on one platform."""
    windows: dict[str, list[Sequence[SessionRun]]] = {OFF: [], EXACT: []}
    modes: Mapping[str, Mode | None] = {OFF: Mode.OFF, EXACT: None}
    tools = ToolServer(dict(enumerate(workload.recordings)), workload.durations)
    real = RealReplay(workload=workload, tools=tools, at_once=size.at_once, progress=lambda *_: None)
    async with (
        served(tools.app) as address,
        real.platform(address) as platform,
        AsyncClient(platform.address, platform.token) as client,
    ):
        await real.train(platform)
        for number in range(size.windows):
            for name in (OFF, EXACT) if number % 2 == 0 else (EXACT, OFF):
                say(f"real time, window {number + 1} of {size.windows}, {name}")
                runs, _ = await real.sessions(client, f"{name}-{number}", modes[name])
                windows[name].append(runs)
    return windows


# ---------------------------------------------------------------- figures


def compared(name: str, off: Sequence[SessionRun], on: Sequence[SessionRun], more: Mapping[str, object]) -> Row:
    """How much longer the sessions took with speculation than with mode off, in per cent, with its interval."""
    saved_pct, interval = saved(seconds_of(off), seconds_of(on)), interval_by_task(off, on, _SEED)
    assert saved_pct is not None and interval is not None  # there are many sessions, and they take time
    direct = [
        (one.seconds, other.seconds)
        for run, again in zip(off, on, strict=True)
        for one, other in zip(run.flat, again.flat, strict=True)
        if one.served == other.served == "direct"
    ]
    p99_off, p99_on = (percentile([pair[side] for pair in direct], 0.99) for side in (0, 1))
    return Row(
        name=name,
        value=-saved_pct,
        unit="% longer than off",
        n=len(off),
        spread=(-interval[1], -interval[0]),
        more={"direct_calls": len(direct), "direct_p99_off_s": p99_off, "direct_p99_s": p99_on, **more},
    )


def _shown(rows: Sequence[Row], console: Console) -> None:
    table = Table(title="sessions with speculation against the same with mode off")
    for heading in (
        "where",
        "% longer",
        "95 %",
        "direct calls p99, s: off",
        "on",
        "ran ahead",
        "core in use",
        "verdict",
    ):
        table.add_column(heading, justify="left" if heading == "where" else "right")
    for row in rows:
        assert row.value is not None and row.spread is not None
        more = row.more
        table.add_row(
            row.name, f"{row.value:.2f}", f"{row.spread[0]:.2f} to {row.spread[1]:.2f}",
            _seconds(more["direct_p99_off_s"]), _seconds(more["direct_p99_s"]), str(more.get("ahead", "")),
            f"{100 * float(more['busy']):.0f} %" if "busy" in more else "", "holds" if more["holds"] else "HARM",
        )  # fmt: skip
    console.print(table)


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


async def _costs(size: Size, say: Callable[[str], None]) -> Sequence[Row]:
    async with staged() as stage:
        return await overhead.measure(stage, size.costs, say)


def measure(data: Path, size: Size, say: Callable[[str], None]) -> list[Row]:
    """Everything; rows for the file."""
    trace = data / "traces" / "tau2_agents.jsonl.gz"
    chosen = Selection(files=(trace,), train=(trace,), sessions=size.sessions, seed=_SEED, tool_seconds=_TOOL_SECONDS)
    workload = load(chosen)
    say("costs")
    measured = asyncio.run(_costs(size, say))
    (count,) = size.costs.sessions
    rows: list[Row] = []
    for hurry in size.hurries:
        hurried = load(replace(chosen, scale=1.0 / hurry, tool_seconds=_TOOL_SECONDS))
        for where, processes in (("orchestrator's core", ("orchestrator",)), ("one core for all", PROCESSES)):
            costs = Costs.of(measured, count, processes)
            arms = in_virtual_time(hurried, size, costs, say)
            for name in (EXACT, WRONG):
                more = {"ahead": arms[name].ahead, "busy": arms[name].busy, "busy_off": arms[OFF].busy}
                row = compared(f"virtual x {hurry:g}, {where}, {name}", arms[OFF].runs, arms[name].runs, more)
                assert row.value is not None
                rows.append(replace(row, more={**row.more, "holds": row.value <= LIMIT_PCT}))
    short = [record(beginning(one.session, size.window_seconds), one.rules) for one in workload.recordings]
    windows = asyncio.run(in_real_time(replace(workload, recordings=tuple(short[: size.at_once])), size, say))
    off, on = ([run for window in windows[name] for run in window] for name in (OFF, EXACT))
    real = compared(f"real, {size.at_once} at once", off, on, {})
    assert real.spread is not None
    return [*rows, replace(real, more={**real.more, "holds": real.spread[0] <= LIMIT_PCT})]


def main() -> None:
    """Runs the benchmark; exit code 1 where speculation did harm."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.harm", description=__doc__)
    parser.add_argument("--data", type=Path, default=REPOSITORY.parent / "shared" / "data", help="recorded runs")
    parser.add_argument("--quick", action="store_true", help="a few sessions, to see that it works")
    args = parser.parse_args()
    rows = measure(args.data, QUICK if args.quick else Size(), lambda text: print(text, file=sys.stderr))
    _shown(rows, Console(width=160))
    print(write("harm-quick" if args.quick else "harm", rows))
    sys.exit(not all(row.more["holds"] for row in rows))


if __name__ == "__main__":
    main()
