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
_MIB: Final = 1024 * 1024
_ALL: Final = "all of them"


async def flatness(stage: Stage, minutes: float) -> list[Row]:
    """Loads the platform for some minutes; a row for each process, and one for all of them."""
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
    whole = [(at, {**used, _ALL: sum(used.values())}) for at, used in seen]
    return [_row(name, minutes, whole) for name in (*PROCESSES, _ALL)]


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
    """The last sixth of the time against the second one, which of half an hour are minutes 5 to 10 and 25 to 30.

    The first sixth fills caches and buffers. Medians, because a single look may fall before or after a collection of
    garbage, and because the broker holds the block that it writes in memory and drops it when it is full: a sawtooth.
    """
    began_at, ended_at = seen[0][0], seen[-1][0]
    sixth = (ended_at - began_at) / 6.0

    def during(first: float, last: float) -> float:
        used = [one[process] for at, one in seen if first <= at <= last] or [seen[-1][1][process]]
        return statistics.median(used) / _MIB

    early, late = during(began_at + sixth, began_at + 2.0 * sixth), during(ended_at - sixth, ended_at)
    values = [used[process] / _MIB for _, used in seen]
    return Row(
        name=f"memory of {process} over {minutes:g} min", value=late, unit="MiB", baseline=early, n=len(seen),
        spread=(min(values), max(values)),
        more={"holds": late <= 1.05 * early, "limit": [1.05 * early], "start": values[0]},
    )  # fmt: skip
