"""A shared write that runs is known to every session from its start on, also when its owner dies (K3).

Counts alone do not tell: what was read between the start of a write and its end may be from before its effect, while
another read of the same session has seen the effect already.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from forerun.client import AsyncClient, AsyncSession, Call, Served, Status
from forerun.core import limits
from forerun.v1 import session_pb2, session_pb2_grpc
from tests.integration.cases.conftest import Play, Run, Stage, Tools, policy, tool
from tests.kills import kill

EFFECT_SECONDS = 0.5
SELL_SECONDS = 2.0
TIMEOUT_SECONDS = 10.0
LATE_SECONDS = 1.0
READ_SECONDS = 0.25

STOCK = policy(
    tool("get", "READ", reads=["stock/{id}"], scope="SHARED", speculate=True),
    tool("peek", "READ", reads=["stock/{id}"], scope="SHARED"),
    tool("sell", "WRITE", writes=["stock/{id}"], scope="SHARED", timeoutSeconds=TIMEOUT_SECONDS),
    tool("restock", "WRITE", writes=["stock/{id}"], scope="SHARED", idempotent=True, timeoutSeconds=TIMEOUT_SECONDS),
    tool("anything", "WRITE", timeoutSeconds=TIMEOUT_SECONDS),
)  # fmt: skip
SEVEN = ("get", b'{"id":7}')


def stock() -> Tools:
    """A server whose writes have their effect long before they answer, and late where their caller hangs up."""
    values: dict[int, str] = {}

    async def read(run: Run) -> Any:
        value = values.get(run.arguments["id"], "before")
        await asyncio.sleep(READ_SECONDS)
        return {"value": value}

    async def sell(run: Run) -> Any:
        number = run.arguments["id"]
        try:
            await asyncio.sleep(EFFECT_SECONDS)
        except asyncio.CancelledError:
            asyncio.get_running_loop().call_later(LATE_SECONDS, values.__setitem__, number, "after")
            raise
        values[number] = "after"
        await asyncio.sleep(SELL_SECONDS - EFFECT_SECONDS)
        return {"sold": number}

    return Tools(seconds=SELL_SECONDS, answers={"get": read, "peek": read, "sell": sell})


async def at(s: Stage, began: float, seconds: float) -> None:
    """Waits for a moment of the scene."""
    await asyncio.sleep(began + seconds - s.now())


async def served(session: AsyncSession, name: str = "get", number: int = 7, times: int = 3) -> list[Served]:
    """How calls are answered that are made one after the other."""
    return [(await session.call_tool(name, {"id": number})).served for _ in range(times)]


@pytest.mark.parametrize("asked", [1.2, 2.5], ids=["while it runs", "after its end"])
@pytest.mark.parametrize("ahead", [-0.2, 0.1], ids=["read before its start", "read before its effect"])
def test_what_another_session_read_before_the_effect_is_not_served_once_the_effect_was_seen(
    play: Play, ahead: float, asked: float
) -> None:
    async def scene(s: Stage) -> None:
        async with s.client.session("a") as writer, s.client.session("b") as reader:
            began = s.now() + 0.5
            if ahead < 0.0:
                await at(s, began, ahead)
                await s.ahead(reader, SEVEN)
            await at(s, began, 0.0)
            writing = asyncio.ensure_future(writer.call_tools([Call("sell", {"id": 7})]))
            if ahead >= 0.0:
                await at(s, began, ahead)
                await s.ahead(reader, SEVEN)
            await at(s, began, 0.7)
            seen = await reader.call_tool("peek", {"id": 7})
            await at(s, began, asked)
            answer = await reader.call_tool("get", {"id": 7})
            assert (await writing)[0].ok
        assert [seen.json(), answer.json()] == [{"value": "after"}] * 2
        assert answer.served is Served.DIRECT

    play(scene, STOCK, tools=stock())


def test_what_it_does_not_touch_is_served_all_the_time(play: Play) -> None:
    async def scene(s: Stage) -> None:
        async with s.client.session("a") as writer, s.client.session("b") as reader:
            writing = asyncio.ensure_future(writer.call_tools([Call("sell", {"id": 7})]))
            await asyncio.sleep(0.1)
            await s.ahead(reader, SEVEN, ("get", b'{"id":8}'))
            await asyncio.sleep(1.0)
            assert await served(reader, number=8, times=2) == [Served.READY, Served.MEMO]
            assert (await writing)[0].ok

    play(scene, STOCK, tools=stock())


@pytest.mark.parametrize("write", ["sell", "anything"])
def test_its_resource_is_trusted_again_when_it_has_ended(play: Play, write: str) -> None:
    async def scene(s: Stage) -> None:
        async with s.client.session("a") as writer, s.client.session("b") as reader:
            writing = asyncio.ensure_future(writer.call_tools([Call(write, {"id": 7})]))
            await asyncio.sleep(0.1)
            await s.ahead(reader, SEVEN)
            assert (await writing)[0].ok
            await s.ahead(reader, SEVEN)
            await asyncio.sleep(1.0)
            assert await served(reader) == [Served.READY, Served.MEMO, Served.MEMO]
            # Who was refused while it ran, and only reads now, comes to know of its end, too.
            assert await served(writer) == [Served.DIRECT, Served.DIRECT, Served.MEMO]
        assert reader.totals is not None and sum(reader.totals.refused.values()) == 1

    play(scene, STOCK, tools=stock())


def test_a_write_that_is_taken_back_before_it_starts_leaves_nothing_behind(play: Play) -> None:
    async def scene(s: Stage) -> None:
        async with s.client.session("a") as writer, s.client.session("b") as reader:
            s.platform.broker.latency_seconds = 0.05
            call = Call("sell", {"id": 7})
            writing = asyncio.ensure_future(writer.call_tools([call]))
            await asyncio.sleep(0.11)
            await writer.cancel(call)
            assert (await writing)[0].status is Status.CANCELLED
            await asyncio.sleep(1.0)
            s.platform.broker.latency_seconds = 0.0
            await s.ahead(reader, SEVEN)
            await asyncio.sleep(1.0)
            assert await served(reader, times=1) == [Served.READY]
        assert not s.tools.of("sell")

    play(scene, STOCK, tools=stock())


async def lost_write(s: Stage) -> None:
    """A write whose orchestrator is killed while it runs, of a session to which nobody comes back."""
    stub = session_pb2_grpc.SessionServiceStub(s.platform.channel())
    request = session_pb2.CallToolsRequest(hello=session_pb2.Hello(session=s.ids.uuid7(), agent="a"))
    request.batch.turn = 1
    request.batch.calls.add(index=0).action.tool = "sell"
    request.batch.calls[0].action.arguments = b'{"id":7}'
    asking = asyncio.ensure_future(stub.CallTools(request, timeout=30.0))
    await asyncio.sleep(0.25)
    await kill(s.platform, "orchestrator")
    with pytest.raises(Exception, match="UNAVAILABLE"):
        await asking
    await s.platform.start_service("orchestrator")


def test_a_write_whose_owner_is_killed_is_not_trusted_although_nobody_takes_the_session_over(play: Play) -> None:
    async def scene(s: Stage) -> None:
        await lost_write(s)
        async with s.client.session("b") as reader:
            await s.ahead(reader, SEVEN, ("get", b'{"id":8}'))
            await asyncio.sleep(2 * LATE_SECONDS)
            seen = await reader.call_tool("peek", {"id": 7})
            late = await reader.call_tool("get", {"id": 7})
            other = await reader.call_tool("get", {"id": 8})
        assert [seen.json(), late.json()] == [{"value": "after"}] * 2
        assert (late.served, other.served) == (Served.DIRECT, Served.READY)

    play(scene, STOCK, tools=stock())


def test_another_replica_knows_of_a_write_whose_owner_was_killed(play: Play) -> None:
    async def scene(s: Stage) -> None:
        await s.platform.start_service("orchestrator-2")
        async with (
            AsyncClient(channel=s.platform.service_channel("orchestrator-2"), ids=s.ids) as client,
            client.session("b") as reader,
        ):
            await s.ahead(reader, SEVEN)
            await asyncio.sleep(1.0)
            await lost_write(s)
            await s.ahead(reader, SEVEN)
            await asyncio.sleep(2 * LATE_SECONDS)
            seen = await reader.call_tool("peek", {"id": 7})
            late = await reader.call_tool("get", {"id": 7})
        assert [seen.json(), late.json()] == [{"value": "after"}] * 2
        assert late.served is Served.DIRECT

    play(scene, STOCK, tools=stock())


def test_replicas_tell_each_other_of_writes_that_run(play: Play) -> None:
    async def scene(s: Stage) -> None:
        await s.platform.start_service("orchestrator-2")
        async with (
            AsyncClient(channel=s.platform.service_channel("orchestrator-2"), ids=s.ids) as client,
            client.session("b") as reader,
            s.client.session("a") as writer,
        ):
            writing = asyncio.ensure_future(writer.call_tools([Call("sell", {"id": 7})]))
            await asyncio.sleep(0.1)
            await s.ahead(reader, SEVEN)
            await asyncio.sleep(0.6)
            seen = await reader.call_tool("peek", {"id": 7})
            answer = await reader.call_tool("get", {"id": 7})
            assert (await writing)[0].ok
            await s.ahead(reader, SEVEN)
            await asyncio.sleep(1.0)
            assert await served(reader) == [Served.READY, Served.MEMO, Served.MEMO]
        assert [seen.json(), answer.json()] == [{"value": "after"}] * 2

    play(scene, STOCK, tools=stock())


def test_the_entry_of_a_dead_owner_ends(play: Play) -> None:
    async def scene(s: Stage) -> None:
        await lost_write(s)
        longest = TIMEOUT_SECONDS + limits.UNSETTLED_SECONDS + limits.CLOCK_SKEW_SECONDS
        await asyncio.sleep(longest - 10.0)
        async with s.client.session("b") as reader:
            assert await served(reader) == [Served.DIRECT] * 3
        await asyncio.sleep(10.0)
        async with s.client.session("b") as reader:
            assert await served(reader) == [Served.DIRECT, Served.DIRECT, Served.MEMO]

    play(scene, STOCK, tools=stock())


def test_a_write_that_cannot_be_announced_does_not_start(play: Play) -> None:
    async def scene(s: Stage) -> None:
        async with s.client.session("a") as writer:
            s.platform._buses["orchestrator"].cut()
            refused = (await writer.call_tools([Call("restock", {"id": 7})]))[0]
            assert refused.status is Status.UNAVAILABLE
            assert refused.failure is not None and "announced to other sessions" in refused.failure.message
            assert not s.tools.of("restock")
            s.platform._buses["orchestrator"].heal()
        await asyncio.sleep(5.0)
        async with s.client.session("b") as reader:
            await s.ahead(reader, SEVEN)
            await asyncio.sleep(1.0)
            assert await served(reader, times=1) == [Served.READY]

    play(scene, STOCK, tools=stock())
