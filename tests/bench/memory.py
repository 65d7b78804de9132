"""Whether memory stays flat under load: sessions come, work, and go, and every process is looked at."""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Final

from tests.bench.cases import MEMO, MISS, READY, WRITE, Agent, run
from tests.bench.results import Row
from tests.bench.stage import PROCESSES, Stage

_WORKERS: Final = 8
_STEPS_PER_SESSION: Final = 10
_PER_SECOND: Final = 10.0
_EVERY_SECONDS: Final = 2.0
_EARLY: Final = 5 / 30
"""Growth is looked for after this share of the time: what fills caches and buffers does so before."""
_MIB: Final = 1024 * 1024


async def flatness(stage: Stage, minutes: float) -> list[Row]:
    """Loads the platform for some minutes; a row for each process."""
    seen: list[tuple[float, dict[str, int]]] = [(time.monotonic(), stage.resident())]
    loads = [asyncio.ensure_future(_load(stage, number)) for number in range(_WORKERS)]
    ends_at = time.monotonic() + minutes * 60.0
    try:
        while (left := ends_at - time.monotonic()) > 0:
            done, _ = await asyncio.wait(loads, timeout=min(_EVERY_SECONDS, left), return_when=asyncio.FIRST_COMPLETED)
            for load in done:
                load.result()  # they end by failures only
            seen.append((time.monotonic(), stage.resident()))
    finally:
        for load in loads:
            load.cancel()
        await asyncio.wait(loads)
    return [_row(name, minutes, seen) for name in PROCESSES]


async def _load(stage: Stage, number: int) -> None:
    """One agent after another: each opens a session, works, and closes it."""
    count = 0
    while True:
        case = (READY, MISS, MEMO, WRITE)[count % 4]
        agent = Agent(stage, case, f"memory {number} {count}")
        count += 1
        await agent.open()
        try:
            await run([agent], _STEPS_PER_SESSION, _PER_SECOND)
        finally:
            await agent.close()


def _row(process: str, minutes: float, seen: list[tuple[float, dict[str, int]]]) -> Row:
    """Medians over a stretch of time: a single look may fall before or after a garbage collection."""
    began_at, ended_at = seen[0][0], seen[-1][0]
    stretch = max(_EVERY_SECONDS, (ended_at - began_at) * 0.1)

    def around(at: float) -> float:
        near = [used[process] for when, used in seen if abs(when - at) <= stretch / 2] or [seen[-1][1][process]]
        return statistics.median(near) / _MIB

    early = around(began_at + (ended_at - began_at) * _EARLY)
    values = [used[process] / _MIB for _, used in seen]
    return Row(
        name=f"memory of {process} over {minutes:g} min", value=around(ended_at), unit="MiB", baseline=early,
        n=len(seen), spread=(min(values), max(values)),
        more={"holds": around(ended_at) <= 1.05 * early, "limit": [1.05 * early], "start": values[0]},
    )  # fmt: skip
