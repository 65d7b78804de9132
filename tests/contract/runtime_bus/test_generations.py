"""Generations of shared resources on both buses: what two replicas see of each other's writes."""

from __future__ import annotations

import asyncio

from forerun.core import limits
from forerun.core.freshness import UNSETTLED, dependencies
from forerun.orchestrator.shared import SharedGenerations
from forerun.runtime.topology import GENERATIONS
from tests.contract.runtime_bus.platforms import Platform

MARKS = dependencies(["stock/7"])


async def test_a_later_change_of_any_key_has_a_higher_revision(platform: Platform) -> None:
    kv = (await platform.bus()).kv(GENERATIONS)
    revisions = [await kv.put(key, b"") for key in ("a", "b", "a", "c")]
    assert revisions == sorted(set(revisions))


async def test_a_write_is_seen_by_the_other_replica_while_it_runs(platform: Platform) -> None:
    one, other = [SharedGenerations(await platform.bus("orchestrator"), name, lambda: 0.0) for name in ("1", "2")]
    before = await other.read("t", MARKS)
    writes = [(who, f"{number}") for number in range(10) for who in (one, other)]
    await asyncio.gather(*(who.begin("t", write, (f"stock/{write}",), 30.0) for who, write in writes))
    looks = [await other.read("t", MARKS) for _ in range(2)]
    assert all(look["self:stock/7"] >= UNSETTLED for look in looks)
    assert looks[0]["self:stock/7"] != looks[1]["self:stock/7"]
    await one.end("t", "7", ("stock/7",), unsettled=False)
    assert (await one.read("t", MARKS))["self:stock/7"] >= UNSETTLED
    await asyncio.gather(*(who.end("t", write, (f"stock/{write}",), unsettled=False) for who, write in writes))
    after = await other.read("t", MARKS)
    assert before["self:stock/7"] < after["self:stock/7"] < UNSETTLED
    assert after == await one.read("t", MARKS)


async def test_a_write_that_may_go_on_is_seen_by_the_other_replica_until_its_time_is_over(platform: Platform) -> None:
    now = 1_700_000_000.0
    one, other = [SharedGenerations(await platform.bus("orchestrator"), name, lambda: now) for name in ("1", "2")]
    await one.begin("t", "w", ("stock/7",), 30.0)
    await one.end("t", "w", ("stock/7",), unsettled=True)
    assert (await other.read("t", MARKS))["self:stock/7"] >= UNSETTLED
    now += limits.UNSETTLED_SECONDS + limits.CLOCK_SKEW_SECONDS
    assert (await other.read("t", MARKS))["self:stock/7"] < UNSETTLED


async def test_the_largest_index_fits_into_the_bucket(platform: Platform) -> None:
    one = SharedGenerations(await platform.bus("orchestrator"), "1", lambda: 0.0)
    for number in range(40):
        key = f"{'x' * (limits.RESOURCE_KEY_CHARS - 8)}/{number}"
        await one.begin("t", str(number), (key,), 30.0)
    assert (await one.read("t", ["self:*"]))["self:*"] >= UNSETTLED
