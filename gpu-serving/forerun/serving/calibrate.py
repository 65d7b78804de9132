"""Measures what a step takes on this machine: the table from which the depth of drafts is decided.

Passes of real sequences through the real server, so that batching and coupling are in the figures. What is drafted does
not matter for the time, so any tokens do. Depths of one batch are measured in turns: a machine that becomes slower
meanwhile does so for all of them.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from forerun.core.tokens.depth import StepCosts, StepTable
from forerun.runtime.clock import Clock
from forerun.runtime.kserve import Inference, KServeClient, Response, SequenceStep, Tensor
from forerun.serving.backend.drafts import ALONE, WITH_DRAFT
from forerun.serving.backend.passes import ANSWER, PASS, Answered, Asked
from forerun.serving.profile import Coupled, Profile

_FIRST_SEQUENCE: Final = 1 << 61
_TOKEN: Final = 1
_PASS_SECONDS: Final = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much is measured.

    Attributes:
        repetitions: Of each depth; their median counts.
        contexts: Sizes of the context, as shares of the profile's.
        batches: Sizes of the batch; those above the profile's slots are left out.
    """

    repetitions: int = 7
    contexts: Sequence[float] = (0.25, 0.9)
    batches: Sequence[int] = (1, 2, 4, 8, 16, 32, 64, 128)


QUICK: Final = Effort(repetitions=3, contexts=(0.5,), batches=(1, 4, 16, 64))


async def calibrate(
    client: KServeClient, profile: Profile, target: str, draft: str | None, clock: Clock, effort: Effort
) -> StepTable:
    """Measures the models of a profile that a server has loaded.

    Args:
        client: Asks the server. Nobody else should.
        profile: What it serves.
        target: Name of the target there.
        draft: Name of the draft model; None: there is none.
        clock: Measures.
        effort: How much.

    Raises:
        ForerunError: A pass failed.
    """
    most = profile.speculation.max_depth if isinstance(profile.speculation, Coupled) else 0
    batches = sorted({one for one in effort.batches if one <= profile.slots} | {1})
    cells: dict[str, dict[tuple[int, int], StepCosts]] = {}
    for share in effort.contexts:
        context = max(8, int(profile.context_tokens * share) - 2 * (most + 1))
        for batch in batches:
            bench = _Bench(client, clock, batch, context, effort.repetitions)
            verifying = await bench.passes(target, range(most + 1))
            cells.setdefault(ALONE, {})[batch, context] = StepCosts(verifying)
            if draft is not None:
                drafting = await bench.passes(draft, range(1, most + 1))
                both = {depth: verifying[depth] + drafting.get(depth, 0.0) for depth in verifying}
                cells.setdefault(WITH_DRAFT, {})[batch, context] = StepCosts(both)
    return StepTable(cells)


class _Bench:
    """So many sequences of one context, passed side by side."""

    def __init__(self, client: KServeClient, clock: Clock, batch: int, context: int, repetitions: int) -> None:
        self._client = client
        self._clock = clock
        self._batch = batch
        self._context = context
        self._repetitions = repetitions

    async def passes(self, model: str, depths: Sequence[int]) -> dict[int, float]:
        """Seconds of a pass of the whole batch, by depth."""
        prompt = [_TOKEN] * self._context
        await self._all(model, Asked(prompt, 0, 0, self._batch), start=True)
        measured: dict[int, list[float]] = {depth: [] for depth in depths}
        for _ in range(self._repetitions + 1):
            for depth in depths:
                # A target verifies what ends its tokens; a draft goes on from them by itself.
                tokens = [_TOKEN] * (1 if model.startswith("draft") else depth + 1)
                asked = Asked(tokens, self._context, depth, self._batch)
                measured[depth].append(await self._all(model, asked, start=False))
        await self._all(model, Asked((), 0, 0, 0), start=False, end=True)
        # The first round warms up.
        return {depth: statistics.median(found[1:]) for depth, found in measured.items()}

    async def _all(self, model: str, asked: Asked, *, start: bool, end: bool = False) -> float:
        """One pass of every sequence at the same time: seconds, as they are declared, else as they passed."""
        numbers = asked.numbers()
        began = self._clock.monotonic()
        done = await asyncio.gather(
            *(
                self._client.infer(
                    Inference(
                        model=model,
                        inputs=[Tensor(PASS, "INT32", numbers, (1, len(numbers)))],
                        sequence=SequenceStep(_FIRST_SEQUENCE + number, start=start, end=end),
                    ),
                    seconds=_PASS_SECONDS,
                )
                for number in range(self._batch)
            )
        )
        passed = self._clock.monotonic() - began
        answers = [_answer(one) for one in done]
        return max(one.seconds for one in answers) if all(one.declared for one in answers) else passed


def _answer(response: Response) -> Answered:
    return Answered.of([float(one) for one in response.tensors[ANSWER].values])
