"""The depth controller on the served toy pair while the batch grows and shrinks: never harmful, near the best depth.

The toy declares what its passes take (memory first, arithmetic later), so that noise decides nothing.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import pytest
import pytest_asyncio

from forerun.core.tokens.depth import StepCosts, StepTable
from forerun.runtime.clock import SystemClock
from forerun.serving.calibrate import Effort, calibrate
from forerun.serving.profile import Coupled, read_profile
from forerun.serving.server import Installation
from tests.integration.serving.conftest import PATIENT, Served, events, serving

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


async def goodput_of(
    served: Served, batch: int, tokens: int, options: Mapping[str, Any], *, prompt: Sequence[int] = (1,)
) -> float:
    """Tokens a declared second of each of `batch` texts that are decoded side by side.

    Counted is what comes while all of them are decoded: when which text begins and ends is the machine's business.
    """
    started: set[int] = set()
    counted = [0] * batch
    seconds = 0.0

    async def follow(number: int) -> None:
        nonlocal seconds
        given = {"max_tokens": 4_000, "ignore_end": True, "history": False, "temperature": 1.0, "seed": number}
        async with aclosing(events(served.client, [number % 60 + 1, *prompt], {**given, **options}, PATIENT)) as stream:
            async for event, _ in stream:
                if len(started) == batch:
                    counted[number] += len(event["tokens"])
                    seconds += event["seconds"]
                started.add(number)
                if min(counted) >= tokens:
                    enough.set()
        assert enough.is_set(), "a text has ended before the others had their tokens"

    enough = asyncio.Event()
    texts = [asyncio.create_task(follow(number)) for number in range(batch)]
    reached = asyncio.create_task(enough.wait())
    done, _ = await asyncio.wait([*texts, reached], return_when=asyncio.FIRST_COMPLETED)
    goodput = sum(counted) / seconds if reached in done else 0.0
    for one in (*texts, reached):
        one.cancel()
    await asyncio.gather(*texts, reached, return_exceptions=True)
    for failed in done - {reached}:
        failed.result()
    while (await served.metrics())["forerun_decoding_slots_used"]:  # noqa: ASYNC110 - the server tells nobody
        await asyncio.sleep(0.02)
    return goodput


async def ramp(served: Served, tokens: Sequence[int]) -> dict[str, list[float]]:
    """Goodput at each level, by arm; the controller goes through the whole ramp without a pause."""
    return {
        name: [await goodput_of(served, batch, each, options) for batch, each in zip(RAMP, tokens, strict=True)]
        for name, options in ARMS.items()
    }


async def test_the_controller_harms_at_no_batch_and_is_near_the_best_depth(measured: Served) -> None:
    # Warmed up, so that it has seen how the draft model does.
    await goodput_of(measured, 1, 400, {})
    found = await ramp(measured, [400, 150, 60, 150, 400])
    for level, batch in enumerate(RAMP):
        off, controlled = found["off"][level], found["controller"][level]
        best = max(values[level] for name, values in found.items() if name != "controller")
        assert controlled >= 0.95 * off, f"batch {batch}: {found}"
        assert controlled >= 0.97 * best, f"batch {batch}: {found}"
    assert found["controller"][0] > 1.3 * found["off"][0], "it speculates where that pays"
    assert found["7"][2] < 0.85 * found["off"][2], "where seven tokens harm, or the test shows nothing"


async def test_probes_harm_nobody_where_the_draft_model_has_long_prompts_to_catch_up_with(measured: Served) -> None:
    prompt = [number % 61 + 1 for number in range(1_500)]
    off = await goodput_of(measured, 64, 30, {"speculate": False}, prompt=prompt)
    controlled = await goodput_of(measured, 64, 30, {"drafters": ["model"]}, prompt=prompt)
    assert controlled >= 0.95 * off
