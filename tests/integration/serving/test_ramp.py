"""The depth controller on the served toy pair while the batch grows and shrinks: never harmful, near the best depth.

The toy declares what its passes take (memory first, arithmetic later), so that noise decides nothing.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import pytest
import pytest_asyncio

from forerun.core.tokens.depth import StepCosts, StepTable
from forerun.runtime.clock import SystemClock
from forerun.serving.calibrate import Effort, calibrate
from forerun.serving.profile import Coupled, read_profile
from forerun.serving.server import Installation
from tests.integration.serving.conftest import Served, serving

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(400)]

RAMP = (1, 8, 64, 8, 1)
ARMS: Mapping[str, Mapping[str, Any]] = {
    "off": {"speculate": False},
    "1": {"depth": 1},
    "3": {"depth": 3},
    "7": {"depth": 7},
    "controller": {},
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def measured(installation: Installation, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    """The toy pair with a table that knows depth 0 only, then with the measured one, which is read while it serves."""
    folder = tmp_path_factory.mktemp("ramp")
    table = folder / "table.json"
    nothing = {(1, 4_096): StepCosts({0: 1.0})}
    table.write_text(json.dumps(StepTable({"target": nothing, "target+draft": nothing}).as_json()))
    profile = read_profile("toy")
    assert isinstance(profile.speculation, Coupled)
    speculation = profile.speculation.model_copy(update={"table": table, "drafters": ("recall", "model")})
    async with serving(installation, folder, profile.model_copy(update={"speculation": speculation})) as served:
        assert (await served.generate([1, 2, 3], max_tokens=40, ignore_end=True)).usage["proposed"] == 0
        effort = Effort(repetitions=1, contexts=(0.9,), batches=(1, 2, 4, 8, 16, 32, 64))
        found = await calibrate(served.client, profile, "target-1", "draft-1", SystemClock(), effort)
        table.write_text(json.dumps(found.as_json()))
        yield served


async def goodput(served: Served, batch: int, texts: int, tokens: int, options: Mapping[str, Any]) -> float:
    """Tokens a declared second of each of `batch` texts that are decoded side by side."""

    async def one_after_another(first: int) -> tuple[int, float]:
        generated, seconds = 0, 0.0
        for second in range(1, texts + 1):
            given = {"max_tokens": tokens, "ignore_end": True, "history": False, "temperature": 1.0, "seed": first}
            answer = await served.generate([first % 60 + 1, second], **given, **options)
            generated += answer.usage["generated"]
            seconds += answer.usage["seconds"]
        return generated, seconds

    done = await asyncio.gather(*(one_after_another(first) for first in range(batch)))
    return sum(one for one, _ in done) / sum(one for _, one in done)


async def ramp(served: Served, texts: Sequence[tuple[int, int]]) -> dict[str, list[float]]:
    """Goodput at each level, by arm; the controller goes through the whole ramp without a pause."""
    return {
        name: [await goodput(served, batch, *size, options) for batch, size in zip(RAMP, texts, strict=True)]
        for name, options in ARMS.items()
    }


async def test_the_controller_harms_at_no_batch_and_is_near_the_best_depth(measured: Served) -> None:
    # Warmed up, so that it has seen how the draft model does.
    await goodput(measured, 1, 2, 200, {})
    found = await ramp(measured, [(2, 200), (1, 100), (1, 80), (1, 100), (2, 200)])
    for level, batch in enumerate(RAMP):
        off, controlled = found["off"][level], found["controller"][level]
        best = max(values[level] for name, values in found.items() if name != "controller")
        assert controlled >= 0.95 * off, f"batch {batch}: {found}"
        assert controlled >= 0.93 * best, f"batch {batch}: {found}"
    assert found["controller"][0] > 1.3 * found["off"][0], "it speculates where that pays"
    assert found["7"][2] < 0.85 * found["off"][2], "where seven tokens harm, or the test shows nothing"
