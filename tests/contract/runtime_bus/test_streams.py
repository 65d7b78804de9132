"""Append, read, fetch, purge."""

from __future__ import annotations

import asyncio

import pytest

from forerun.runtime import subjects
from forerun.runtime.bus import EVENT_TYPE_HEADER, MAX_MESSAGE_BYTES, Bus, Message
from forerun.runtime.bus_errors import AppendUncertain, MessageTooLarge, SequenceMismatch
from forerun.runtime.errors import InvalidArgument, Unavailable
from forerun.runtime.topology import EVENTS
from tests.contract.runtime_bus.platforms import Platform

JOURNAL = subjects.event(0, "tenant", "agent", "session")
OTHER = subjects.event(0, "tenant", "agent", "other")


async def append(bus: Bus, data: bytes = b"x", subject: str = JOURNAL, **more: object) -> int:
    return await bus.append(subject, data, timeout_seconds=3.0, **more)  # type: ignore[arg-type]


async def test_what_was_appended_is_read_in_order_with_its_headers(platform: Platform) -> None:
    bus = await platform.bus("orchestrator")
    first = await append(bus, b"1", headers={EVENT_TYPE_HEADER: "user_turn", "X-Name": "ü: é"})
    await append(bus, b"elsewhere", OTHER)
    third = await append(bus, b"3")
    assert await bus.read(JOURNAL, limit=10) == [
        Message(JOURNAL, b"1", {EVENT_TYPE_HEADER: "user_turn", "X-Name": "ü: é"}, first, 0),
        Message(JOURNAL, b"3", {}, third, 0),
    ]
    assert third > first
    assert [message.data for message in await bus.read(JOURNAL, after_sequence=first, limit=10)] == [b"3"]
    assert [message.data for message in await bus.read(JOURNAL, limit=1)] == [b"1"]
    assert await bus.read(JOURNAL, after_sequence=third, limit=10) == []
    assert await bus.read(subjects.event(0, "tenant", "agent", "none"), limit=10) == []


async def test_a_long_journal_is_read_whole(platform: Platform) -> None:
    bus = await platform.bus("orchestrator")
    sequences = await asyncio.gather(*(append(bus, b"%d" % number) for number in range(1200)))
    messages = await bus.read(JOURNAL, limit=2000)
    assert [message.sequence for message in messages] == sorted(sequences)
    assert len(await bus.read(JOURNAL, limit=700)) == 700


async def test_an_append_with_the_wrong_expectation_is_refused_and_not_stored(platform: Platform) -> None:
    bus = await platform.bus("orchestrator")
    await append(bus, b"foreign", OTHER)
    first = await append(bus, expected_last_sequence=0)
    for wrong in (0, first + 1):
        with pytest.raises(SequenceMismatch) as caught:
            await append(bus, expected_last_sequence=wrong)
        assert (caught.value.expected, caught.value.actual) == (wrong, first)
    second = await append(bus, expected_last_sequence=first)
    assert [message.sequence for message in await bus.read(JOURNAL, limit=9)] == [first, second]


async def test_of_two_owners_with_the_same_expectation_one_wins(platform: Platform) -> None:
    one, two = await platform.bus("orchestrator"), await platform.bus("orchestrator")
    results = await asyncio.gather(
        append(one, b"1", expected_last_sequence=0), append(two, b"2", expected_last_sequence=0), return_exceptions=True
    )
    assert sorted(type(result).__name__ for result in results) == ["SequenceMismatch", "int"]
    assert len(await one.read(JOURNAL, limit=9)) == 1


async def test_a_message_id_is_stored_once(platform: Platform) -> None:
    bus = await platform.bus("orchestrator")
    first = await append(bus, b"1", message_id="event-1")
    assert await append(bus, b"again", message_id="event-1") == first
    assert [message.data for message in await bus.read(JOURNAL, limit=9)] == [b"1"]


async def test_repeating_a_stored_append_gives_its_sequence_also_with_an_expectation(
    platform: Platform,
) -> None:
    bus = await platform.bus("orchestrator")
    first = await append(bus, b"1", message_id="a", expected_last_sequence=0)
    second = await append(bus, b"2", message_id="b", expected_last_sequence=first)
    assert await append(bus, b"1", message_id="a", expected_last_sequence=0) == first
    assert await append(bus, b"2", message_id="b", expected_last_sequence=first) == second
    with pytest.raises(SequenceMismatch):
        await append(bus, b"3", message_id="c", expected_last_sequence=first)


async def test_the_largest_message_passes_and_one_byte_more_does_not(platform: Platform) -> None:
    bus = await platform.bus("orchestrator")
    await append(bus, b"x" * MAX_MESSAGE_BYTES)
    with pytest.raises(MessageTooLarge) as caught:
        await append(bus, b"x" * (MAX_MESSAGE_BYTES + 1))
    assert caught.value.metadata == {
        "limit": "BUS_MESSAGE_BYTES",
        "size_bytes": "1048577",
        "limit_bytes": "1048576",
    }
    with pytest.raises(MessageTooLarge):
        await append(bus, b"x" * MAX_MESSAGE_BYTES, message_id="headers count, too")
    with pytest.raises(MessageTooLarge):
        await bus.notify(subjects.load("w"), b"x" * (MAX_MESSAGE_BYTES + 1))
    assert bus.connected
    assert len((await bus.read(JOURNAL, limit=9))[0].data) == MAX_MESSAGE_BYTES


async def test_headers_that_would_change_on_the_way_are_refused(platform: Platform) -> None:
    bus = await platform.bus("orchestrator")
    for headers in ({"Nats-Msg-Id": "1"}, {"A B": "1"}, {"A": "1\r\nB: 2"}, {"A": " 1"}, {"": "1"}):
        with pytest.raises(InvalidArgument):
            await append(bus, headers=headers)
        with pytest.raises(InvalidArgument):
            await bus.notify(subjects.load("w"), b"", headers=headers)


async def test_malformed_subjects_are_refused(platform: Platform) -> None:
    bus = await platform.bus("orchestrator")
    for subject in ("", "a..b", "a b", "a.*", "a.>", "a\r\nPUB b 0", ".a", "a" * 3000):
        with pytest.raises(InvalidArgument):
            await append(bus, subject=subject)
        with pytest.raises(InvalidArgument):
            await bus.read(subject, limit=1)


async def test_a_subject_without_a_stream_stores_nothing_and_says_so(platform: Platform) -> None:
    bus = await platform.bus("admin")
    with pytest.raises(Unavailable) as caught:
        await append(bus, subject="nobody.takes.this")
    assert not isinstance(caught.value, AppendUncertain)
    assert caught.value.metadata["stored"] == "no"


async def test_during_an_outage_an_append_fails_at_once_and_is_not_stored_later(platform: Platform) -> None:
    bus = await platform.bus("orchestrator")
    first = await append(bus, b"before")
    await platform.outage()
    assert not bus.connected
    with pytest.raises(Unavailable) as caught:
        async with asyncio.timeout(2.0):
            await append(bus, b"during")
    assert caught.value.metadata["stored"] == "no"
    with pytest.raises(Unavailable):
        await bus.read(JOURNAL, limit=1)
    await platform.recover()
    await append(bus, b"after", expected_last_sequence=first)
    assert [message.data for message in await bus.read(JOURNAL, limit=9)] == [b"before", b"after"]


async def test_fetch_gives_one_message_by_its_sequence(platform: Platform) -> None:
    bus = await platform.bus("orchestrator")
    sequence = await append(bus, b"1", headers={"A": "b"})
    assert await bus.fetch(EVENTS, sequence) == Message(JOURNAL, b"1", {"A": "b"}, sequence, 0)
    assert await bus.fetch(EVENTS, sequence + 1) is None


async def test_purging_a_tenant_leaves_the_others_and_resets_the_expectation(platform: Platform) -> None:
    bus = await platform.bus("admin")
    kept = subjects.event(0, "tenant2", "agent", "session")
    await append(bus)
    await append(bus, subject=OTHER)
    await append(bus, subject=kept)
    pattern = f"{subjects.PREFIX}.event.*.{subjects.token('tenant')}.>"
    assert await bus.purge(EVENTS, pattern) == 2
    assert await bus.purge(EVENTS, pattern) == 0
    assert await bus.read(JOURNAL, limit=9) == []
    assert len(await bus.read(kept, limit=9)) == 1
    await append(bus, expected_last_sequence=0)


async def test_a_closed_bus_refuses_and_closing_again_is_fine(platform: Platform) -> None:
    bus = await platform.bus("orchestrator")
    await bus.close(1.0)
    await bus.close(1.0)
    assert not bus.connected
    with pytest.raises(Unavailable):
        await append(bus)
