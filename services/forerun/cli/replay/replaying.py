"""Runs all arms that a replay needs and puts their figures together."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from forerun.cli.replay import overhead
from forerun.cli.replay.agent import SessionRun
from forerun.cli.replay.arms import FORERUN, OFF, ORACLE, PARALLEL, SEQUENTIAL, Progress
from forerun.cli.replay.controls import PLANTED, Control, harm_study, wrong_study
from forerun.cli.replay.divergence import Difference, differences
from forerun.cli.replay.foresight import Foreseen, all_wrong, perfect
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

# Controls that are ordered parallel a second time, with the share by which it is made longer.
_PLANTED: Final[Mapping[Control | None, float]] = {Control.AA: 0.0, Control.HARM: PLANTED}
_WRONG: Final = Foreseen(all_wrong, rehearsed=perfect)


@dataclass(frozen=True, slots=True)
class Arms:
    """The runs of all arms."""

    sequential: Sequence[SessionRun]
    parallel: Sequence[SessionRun]
    forerun: PlatformRuns
    oracle: PlatformRuns | None
    overhead: Overhead
    charged_ms: float | None
    off: PlatformRuns | None = None


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
        harm=harm_study(arms.parallel, arms.forerun.runs) if control is Control.HARM else None,
        wrong=None if arms.off is None else wrong_study(arms.forerun.runs, arms.off.runs, arms.forerun.sites),
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
    oracle = virtual.foreseen(ORACLE, Foreseen(perfect)) if control is None else None
    off = virtual.forerun(OFF, mode=Mode.OFF) if control is Control.ALL_WRONG else None
    if control in _PLANTED:
        forerun = _without_platform(virtual.direct(name, parallel=True, planted=_PLANTED[control]))
    elif control is Control.ALL_WRONG:
        forerun = virtual.foreseen(name, _WRONG)
    else:
        forerun = virtual.forerun(name, mode=Mode.OFF if control is Control.OFF else None)
    return Arms(sequential, parallel, forerun, oracle, measured.overhead, measured.charged_ms, off)


async def _real(workload: Workload, tools: ToolServer, name: str, control: Control | None, progress: Progress) -> Arms:
    at_once = min(_REAL_AT_ONCE, len(workload.recordings))
    real = RealReplay(workload=workload, tools=tools, at_once=at_once, progress=progress)
    if control in _PLANTED:
        runs, again = await real.without(name, _PLANTED[control])
        return Arms(runs.sequential, runs.parallel, _without_platform(again), None, Overhead(()), None)
    runs = await real.together(
        name,
        mode=Mode.OFF if control is Control.OFF else None,
        foreseen=_WRONG if control is Control.ALL_WRONG else None,
    )
    assert runs.forerun is not None
    oracle = await real.foreseen(ORACLE, Foreseen(perfect)) if control is None else None
    off = (await real.together(OFF, mode=Mode.OFF)).forerun if control is Control.ALL_WRONG else None
    return Arms(
        runs.sequential,
        runs.parallel,
        runs.forerun,
        oracle,
        paired_overhead(runs.forerun.runs, runs.parallel),
        None,
        off,
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
