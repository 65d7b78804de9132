"""Processes killed at random moments, by seed, while agents work: `python -m tests.fault.soak --seeds N`.

Prints a line for each seed and fails where an answer or an effect is wrong. The moments are counted in executions that
reach the tools and in events that reach the journal, so that they fall where something happens.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from tests.integration.up.registers import Entry
from tests.integration.up.staging import Agent, Break, Stage, staged, working

AGENTS: Final = 4
KILLS: Final = 3
_EVENTS: Final = ("intent", "calls_asked", "call_finished")


@dataclass(frozen=True)
class Kill:
    """One accident.

    Attributes:
        victims: The processes.
        after: So many executions, or journal events, from the last accident on.
        moment: `before` or `after` the effect of an execution, or the kind of a journal event.
    """

    victims: tuple[str, ...]
    after: int
    moment: str

    def __str__(self) -> str:
        who = ", ".join(self.victims) if len(self.victims) < 4 else "everything"
        return f"{who} {self.moment} {self.after}"


@dataclass(frozen=True)
class Run:
    """What came of one seed.

    Attributes:
        kills: The accidents.
        seconds: From each accident until all agents had an answer again.
        statuses: Ends of calls.
        faults: What is wrong.
    """

    kills: tuple[Kill, ...]
    seconds: tuple[float, ...]
    statuses: Counter[str]
    faults: tuple[str, ...]


def drawn(seed: int, everything: tuple[str, ...]) -> tuple[Kill, ...]:
    """The accidents of a seed."""
    draw = random.Random(seed)
    kills = []
    for _ in range(KILLS):
        kind = draw.random()
        victims = everything if kind < 0.2 else tuple(draw.sample(everything, draw.choice((1, 1, 2))))
        kills.append(Kill(victims, draw.randint(1, 40), draw.choice(("before", "after", *_EVENTS))))
    return tuple(kills)


async def run(stage: Stage, seed: int) -> Run:
    """Lets agents work through the accidents of a seed, on a platform that runs and runs again afterwards."""
    kills, seconds = drawn(seed, stage.everything), []
    async with working(stage, AGENTS, f"seed-{seed}") as agents:
        for kill in kills:
            print(f"seed {seed}: {kill}", file=sys.stderr)
            try:
                await _until_killed(stage, kill)
            except TimeoutError:
                raise AssertionError(f"agents stand still: {[agent.state for agent in agents]}") from None
            begun_at = asyncio.get_running_loop().time()
            await asyncio.gather(*(agent.until_steps(1) for agent in agents))
            seconds.append(asyncio.get_running_loop().time() - begun_at)
            await stage.until_back()
    results = [result for agent in agents for result in agent.results]
    statuses = Counter(result.status.value for result in results)
    return Run(kills, tuple(seconds), statuses, tuple(_faults(stage, agents)))


def _faults(stage: Stage, agents: list[Agent]) -> list[str]:
    return [fault for agent in agents for fault in agent.judge(stage.registers)]


async def _until_killed(stage: Stage, kill: Kill) -> None:
    left = kill.after

    def due() -> bool:
        nonlocal left
        left -= 1
        return left == 0

    def by_tool(entry: Entry, phase: str) -> bool:
        return phase == kill.moment and due()

    moment = Break(by_tool, lambda: stage.kill(*kill.victims))
    async with asyncio.timeout(60):
        if kill.moment in _EVENTS:
            async with stage.hearing(kill.moment, lambda: moment.now() if due() else None):
                await moment.happened.wait()
        else:
            stage.registers.moment = moment
            await moment.happened.wait()
    stage.registers.moment = None


async def _main(first: int, count: int) -> int:
    table = Table("seed", "killed", "all answered after", "calls", "unknown", "wrong", box=None, pad_edge=False)
    console, wrong = Console(width=200, highlight=False), 0
    with tempfile.TemporaryDirectory(prefix="forerun-soak-") as folder:
        async with staged(Path(folder)) as stage:
            for seed in range(first, first + count):
                came = await run(stage, seed)
                wrong += len(came.faults)
                waits = ", ".join(f"{one:.1f} s" for one in came.seconds)
                counts = str(came.statuses.total()), str(came.statuses["outcome_unknown"]), str(len(came.faults))
                table.add_row(str(seed), "; ".join(map(str, came.kills)), waits, *counts)
                for fault in came.faults:
                    console.print(f"seed {seed}: {fault}", style="red", markup=False)
    console.print(table)
    return 1 if wrong else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--seeds", type=int, default=10, help="how many")
    args = parser.parse_args()
    sys.exit(asyncio.run(_main(args.seed, args.seeds)))
