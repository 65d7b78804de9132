"""The pass of the next step is under way while the step before it is handled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from forerun.core.tokens.stopping import Finish
from forerun.serving.backend.loop import Step, ahead

pytestmark = pytest.mark.asyncio


def step(token: int, finish: Finish | None = None) -> Step:
    return Step([token], "", None, finish, 0, 0.0)


async def test_the_next_pass_is_asked_for_before_a_step_is_handled_and_none_after_the_last() -> None:
    seen: list[str] = []

    async def passes() -> AsyncGenerator[Step, None]:
        for token in range(3):
            seen.append(f"pass {token}")
            await asyncio.sleep(0)
            yield step(token, Finish.STOP if token == 2 else None)
        seen.append("asked for more")

    async for one in ahead(passes()):
        seen.append(f"step {one.tokens[0]}")
    assert seen == ["pass 0", "pass 1", "step 0", "pass 2", "step 1", "step 2"]


async def test_whoever_leaves_early_waits_for_the_pass_that_is_under_way() -> None:
    ended: list[int] = []

    async def passes() -> AsyncGenerator[Step, None]:
        token = 0
        while True:
            await asyncio.sleep(0.01)
            ended.append(token)
            yield step(token)
            token += 1

    async with aclosing(passes()) as all_passes, aclosing(ahead(all_passes)) as steps:
        async for _ in steps:
            break
    assert ended == [0, 1]


async def test_a_pass_that_fails_is_told_where_it_is_waited_for() -> None:
    async def passes() -> AsyncGenerator[Step, None]:
        yield step(0)
        raise ValueError("the model is gone")

    handled = []
    with pytest.raises(ValueError, match="gone"):
        async for one in ahead(passes()):
            handled.append(one.tokens[0])
    assert handled == [0]


async def test_a_failure_that_nobody_waits_for_is_no_failure() -> None:
    async def passes() -> AsyncGenerator[Step, None]:
        yield step(0)
        raise ValueError("the model is gone")

    async with aclosing(ahead(passes())) as steps:
        async for _ in steps:
            break
