"""Durable work: acknowledgement, repetition, dead letters, shutdown."""

from __future__ import annotations

import asyncio
import itertools
import json
from dataclasses import replace

import pytest

from forerun.runtime import subjects
from forerun.runtime.bus import Bus, ConsumerSpec, Message, Start
from forerun.runtime.bus_errors import Poison
from forerun.runtime.topology import AUDITS, DEADLETTER, EVENTS, MAX_DELIVERIES_ADVISORIES
from tests.contract.runtime_bus.platforms import Platform, eventually

WORK = subjects.audit("tenant")
SPEC = ConsumerSpec(
    AUDITS, "verifier", (WORK,), ack_wait_seconds=5.0, retry_delay_seconds=0.02, retry_delay_max_seconds=0.05
)


async def publish(bus: Bus, *bodies: bytes, subject: str = WORK) -> list[int]:
    return [await bus.append(subject, body, timeout_seconds=3.0) for body in bodies]


async def dead_letters(bus: Bus, spec: ConsumerSpec = SPEC) -> list[dict[str, object]]:
    stored = await bus.read(subjects.dead_letter(spec.stream, spec.name), limit=100)
    return [json.loads(message.data) for message in stored]


async def test_every_message_is_handled_once_and_in_order(platform: Platform) -> None:
    bus = await platform.bus()
    handled: list[tuple[bytes, int]] = []

    async def handler(message: Message) -> None:
        handled.append((message.data, message.deliveries))

    await publish(bus, b"1", b"2")
    consumption = await bus.consume(SPEC, handler)
    await publish(bus, b"3")
    await eventually(lambda: consumption.acknowledged == 3)
    assert handled == [(b"1", 1), (b"2", 1), (b"3", 1)]
    assert consumption.healthy
    assert consumption.last_received_at is not None
    assert (consumption.failed, consumption.in_progress, consumption.lost) == (0, 0, 0)
    await consumption.close(1.0)
    again = await bus.consume(SPEC, handler)
    await publish(bus, b"4")
    await eventually(lambda: again.acknowledged == 1)
    assert [data for data, _ in handled] == [b"1", b"2", b"3", b"4"]
    # A work queue lets go of what was worked off.
    assert await bus.read(WORK, limit=9) == []


async def test_processes_share_a_consumer_and_each_consumer_has_its_own_place(platform: Platform) -> None:
    one, two = await platform.bus(), await platform.bus()
    journal = subjects.event(0, "t", "a", "s")
    spec = replace(SPEC, stream=EVENTS, name="trainer", subjects=("forerun.v1.event.0.>",))
    shared: list[bytes] = []
    own: list[bytes] = []

    async def share(message: Message) -> None:
        shared.append(message.data)

    async def keep(message: Message) -> None:
        own.append(message.data)

    await one.consume(spec, share)
    await two.consume(spec, share)
    await two.consume(replace(spec, name="second", prefetch=8), keep)
    bodies = [b"%d" % number for number in range(40)]
    await publish(one, *bodies, subject=journal)
    await publish(one, b"other partition", subject=subjects.event(1, "t", "a", "s"))
    await eventually(lambda: len(shared) == 40 and len(own) == 40)
    assert sorted(shared) == sorted(bodies)
    assert own == bodies


async def test_no_more_than_the_allowed_number_is_in_work(platform: Platform) -> None:
    bus = await platform.bus()
    running = peak = 0

    async def handler(_: Message) -> None:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        await asyncio.sleep(0.005)
        running -= 1

    await publish(bus, *[b"x"] * 30)
    consumption = await bus.consume(replace(SPEC, concurrency=4, prefetch=4), handler)
    await eventually(lambda: consumption.acknowledged == 30)
    assert peak == 4


async def test_a_failed_attempt_is_repeated_after_a_growing_delay(platform: Platform) -> None:
    bus = await platform.bus()
    attempts: list[tuple[int, float]] = []

    async def handler(message: Message) -> None:
        attempts.append((message.deliveries, asyncio.get_running_loop().time()))
        if message.deliveries < 4:
            raise ConnectionError("dependency down")

    spec = replace(SPEC, retry_delay_seconds=0.05, retry_delay_max_seconds=0.1)
    consumption = await bus.consume(spec, handler)
    await publish(bus, b"1")
    await eventually(lambda: consumption.acknowledged == 1)
    assert [number for number, _ in attempts] == [1, 2, 3, 4]
    pauses = [later - earlier for (_, earlier), (_, later) in itertools.pairwise(attempts)]
    assert pauses[0] >= 0.045
    assert min(pauses[1:]) >= 0.095
    assert consumption.failed == 3
    assert await dead_letters(bus) == []


async def test_poison_goes_to_the_dead_letters_once_and_the_queue_is_empty(platform: Platform) -> None:
    bus = await platform.bus()

    async def handler(message: Message) -> None:
        if message.data == b"CANARY":
            raise Poison("unknown_version") from ValueError("CANARY")

    consumption = await bus.consume(SPEC, handler)
    sequence, _ = await publish(bus, b"CANARY", b"fine")
    await eventually(lambda: consumption.acknowledged == 1 and consumption.dead_lettered == 1)
    (letter,) = await dead_letters(bus)
    assert letter["reason"] == "unknown_version"
    assert letter["error"] == "Poison"
    assert (letter["stream"], letter["consumer"], letter["sequence"]) == (AUDITS, "verifier", sequence)
    assert letter["deliveries"] == 1
    stored = await bus.read(subjects.dead_letter(AUDITS, "verifier"), limit=9)
    assert b"CANARY" not in stored[0].data
    await consumption.close(1.0)
    await asyncio.sleep(0.05)
    assert await bus.read(WORK, limit=9) == []


async def test_after_the_last_attempt_the_message_is_a_dead_letter_that_names_the_error(platform: Platform) -> None:
    bus = await platform.bus()
    journal = subjects.event(0, "t", "a", "s")
    spec = replace(SPEC, stream=EVENTS, name="learner", subjects=("forerun.v1.event.>",), max_deliver=3)

    async def handler(_: Message) -> None:
        raise ConnectionError("CANARY")

    consumption = await bus.consume(spec, handler)
    (sequence,) = await publish(bus, b"1", subject=journal)
    await eventually(lambda: consumption.dead_lettered == 1)
    (letter,) = await dead_letters(bus, spec)
    assert (letter["reason"], letter["error"], letter["deliveries"]) == ("max_deliveries", "ConnectionError", 3)
    assert "CANARY" not in json.dumps(letter)
    # The journal still has it, so that it can be handled again.
    original = await bus.fetch(EVENTS, sequence)
    assert original is not None
    assert original.data == b"1"


async def test_a_message_whose_workers_died_is_recorded_by_the_broker(platform: Platform) -> None:
    bus = await platform.bus()
    spec = replace(SPEC, max_deliver=1)
    started = asyncio.Event()

    async def handler(_: Message) -> None:
        started.set()
        await asyncio.Event().wait()

    consumption = await bus.consume(spec, handler)
    (sequence,) = await publish(bus, b"1")
    await started.wait()
    await consumption.close(0.0)
    again = await bus.consume(spec, handler)
    recorded: list[Message] = []

    async def look() -> None:
        while not recorded:
            recorded.extend(await bus.read(f"{MAX_DELIVERIES_ADVISORIES}.{AUDITS}.verifier", limit=9))

    await asyncio.wait_for(look(), 20.0)
    advisory = json.loads(recorded[0].data)
    assert (advisory["stream_seq"], advisory["deliveries"]) == (sequence, 1)
    assert again.in_progress == 0
    assert {message.subject.startswith(MAX_DELIVERIES_ADVISORIES) for message in recorded} == {True}
    assert (await bus.fetch(DEADLETTER, recorded[0].sequence or 0)) is not None


async def test_work_longer_than_ack_wait_is_not_given_to_anybody_else(platform: Platform) -> None:
    one, two = await platform.bus(), await platform.bus()
    spec = replace(SPEC, ack_wait_seconds=0.6)
    attempts: list[int] = []

    async def handler(message: Message) -> None:
        attempts.append(message.deliveries)
        await asyncio.sleep(1.5)

    consumptions = [await one.consume(spec, handler), await two.consume(spec, handler)]
    await publish(one, b"1")
    await eventually(lambda: sum(consumption.acknowledged for consumption in consumptions) == 1)
    await asyncio.sleep(0.7)
    assert attempts == [1]


async def test_a_handler_that_takes_too_long_is_cancelled_and_the_message_repeated(platform: Platform) -> None:
    bus = await platform.bus()
    ended: list[str] = []

    async def handler(message: Message) -> None:
        if message.deliveries > 1:
            ended.append("done")
            return
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")

    consumption = await bus.consume(replace(SPEC, handler_timeout_seconds=0.1), handler)
    await publish(bus, b"1")
    await eventually(lambda: consumption.acknowledged == 1)
    assert ended == ["cancelled", "done"]
    assert consumption.failed == 1


async def test_closing_lets_a_running_handler_end(platform: Platform) -> None:
    bus = await platform.bus()
    started = asyncio.Event()

    async def handler(_: Message) -> None:
        started.set()
        await asyncio.sleep(0.1)

    consumption = await bus.consume(SPEC, handler)
    await publish(bus, b"1")
    await started.wait()
    await bus.close(2.0)
    assert consumption.acknowledged == 1
    reader = await platform.bus()
    assert await reader.read(WORK, limit=9) == []


async def test_closing_gives_unfinished_work_back_at_once(platform: Platform) -> None:
    one, two = await platform.bus(), await platform.bus()
    started = asyncio.Event()

    async def stuck(_: Message) -> None:
        started.set()
        await asyncio.Event().wait()

    async def quick(_: Message) -> None:
        return

    spec = replace(SPEC, ack_wait_seconds=30.0)
    first = await one.consume(spec, stuck)
    await publish(one, b"1")
    await started.wait()
    second = await two.consume(spec, quick)
    async with asyncio.timeout(10.0):
        await first.close(0.05)
    await eventually(lambda: second.acknowledged == 1)


async def test_a_consumer_that_starts_new_skips_the_past(platform: Platform) -> None:
    bus = await platform.bus()
    journal = subjects.event(0, "t", "a", "s")
    handled: list[bytes] = []

    async def handler(message: Message) -> None:
        handled.append(message.data)

    await publish(bus, b"old", subject=journal)
    spec = replace(SPEC, stream=EVENTS, name="late", subjects=("forerun.v1.event.>",), start=Start.NEW)
    await bus.consume(spec, handler)
    await publish(bus, b"new", subject=journal)
    await eventually(lambda: handled == [b"new"])


async def test_after_an_outage_everything_is_handled(platform: Platform) -> None:
    bus = await platform.bus()
    handled: list[bytes] = []

    async def handler(message: Message) -> None:
        handled.append(message.data)

    consumption = await bus.consume(replace(SPEC, concurrency=4), handler)
    await publish(bus, b"before")
    await eventually(lambda: consumption.acknowledged == 1)
    await platform.outage()
    assert not consumption.healthy
    await platform.recover()
    await publish(bus, *[b"after"] * 20)
    await eventually(lambda: consumption.acknowledged == 21)
    assert consumption.healthy


@pytest.mark.parametrize("deliveries, delay", [(1, 0.5), (2, 1.0), (3, 2.0), (7, 30.0), (10_000, 30.0)])
def test_the_pause_between_attempts_doubles_up_to_its_limit(deliveries: int, delay: float) -> None:
    assert ConsumerSpec("S", "c", ("a",)).retry_delay(deliveries) == delay
