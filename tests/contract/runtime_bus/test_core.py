"""Notify and subscribe."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from forerun.runtime import subjects
from forerun.runtime.bus import Message
from forerun.runtime.errors import InvalidArgument
from tests.contract.runtime_bus.platforms import Platform, eventually

LOAD = subjects.load("worker 1")


async def test_listeners_hear_in_order_with_wildcards_and_stream_subjects_as_they_pass(platform: Platform) -> None:
    sender, listener = await platform.bus(), await platform.bus()
    heard: list[Message] = []

    async def handler(message: Message) -> None:
        heard.append(message)

    await listener.subscribe("forerun.v1.*.>", handler, pending_messages=100)
    journal = subjects.event(3, "t", "a", "s")
    await sender.notify(LOAD, b"1", headers={"A": "b"})
    await sender.append(journal, b"2", headers={"C": "d"}, message_id="m", timeout_seconds=3.0)
    await sender.notify("elsewhere.x", b"no")
    await sender.notify(LOAD, b"3")
    await eventually(lambda: len(heard) == 3)
    assert heard == [Message(LOAD, b"1", {"A": "b"}), Message(journal, b"2", {"C": "d"}), Message(LOAD, b"3")]


async def test_a_handler_never_runs_inside_the_sender(platform: Platform) -> None:
    bus = await platform.bus()
    inside = False
    heard: list[bool] = []

    async def handler(_: Message) -> None:
        heard.append(inside)

    await bus.subscribe(LOAD, handler, pending_messages=10)
    inside = True
    await bus.notify(LOAD, b"")
    inside = False
    await eventually(lambda: heard == [False])


async def test_a_slow_listener_drops_the_newest_and_counts_them(platform: Platform) -> None:
    sender, listener = await platform.bus(), await platform.bus()
    gate = asyncio.Event()
    handled: list[bytes] = []

    async def handler(message: Message) -> None:
        await gate.wait()
        handled.append(message.data)

    subscription = await listener.subscribe(LOAD, handler, pending_messages=5)
    await sender.notify(LOAD, b"first")
    for number in range(20):
        await sender.notify(LOAD, b"%d" % number)
    # In work are one or none when the others come, so 5 or 6 of 21 find room.
    await eventually(lambda: subscription.dropped >= 15)
    gate.set()
    await eventually(lambda: len(handled) + subscription.dropped == 21)
    assert handled == [b"first", *(b"%d" % number for number in range(len(handled) - 1))]
    assert subscription.gaps > 0


async def test_a_handler_that_raises_is_counted_and_the_next_message_comes(platform: Platform) -> None:
    bus = await platform.bus()
    heard: list[bytes] = []

    async def handler(message: Message) -> None:
        heard.append(message.data)
        if message.data == b"bad":
            raise ValueError("content")

    subscription = await bus.subscribe(LOAD, handler, pending_messages=10)
    await bus.notify(LOAD, b"bad")
    await bus.notify(LOAD, b"good")
    await eventually(lambda: heard == [b"bad", b"good"])
    assert (subscription.failed, subscription.dropped) == (1, 0)


async def test_a_plain_function_hears_in_order_also_where_it_has_to_wait_at_times(platform: Platform) -> None:
    bus = await platform.bus()
    gate = asyncio.Event()
    heard: list[bytes] = []
    inside = False

    async def later(data: bytes) -> None:
        await gate.wait()
        heard.append(data)

    def handler(message: Message) -> Coroutine[Any, Any, None] | None:
        assert not inside
        if message.data.startswith(b"bad"):
            raise ValueError("content")
        if message.data.startswith(b"wait"):
            return later(message.data)
        heard.append(message.data)
        return None

    subscription = await bus.subscribe(LOAD, handler, pending_messages=10)
    for data in (b"1", b"bad", b"2", b"wait 3", b"4", b"bad", b"wait 5", b"6"):
        inside = True
        await bus.notify(LOAD, data)
        inside = False
    await eventually(lambda: heard == [b"1", b"2"])
    gate.set()
    await eventually(lambda: heard == [b"1", b"2", b"wait 3", b"4", b"wait 5", b"6"])
    assert (subscription.failed, subscription.dropped) == (2, 0)
    gate.clear()
    await bus.notify(LOAD, b"wait for ever")
    await bus.notify(LOAD, b"7")
    await subscription.close()
    assert len(heard) == 6


async def test_an_outage_is_a_gap_and_listening_goes_on(platform: Platform) -> None:
    sender, listener = await platform.bus(), await platform.bus()
    heard: list[bytes] = []

    async def handler(message: Message) -> None:
        heard.append(message.data)

    subscription = await listener.subscribe(LOAD, handler, pending_messages=10)
    await platform.outage()
    await sender.notify(LOAD, b"lost")
    assert sender.notify_dropped == 1
    await platform.recover()
    assert subscription.gaps == 1
    await sender.notify(LOAD, b"heard")
    await eventually(lambda: heard == [b"heard"])


async def test_a_closed_subscription_hears_nothing(platform: Platform) -> None:
    bus = await platform.bus()
    heard: list[bytes] = []

    async def handler(message: Message) -> None:
        heard.append(message.data)

    closed = await bus.subscribe(LOAD, handler, pending_messages=10)
    await bus.subscribe(subjects.loads(), handler, pending_messages=10)
    await closed.close()
    await closed.close()
    await bus.notify(LOAD, b"1")
    await bus.notify(LOAD, b"2")
    await eventually(lambda: heard == [b"1", b"2"])


async def test_malformed_patterns_are_refused(platform: Platform) -> None:
    bus = await platform.bus()

    async def handler(_: Message) -> None:
        raise AssertionError

    for pattern in ("", "a..b", "a.>.b", "a*.b", "a b", ">.a"):
        with pytest.raises(InvalidArgument):
            await bus.subscribe(pattern, handler, pending_messages=1)
