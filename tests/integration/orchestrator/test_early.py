"""Early issue through the services: while a message streams its reads run, and nothing else changes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from forerun.client import AsyncSession, Mode, Result, Served
from tests.integration.orchestrator.conftest import Stage, value_of

# A message of three calls whose arguments come a second apart: what an agent's model writes.
CALLS = (("get", 1), ("set", 2), ("get", 2), ("get", 3))


async def streamed(session: AsyncSession, calls: Sequence[tuple[str, int]]) -> list[Result]:
    """Streams a message at one call a second and then asks for it."""
    await session.model_started()
    async with session.streamed_message() as message:
        for index, (tool, number) in enumerate(calls):
            await message.add_call(index, name=tool)
            await message.add_call(index, arguments='{"id": ')
            await asyncio.sleep(1.0)
            await message.add_call(index, arguments=f"{number}}}")
        await asyncio.sleep(1.0)
        return await message.call_tools()


def test_reads_run_while_the_message_streams_with_the_same_results(stage: Any) -> None:
    async def play(s: Stage) -> None:
        loop = asyncio.get_running_loop()
        async with s.client.session("a") as session, s.client.session("b", mode=Mode.OFF) as plain:
            began = loop.time()
            results = await streamed(session, CALLS)
            early_seconds = loop.time() - began
            began = loop.time()
            expected = await streamed(plain, CALLS)
            plain_seconds = loop.time() - began
        assert [value_of(one.content) for one in results] == [0, 1, 1, 0]
        # The other session writes the same world: only its write has counted on.
        assert [json.loads(one.content)["id"] for one in expected] == [1, 2, 2, 3]
        assert [one.served for one in results] == [Served.EARLY, Served.DIRECT, Served.DIRECT, Served.EARLY]
        assert {one.served for one in expected} == {Served.DIRECT}
        assert early_seconds == plain_seconds, "a read behind a write waits for it either way"
        assert session.totals is not None
        assert (session.totals.early_issued, session.totals.early_used, session.totals.launched) == (2, 2, 0)

    stage(play)


def test_what_is_read_early_is_not_waited_for(stage: Any) -> None:
    async def play(s: Stage) -> None:
        loop = asyncio.get_running_loop()
        seconds = {}
        for mode in (Mode.EXACT, Mode.OFF):
            async with s.client.session("a", mode=mode) as session:
                began = loop.time()
                await streamed(session, [("get", 1), ("stock", 2)])
                seconds[mode] = round(loop.time() - began, 3)
        assert seconds == {Mode.EXACT: 3.0, Mode.OFF: 4.0}

    stage(play)


def test_what_the_whole_message_says_is_not_told_in_parts_before_it(stage: Any) -> None:
    async def play(s: Stage) -> None:
        async with s.client.session("a") as session, session.streamed_message() as message:
            await message.add_call(0, name="get", arguments='{"id": 1}')
            await asyncio.sleep(0.5)
            await message.add_call(1, name="get", arguments='{"id": 2}')
            results = await message.call_tools()
        assert [one.served for one in results] == [Served.EARLY, Served.DIRECT]
        assert session.totals is not None
        assert (session.totals.early_issued, session.totals.early_used) == (1, 1)

    stage(play)


def test_a_message_that_asks_for_something_else_leaves_nothing_behind(stage: Any) -> None:
    async def play(s: Stage) -> None:
        async with s.client.session("a") as session:
            async with session.streamed_message() as message:
                await message.add_call(0, name="get", arguments='{"id": 5}')
                await asyncio.sleep(0.5)
            await session.user_turn("never mind")
            result = await session.call_tool("get", {"id": 6})
            await asyncio.sleep(5.0)
        assert result.served is Served.DIRECT
        assert s.world.cancelled == 1, "the read that nobody wants was stopped at the tool"
        assert session.totals is not None
        assert (session.totals.early_issued, session.totals.early_used) == (1, 0)

    stage(play)


def test_a_partial_message_that_is_nonsense_changes_nothing(stage: Any) -> None:
    async def play(s: Stage) -> None:
        async with s.client.session("a") as session, session.streamed_message() as message:
            await message.add_call(0, name="nobody", arguments="{}")
            await message.add_call(1, name="get", arguments='{"id": 1, "id": 2}')
            await message.add_call(2, name="get", arguments='{"id": "x"}')
            await message.add_call(3, name="get", arguments="}{")
            await asyncio.sleep(5.0)
            assert s.world.log == []
            results = await message.call_tools()
        assert [one.ok for one in results] == [False] * 4

    stage(play)
