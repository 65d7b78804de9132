"""Runs all arms that a replay needs and puts their figures together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from forerun.cli.replay import overhead
from forerun.cli.replay.agent import SessionRun
from forerun.cli.replay.arms import FORERUN, ORACLE, PARALLEL, SEQUENTIAL, Progress
from forerun.cli.replay.divergence import Difference, differences
from forerun.cli.replay.foresight import all_wrong, perfect
from forerun.cli.replay.platform_arm import PlatformRuns
from forerun.cli.replay.real_run import RealReplay
from forerun.cli.replay.report import Results
from forerun.cli.replay.scoring import Counts, Overhead, paired_overhead, tool_rows
from forerun.cli.replay.toolserver import ToolServer
from forerun.cli.replay.traces import stem_of
from forerun.cli.replay.virtual_run import VirtualReplay
from forerun.cli.replay.workload import Selection, Workload
from forerun.client import Mode

# Sessions of an arm at a time in real time: enough to be done soon, few enough not to compete for two cores.
_REAL_AT_ONCE = 8


class Control(StrEnum):
    """What takes the place of Forerun, to see whether the replay itself is right."""

    OFF = "off"
    """Speculation and memo switched off: what is left is the platform's overhead."""
    ALL_WRONG = "all-wrong"
    """A predictor that is certain and always wrong: what being wrong costs, within the budget."""
    AA = "aa"
    """Ordered parallel a second time: no difference may be found."""


@dataclass(frozen=True, slots=True)
class Arms:
    """The runs of all arms."""

    sequential: Sequence[SessionRun]
    parallel: Sequence[SessionRun]
    forerun: PlatformRuns
    oracle: PlatformRuns | None
    overhead: Overhead
    charged_ms: float | None


def replay(
    workload: Workload, selection: Selection, *, clock: str, control: Control | None, progress: Progress
) -> Results:
    """Runs everything and gives the figures.

    Args:
        workload: What is replayed.
        selection: What the person asked for.
        clock: `virtual` or `real`.
        control: What takes the place of Forerun, or None.
        progress: Told how far it is.

    Raises:
        ForerunError: The platform cannot be started.
    """
    tools = ToolServer(dict(enumerate(workload.recordings)), workload.durations)
    name = FORERUN if control is None else control.value
    if clock == "virtual":
        arms = _virtual(workload, tools, selection.seed, name, control, progress)
    else:
        arms = asyncio.run(_real(workload, tools, name, control, progress))
    found = _differences(tools, name, arms.forerun.runs, arms.sequential)
    found += _differences(tools, PARALLEL, arms.parallel, arms.sequential)
    if arms.oracle is not None:
        found += _differences(tools, ORACLE, arms.oracle.runs, arms.sequential)
    return Results(
        files=[stem_of(path) for path in selection.files],
        sequential=arms.sequential,
        parallel=arms.parallel,
        forerun=arms.forerun.runs,
        oracle=None if arms.oracle is None else arms.oracle.runs,
        counts=arms.forerun.counts,
        tool_rows=tool_rows(arms.forerun.runs, arms.forerun.lines),
        executions=tools.executions(name),
        differences=found,
        trained_on=arms.forerun.trained_on,
        overhead=arms.overhead,
        charged_ms=arms.charged_ms,
        clock=clock,
        scale=selection.scale,
        tool_seconds=selection.tool_seconds,
        control=None if control is None else control.value,
        imputed_times=workload.imputed_times,
        nondeterministic=workload.nondeterministic,
        seed=selection.seed,
    )


def _virtual(
    workload: Workload, tools: ToolServer, seed: int, name: str, control: Control | None, progress: Progress
) -> Arms:
    measured = overhead.run()
    virtual = VirtualReplay(
        workload=workload,
        tools=tools,
        seed=seed,
        charged_seconds=measured.charged_ms / 1000.0,
        at_once=1,
        progress=progress,
    )
    sequential = virtual.direct(SEQUENTIAL, parallel=False)
    parallel = virtual.direct(PARALLEL, parallel=True)
    oracle = virtual.foreseen(ORACLE, perfect) if control is None else None
    if control is Control.AA:
        forerun = _without_platform(virtual.direct(name, parallel=True))
    elif control is Control.ALL_WRONG:
        forerun = virtual.foreseen(name, all_wrong)
    else:
        forerun = virtual.forerun(name, mode=Mode.OFF if control is Control.OFF else None)
    return Arms(sequential, parallel, forerun, oracle, measured.overhead, measured.charged_ms)


async def _real(workload: Workload, tools: ToolServer, name: str, control: Control | None, progress: Progress) -> Arms:
    at_once = min(_REAL_AT_ONCE, len(workload.recordings))
    real = RealReplay(workload=workload, tools=tools, at_once=at_once, progress=progress)
    if control is Control.AA:
        runs, again = await real.without(name)
        return Arms(runs.sequential, runs.parallel, _without_platform(again), None, Overhead(()), None)
    runs = await real.together(
        name,
        mode=Mode.OFF if control is Control.OFF else None,
        foresee=all_wrong if control is Control.ALL_WRONG else None,
    )
    assert runs.forerun is not None
    oracle = await real.foreseen(ORACLE, perfect) if control is None else None
    return Arms(
        runs.sequential,
        runs.parallel,
        runs.forerun,
        oracle,
        paired_overhead(runs.forerun.runs, runs.parallel),
        None,
    )


def _without_platform(runs: Sequence[SessionRun]) -> PlatformRuns:
    return PlatformRuns(runs, Counts())


def _differences(
    tools: ToolServer, arm: str, runs: Sequence[SessionRun], sequential: Sequence[SessionRun]
) -> list[Difference]:
    return [
        difference
        for number, (run, right) in enumerate(zip(runs, sequential, strict=True))
        for difference in differences(run, right, *tools.logs(number, arm, SEQUENTIAL))
    ]
