"""Plans whose text a planner still writes: what starting each task with its line gains over waiting for the whole plan.

The text of the plan arrives evenly, in pieces of a token's size, over as long as its calls take alone (their longest
chain): planning takes as long as the calls. What can be gained depends on the shape of the plan alone: where the last
line begins a call of the full length and nothing went before it, as in a plan of equal calls that do not depend on each
other, both ways take the same time. So each figure stands beside the one that a schedule without any overhead gives.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Final

from forerun.client import AsyncSession, Mode, PlanStatus, PlanTask
from forerun.core.plan.intake import LlmCompilerReader
from tests.bench.results import Row
from tests.bench.servers import TOOL_SECONDS
from tests.bench.stage import Stage

Needs = Mapping[int, Sequence[int]]
"""Number of each task, as the planner writes it, to those whose results it refers to."""

DEPENDENT: Final[Needs] = {
    1: (), 2: (1,), 3: (1,), 4: (2,), 5: (2, 3), 6: (3,), 7: (4,), 8: (5, 6), 9: (6,), 10: (7, 8), 11: (9, 10),
}  # fmt: skip
"""Eleven tasks, whose longest chain has six."""
INDEPENDENT: Final[Needs] = dict.fromkeys(range(1, 9), ())

_CALL_SECONDS: Final = TOOL_SECONDS["fetch"]
_PIECE_CHARS: Final = 4


def plan_text(needs: Needs, name: str) -> str:
    """The plan, as a planner of LLMCompiler writes it."""
    lines = [
        f'{number}. fetch(id="{name}-{number}' + "".join(f" ${one}.next" for one in before) + '")\n'
        for number, before in needs.items()
    ]
    return "".join(lines) + f"{len(needs) + 1}. join()<END_OF_PLAN>\n"


def longest_chain(needs: Needs) -> int:
    """Calls on the longest chain."""
    depth: dict[int, int] = {}
    for number, before in needs.items():
        depth[number] = 1 + max((depth[one] for one in before), default=0)
    return max(depth.values())


def ideal(needs: Needs) -> float:
    """How many times as fast a schedule without overhead is, where each task starts with its line and its inputs."""
    planning = longest_chain(needs) * _CALL_SECONDS
    text, written = plan_text(needs, "x"), 0
    ended: dict[int, float] = {}
    for line, (number, before) in zip(text.splitlines(keepends=True), needs.items(), strict=False):
        written += len(line)
        arrived = planning * written / len(text)
        ended[number] = max([arrived, *(ended[one] for one in before)]) + _CALL_SECONDS
    return 2.0 * planning / max(planning, *ended.values())


async def run(session: AsyncSession, needs: Needs, name: str, *, streamed: bool) -> float:
    """Plans and performs; the seconds from the first piece of the plan to its end."""
    text = plan_text(needs, name)
    seconds = longest_chain(needs) * _CALL_SECONDS
    reader = LlmCompilerReader(lambda _: ("id",))
    held: list[PlanTask] = []
    began = time.perf_counter()
    async with session.plan(reads_first=False) as plan:
        for at in range(0, len(text), _PIECE_CHARS):
            piece = text[at : at + _PIECE_CHARS]
            due = began + seconds * (at + len(piece)) / len(text)
            await asyncio.sleep(due - time.perf_counter())
            held += [PlanTask(one.id, one.tool, one.arguments) for one in reader.feed(piece)]
            if held and (streamed or reader.complete):
                await plan.add(*held)
                held = []
        result = await plan.finish()
    taken = time.perf_counter() - began
    assert result.status is PlanStatus.OK and len(result.tasks) == len(needs), result.failure
    assert all(one.status.value == "ok" for one in result.tasks)
    return taken


async def streaming(stage: Stage, repetitions: int) -> list[Row]:
    """Tasks that start with their lines, beside plans that wait for their last one."""
    rows = []
    async with stage.client.session("stream", mode=Mode.OFF) as session:
        await run(session, DEPENDENT, "warm", streamed=True)
        for name, needs, goal in (("11 dependent calls", DEPENDENT, 1.2), ("8 independent calls", INDEPENDENT, None)):
            seconds: dict[bool, list[float]] = {False: [], True: []}
            for repetition in range(repetitions):
                for streamed, taken in seconds.items():
                    taken.append(await run(session, needs, f"{name} {repetition} {streamed}", streamed=streamed))
            whole, streamed_seconds = seconds[False], seconds[True]
            rows.append(
                Row(
                    name=f"streaming intake: {name}", unit="x whole", baseline=1.0, n=len(whole),
                    value=statistics.median(whole) / statistics.median(streamed_seconds),
                    spread=(min(whole) / max(streamed_seconds), max(whole) / min(streamed_seconds)),
                    more={"goal": goal, "ideal": ideal(needs), "seconds": statistics.median(streamed_seconds)},
                )
            )  # fmt: skip
    return rows
