"""The governor's cap, the kill switch and erasures reach texts that are decoded at that moment."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from forerun.core.tokens.ceiling import Ceiling, CeilingSource
from forerun.runtime.errors import ForerunError
from forerun.serving.backend.orders import Bounds
from forerun.serving.orders import OrderFolder
from forerun.serving.profile import Coupled, read_profile
from forerun.serving.server import Installation
from tests.integration.serving.conftest import Served, events, serving

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(180)]

TEXT: dict[str, Any] = {
    "max_tokens": 700,
    "ignore_end": True,
    "depth": 7,
    "drafters": ["model"],
    "seed": 1,
    "history": False,
}
IN_A_ROW = 20
"""So many passes of a text under a bound, one after the other, are no chance: without one there are far fewer."""

LONG = 3_900
"""Tokens of a text that is left when all orders were seen to hold: on a busy machine its client is far behind it."""


@pytest.fixture
def orders(tmp_path: Path) -> OrderFolder:
    return OrderFolder(tmp_path / "orders")


@pytest_asyncio.fixture
async def served(installation: Installation, tmp_path: Path, orders: OrderFolder) -> AsyncIterator[Served]:
    async with serving(installation, tmp_path, read_profile("toy"), orders.path) as one:
        yield one


Passes = list[list[int]]


def shallow(depth: int) -> Callable[[Passes], bool]:
    """The last passes gave no more tokens than so many drafted ones allow."""
    return lambda passes: len(passes) >= IN_A_ROW and all(len(one) <= depth + 1 for one in passes[-IN_A_ROW:])


def deep(passes: Passes) -> bool:
    """A pass gave as many tokens as there can be."""
    return len(passes[-1]) == 8


def capped(depth: int) -> Bounds:
    return Bounds(Ceiling(depth, CeilingSource.POOL))


async def decoded(
    served: Served,
    orders: OrderFolder,
    steps: Sequence[tuple[Bounds, Callable[[Passes], bool]]] = (),
    tenant: str = "acme",
    most: int = TEXT["max_tokens"],
) -> Passes:
    """The passes of one text. Each bound is ordered while it is decoded, and seen to hold before the next one.

    The text is left when all of them have held.
    """
    every: Passes = []
    since: Passes = []
    waiting = list(steps)
    options = {**TEXT, "tenant": tenant, "max_tokens": most}
    async with aclosing(events(served.client, [5, 6, 7], options)) as stream:
        async for event, _ in stream:
            every.append(event["tokens"])
            since.append(event["tokens"])
            if waiting and len(every) == 1:
                orders.bound(waiting[0][0])
            elif waiting and waiting[0][1](since):
                waiting.pop(0)
                since = []
                if not waiting:
                    break
                orders.bound(waiting[0][0])
    assert not waiting, f"never seen to hold: {waiting[0][0]}"
    return every


def tokens(passes: Passes) -> list[int]:
    return list(itertools.chain(*passes))


async def test_the_depth_of_a_text_falls_under_a_cap_and_returns_after_it_with_equal_tokens(
    served: Served, orders: OrderFolder
) -> None:
    free = await decoded(served, orders, most=LONG)
    assert deep([max(free, key=len)])
    assert not any(shallow(2)(free[:end]) for end in range(len(free))), "no chance without a cap"
    steps = [(capped(2), shallow(2)), (capped(0), shallow(0)), (Bounds(), deep)]
    bounded = tokens(await decoded(served, orders, steps, most=LONG))
    assert bounded == tokens(free)[: len(bounded)]


async def test_the_kill_switch_of_a_tenant_ends_its_drafts_and_nobody_elses(
    served: Served, orders: OrderFolder
) -> None:
    off = Bounds(off=frozenset({"acme"}))
    assert await decoded(served, orders, [(off, shallow(0))], most=LONG)
    assert deep([max(await decoded(served, orders, tenant="rival"), key=len)])
    assert shallow(0)(await decoded(served, orders))


async def test_metrics_say_how_deep_drafts_may_be_and_who_says_so(served: Served, orders: OrderFolder) -> None:
    async def said() -> tuple[float, set[str]]:
        await served.generate([1], max_tokens=1)
        found = await served.metrics()
        name = "forerun_draft_depth_ceiling"
        return found[name], {key for key, value in found.items() if key.startswith(f"{name}_source") and value}

    assert await said() == (7, {'forerun_draft_depth_ceiling_source{source="profile"}'})
    orders.bound(capped(3))
    assert await said() == (3, {'forerun_draft_depth_ceiling_source{source="pool"}'})
    orders.bound(Bounds(Ceiling(0, CeilingSource.SWITCH)))
    assert await said() == (0, {'forerun_draft_depth_ceiling_source{source="switch"}'})


async def test_an_erasure_reaches_a_loop_that_is_told_by_file_and_says_what_it_took(
    served: Served, orders: OrderFolder
) -> None:
    options = {"max_tokens": 100, "ignore_end": True, "tenant": "gone", "agent": "one", "seed": 4}
    await served.generate([9, 8, 7], **options)
    orders.erased({"gone": "first"})
    asked = {"tenant": "gone", "erase": True, "erasure": "first"}
    ((said, _),) = [one async for one in events(served.client, [1], asked)]
    assert said["erased"]["histories"] == 2
    assert said["erased"]["tokens"] > 200
    await served.generate([9, 8, 7], **options)
    ((again, _),) = [one async for one in events(served.client, [1], asked)]
    assert again == said, "what was said since stays"
    ((after, _),) = [one async for one in events(served.client, [1], {**asked, "erasure": "second"})]
    assert after["erased"]["histories"] == 2


async def test_an_erasure_that_leaves_files_is_none(installation: Installation, tmp_path: Path) -> None:
    profile, saved = read_profile("toy"), tmp_path / "histories"
    assert isinstance(profile.speculation, Coupled)
    keeping = profile.speculation.model_copy(update={"history_folder": saved})
    async with serving(installation, tmp_path, profile.model_copy(update={"speculation": keeping})) as one:
        for number in range(20):
            await one.generate([9, 8, number], max_tokens=10, tenant="acme")
        (place,) = saved.iterdir()
        stuck = place / "stuck"
        stuck.mkdir()
        with pytest.raises(ForerunError, match="files of the tenant are still there"):
            await one.keeper.erase("acme", "first")
        assert list(place.iterdir()) == [stuck], "all that can go is gone"
        stuck.rmdir()
        assert (await one.keeper.erase("acme", "first"))["histories"] == 2, "of the nameless agent, and of all together"
        with pytest.raises(ForerunError, match="tenant has more than 256 characters"):
            await one.generate([1], max_tokens=1, tenant="x" * 257)
