"""Texts are decoded by threads that take turns, each a pass ahead of whoever handles its steps."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Generator
from contextlib import aclosing

import pytest

from forerun.core.tokens.stopping import Finish
from forerun.serving.backend.loop import Step
from forerun.serving.backend.turns import Turns

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(30)]

Steps = Generator[Step, None, None]


def step(token: int, finish: Finish | None = None) -> Step:
    return Step([token], "", None, finish, 0, 0, "", 0.0)


async def tokens_of(turns: Turns, passes: Steps) -> list[int]:
    async with aclosing(turns.steps(passes)) as steps:
        return [one.tokens[0] async for one in steps]


async def test_the_next_pass_is_under_way_while_a_step_is_handled() -> None:
    turns, under_way, handled = Turns(1), threading.Event(), threading.Event()

    def passes() -> Steps:
        yield step(0)
        under_way.set()
        turns.away(handled.wait)
        yield step(1, Finish.STOP)

    seen: list[int] = []
    async with aclosing(turns.steps(passes())) as steps:
        async for one in steps:
            seen += one.tokens
            assert await asyncio.to_thread(under_way.wait, 10), "its pass waits until the step before it is handled"
            handled.set()
    assert seen == [0, 1]


async def test_a_text_is_never_two_passes_ahead_of_its_client() -> None:
    turns, asked, handled = Turns(1), list[int](), list[int]()

    def passes() -> Steps:
        for token in range(50):
            asked.append(token)
            yield step(token)

    async with aclosing(turns.steps(passes())) as steps:
        async for one in steps:
            await asyncio.to_thread(time.sleep, 0.001)  # a client that is slower than the model
            assert len(asked) <= len(handled) + 2
            handled += one.tokens
    assert handled == asked == list(range(50))


async def test_whoever_leaves_early_waits_for_the_pass_that_is_under_way_and_the_text_is_closed() -> None:
    turns, under_way, left = Turns(1), threading.Event(), threading.Event()
    ended: list[str] = []

    def passes() -> Steps:
        try:
            yield step(0)
            under_way.set()
            turns.away(left.wait)
            ended.append("pass")
            yield step(1)
            ended.append("another pass")
            yield step(2)
        finally:
            ended.append("text")

    async with aclosing(turns.steps(passes())) as steps:
        assert (await anext(steps)).tokens == [0]
        assert await asyncio.to_thread(under_way.wait, 10)
        asyncio.get_running_loop().call_soon(left.set)
    assert ended == ["pass", "text"]


async def test_a_pass_that_fails_is_told_after_the_steps_before_it() -> None:
    def passes() -> Steps:
        yield step(0)
        raise ValueError("the model is gone")

    turns, handled = Turns(1), list[int]()
    with pytest.raises(ValueError, match="gone"):
        async with aclosing(turns.steps(passes())) as steps:
            async for one in steps:
                handled += one.tokens
    assert handled == [0]
    assert await tokens_of(turns, iter_of(1)) == [0], "whoever comes next has its turn"


async def test_a_failure_that_nobody_waits_for_is_no_failure() -> None:
    def passes() -> Steps:
        yield step(0)
        raise ValueError("the model is gone")

    async with aclosing(Turns(1).steps(passes())) as steps:
        async for _ in steps:
            break


async def test_others_have_their_turn_while_one_waits_for_its_pass() -> None:
    turns, others = Turns(2), threading.Event()

    def waiting() -> Steps:
        assert turns.away(lambda: others.wait(10)), "nobody else had a turn"
        yield step(7)

    def other() -> Steps:
        yield step(8)
        others.set()

    found = await asyncio.gather(tokens_of(turns, waiting()), tokens_of(turns, other()))
    assert list(found) == [[7], [8]]


async def test_texts_and_whoever_enters_a_turn_are_never_in_it_together() -> None:
    turns, inside, together = Turns(4), list[int](), list[int]()

    def touch(who: int) -> None:
        inside.append(who)
        time.sleep(0)  # lets other threads run
        together.append(len(inside))
        inside.pop()

    def passes(who: int) -> Steps:
        for _ in range(40):
            touch(who)
            turns.away(lambda: time.sleep(0.0002))
            touch(who)
            yield step(who)

    texts = [asyncio.create_task(tokens_of(turns, passes(who))) for who in range(4)]
    while not all(one.done() for one in texts):
        with turns:
            touch(9)
        await asyncio.sleep(0)
    assert [await one for one in texts] == [[who] * 40 for who in range(4)]
    assert set(together) == {1}


def iter_of(count: int) -> Steps:
    for token in range(count):
        yield step(token)
