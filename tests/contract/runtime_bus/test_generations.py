"""Generations of shared resources on both buses: what two replicas see of each other's writes."""

from __future__ import annotations

import asyncio

from forerun.core import limits
from forerun.core.freshness import UNSETTLED, dependencies
from forerun.orchestrator.shared import SharedGenerations
from forerun.runtime.topology import GENERATIONS
from tests.contract.runtime_bus.platforms import Platform


async def test_a_later_change_of_any_key_has_a_higher_revision(platform: Platform) -> None:
    kv = (await platform.bus()).kv(GENERATIONS)
    revisions = [await kv.put(key, b"") for key in ("a", "b", "a", "c")]
    assert revisions == sorted(set(revisions))


async def test_a_write_that_may_go_on_is_seen_by_the_other_replica_until_its_time_is_over(platform: Platform) -> None:
    now = 1_700_000_000.0
    one, other = [SharedGenerations(await platform.bus("orchestrator"), lambda: now) for _ in range(2)]
    marks = dependencies(["stock/7"])
    await one.bump("t", ["stock/7"])
    before = await other.read("t", marks)
    await asyncio.gather(*(who.unsettle("t", [key]) for who, key in ((one, "stock/7"), (other, "stock/8"))))
    await one.bump("t", ["stock/7"])
    looks = [await other.read("t", marks) for _ in range(2)]
    assert all(look["self:stock/7"] >= UNSETTLED for look in looks)
    assert looks[0]["self:stock/7"] != looks[1]["self:stock/7"]
    assert (await one.read("t", ["self:stock/8"]))["self:stock/8"] >= UNSETTLED
    now += limits.UNSETTLED_SECONDS
    after = await other.read("t", marks)
    assert before["self:stock/7"] < after["self:stock/7"] < UNSETTLED


async def test_the_largest_index_fits_into_the_bucket(platform: Platform) -> None:
    one = SharedGenerations(await platform.bus("orchestrator"), lambda: 0.0)
    for number in range(40):
        await one.unsettle("t", [f"{'x' * (limits.RESOURCE_KEY_CHARS - 8)}/{number}"])
    assert (await one.read("t", ["self:*"]))["self:*"] >= UNSETTLED
