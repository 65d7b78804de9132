"""Policies that are published one by one: which comes first, and that a broken one replaces nothing."""

from __future__ import annotations

import asyncio

import pytest

from forerun.orchestrator.policies import PolicySource
from forerun.runtime.bus_memory import MemoryBroker, MemoryBus
from forerun.runtime.clock import SystemClock
from forerun.runtime.policy import policies_of
from forerun.runtime.topology import POLICIES
from forerun.v1 import common_pb2, policy_pb2


def file(*, name: str, priority: int = 0, hold_out: float = 0.0) -> policy_pb2.PolicyFile:
    policy = policy_pb2.SpeculationPolicy(name=name, priority=priority, mode=common_pb2.MODE_EXACT, hold_out=hold_out)
    return policy_pb2.PolicyFile(policies=[policy])


class Published:
    """A source that hears what is published."""

    def __init__(self) -> None:
        self.bus = MemoryBus(MemoryBroker(SystemClock()), "owner")
        self.changes = 0
        self.source = PolicySource(self.bus, None, self._changed)

    def _changed(self) -> None:
        self.changes += 1

    async def publish(self, key: str, value: bytes) -> None:
        before = self.changes
        await self.bus.kv(POLICIES).put(key, value)
        for _ in range(20):
            if self.changes > before:
                return
            await asyncio.sleep(0)

    @property
    def names(self) -> list[str]:
        return [one.name for one in self.source.current.items]


async def test_a_published_policy_of_higher_priority_is_asked_first() -> None:
    published = Published()
    await published.source.start()
    await published.publish("a", file(name="a").SerializeToString())
    await published.publish("b", file(name="b", priority=5).SerializeToString())
    await published.publish("c", file(name="c", priority=-1).SerializeToString())
    assert published.names == ["b", "a", "c"]
    assert published.source.current.choose("t", "x").name == "b"
    await published.source.stop(0)


async def test_a_broken_published_policy_replaces_nothing() -> None:
    published = Published()
    await published.source.start()
    await published.publish("a", file(name="a").SerializeToString())
    await published.publish("a", file(name="a", hold_out=3).SerializeToString())
    await published.publish("a", b"\xff")
    (policy,) = published.source.current.items
    assert policy.hold_out == 0.0
    await published.source.stop(0)


@pytest.mark.parametrize("priorities", [(0, 0, 0), (3, 3, 1)])
def test_equal_priorities_keep_the_order_of_the_file(priorities: tuple[int, ...]) -> None:
    together = policy_pb2.PolicyFile(
        policies=[file(name=str(n), priority=p).policies[0] for n, p in enumerate(priorities)]
    )
    assert [one.name for one in policies_of(together).items] == ["0", "1", "2"]
