"""Appends, notifications and objects when the broker fails (faults D3, D5, D6 of comparable systems)."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from forerun.runtime import subjects
from forerun.runtime.bus import Message
from forerun.runtime.bus_errors import AppendUncertain, MessageTooLarge
from forerun.runtime.bus_nats import NatsBus
from forerun.runtime.bus_nats_wire import NatsOptions
from forerun.runtime.errors import Unavailable
from forerun.runtime.ids import SeededIds
from forerun.runtime.topology import RESULTS
from tests.contract.runtime_bus.platforms import NatsPlatform, eventually

JOURNAL = subjects.event(0, "t", "a", "s")


@asynccontextmanager
async def frozen(nats: NatsPlatform) -> AsyncIterator[None]:
    """The broker's process stands still: connections stay open, and nothing is read or answered."""
    pid = nats.broker.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        # The signal is sent, not obeyed yet, when kill returns.
        await eventually(lambda: stopped(pid))
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def stopped(pid: int) -> bool:
    states = [(task / "stat").read_text().rpartition(")")[2].split()[0] for task in Path(f"/proc/{pid}/task").iterdir()]
    return set(states) == {"T"}


async def impatient(nats: NatsPlatform, url: str | None = None) -> NatsBus:
    """A connection that gives a silent broker up quickly."""
    options = NatsOptions(
        (url or nats.broker.url,), "admin", nats.broker.password("admin"),
        reconnect_max_seconds=0.1, ping_interval_seconds=0.1, request_timeout_seconds=1.0,
    )  # fmt: skip
    return await NatsBus.connect(options, clock=nats.clock, ids=SeededIds(1, nats.clock))


async def test_an_append_that_is_not_acknowledged_is_never_taken_for_stored(nats: NatsPlatform) -> None:
    bus = await nats.bus()
    async with frozen(nats):
        with pytest.raises(AppendUncertain) as caught:
            await bus.append(JOURNAL, b"1", message_id="m", expected_last_sequence=0, timeout_seconds=0.2)
        assert caught.value.metadata["stored"] == "unknown"
    sequence = await bus.append(JOURNAL, b"1", message_id="m", expected_last_sequence=0, timeout_seconds=3.0)
    messages = await bus.read(JOURNAL, limit=9)
    assert [message.sequence for message in messages] == [sequence]


async def test_a_silent_broker_is_given_up_and_found_again(nats: NatsPlatform) -> None:
    bus = await impatient(nats)
    heard: list[bytes] = []

    async def handler(message: Message) -> None:
        heard.append(message.data)

    subscription = await bus.subscribe(subjects.loads(), handler, pending_messages=9)
    async with frozen(nats):
        waiting = asyncio.create_task(bus.append(JOURNAL, b"1", message_id="m", timeout_seconds=30.0))
        await eventually(lambda: not bus.connected)
        # Told when the connection was given up, not half a minute later.
        async with asyncio.timeout(5.0):
            with pytest.raises(AppendUncertain):
                await waiting
        with pytest.raises(Unavailable):
            await bus.append(JOURNAL, b"2", timeout_seconds=30.0)
    await eventually(lambda: bus.connected)
    assert subscription.gaps == 1
    await bus.notify(subjects.load("w"), b"again")
    await eventually(lambda: heard == [b"again"])
    await bus.append(JOURNAL, b"1", message_id="m", timeout_seconds=3.0)
    assert [message.data for message in await bus.read(JOURNAL, limit=9)] == [b"1"]
    await bus.close(1.0)


class Network:
    """A way to the broker on which the first connection can go dead: it stays open, and nothing passes any more."""

    def __init__(self, port: int) -> None:
        self.dead = asyncio.Event()
        self._port = port
        self._connections = 0
        self._writers: list[asyncio.StreamWriter] = []

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        mortal = self._connections == 1
        upstream_reader, upstream_writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers += [writer, upstream_writer]
        await asyncio.gather(self._copy(reader, upstream_writer, mortal), self._copy(upstream_reader, writer, mortal))

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, mortal: bool) -> None:
        while not (mortal and self.dead.is_set()) and (data := await reader.read(65_536)):
            if mortal and self.dead.is_set():
                return
            writer.write(data)
            await writer.drain()

    async def close(self) -> None:
        for writer in self._writers:
            writer.transport.abort()


async def test_a_dead_connection_with_unsent_data_is_replaced_by_a_new_one(nats: NatsPlatform) -> None:
    network = Network(int(nats.broker.url.rpartition(":")[2]))
    proxy = await asyncio.start_server(network.accept, "127.0.0.1", 0)
    host, port = proxy.sockets[0].getsockname()
    bus = await impatient(nats, f"nats://{host}:{port}")
    try:
        network.dead.set()
        for _ in range(12):
            await bus.notify(subjects.load("w"), b"x" * 1_000_000)
        await eventually(lambda: not bus.connected)
        await eventually(lambda: bus.connected)
        await bus.append(JOURNAL, b"1", timeout_seconds=3.0)
    finally:
        await bus.close(1.0)
        proxy.close()
        await network.close()


async def test_notifications_to_a_broker_that_reads_nothing_are_dropped_not_piled_up(nats: NatsPlatform) -> None:
    bus = await nats.bus()
    async with frozen(nats):
        for _ in range(40):
            await bus.notify(subjects.load("w"), b"x" * 1_000_000)
            await asyncio.sleep(0)
        assert bus.notify_dropped >= 20
        with pytest.raises(Unavailable):
            async with asyncio.timeout(5.0):
                await bus.append(JOURNAL, b"1", timeout_seconds=0.2)
    await eventually(lambda: not bus._wire.congested)
    await bus.append(JOURNAL, b"1", timeout_seconds=3.0)


async def test_what_was_acknowledged_survives_a_crash_and_the_rest_is_stored_once_when_repeated(
    nats: NatsPlatform,
) -> None:
    bus = await nats.bus()
    acknowledged: set[int] = set()
    owed: set[int] = set()
    enough = asyncio.Event()

    async def append(number: int) -> None:
        subject = subjects.event(0, "t", "a", str(number % 7))
        try:
            await bus.append(subject, b"%d" % number, message_id=f"m{number}", timeout_seconds=5.0)
            acknowledged.add(number)
        except Unavailable:
            owed.add(number)
        if len(acknowledged) == 500:
            enough.set()

    async def append_in_turn(first: int) -> None:
        for number in range(first, 3000, 50):
            await append(number)

    appends = [asyncio.create_task(append_in_turn(first)) for first in range(50)]
    await enough.wait()
    await nats.broker.kill()
    await asyncio.gather(*appends)
    assert owed
    await nats.recover()
    first = acknowledged.copy()
    assert first <= await stored(bus)
    await asyncio.gather(*(append(number) for number in sorted(owed)))
    everything = [message for partition in range(7) for message in await journal(bus, partition)]
    assert sorted(int(message.data) for message in everything) == list(range(3000))


async def journal(bus: NatsBus, number: int) -> list[Message]:
    return await bus.read(subjects.event(0, "t", "a", str(number)), limit=3000)


async def stored(bus: NatsBus) -> set[int]:
    return {int(message.data) for number in range(7) for message in await journal(bus, number)}


async def test_closing_during_an_outage_is_quick_and_claims_nothing(nats: NatsPlatform) -> None:
    bus = await nats.bus()
    await bus.append(JOURNAL, b"1", timeout_seconds=3.0)
    async with frozen(nats):
        waiting = asyncio.create_task(bus.append(JOURNAL, b"2", timeout_seconds=30.0))
        await asyncio.sleep(0)
        async with asyncio.timeout(10.0):
            await bus.close(0.2)
        with pytest.raises(AppendUncertain):
            await waiting


@pytest.mark.parametrize("size", [1_048_575, 1_048_576, 1_048_577, 20_000_000])
async def test_results_of_any_size_arrive_whole_and_the_connection_holds(nats: NatsPlatform, size: int) -> None:
    bus, reader = await nats.bus("orchestrator"), await nats.bus("predictor")
    body = os.urandom(size)
    headers = {"Forerun-Event-Type": "call_finished"}
    objects = bus.objects(RESULTS)
    try:
        await bus.append(JOURNAL, body, headers=headers, timeout_seconds=5.0)
    except MessageTooLarge:
        digest = await objects.put(body, "t")
        await bus.append(JOURNAL, b"", headers=headers | {"Digest": digest}, timeout_seconds=5.0)
    (message,) = await reader.read(JOURNAL, limit=9)
    reference = message.headers.get("Digest")
    arrived = message.data if reference is None else await reader.objects(RESULTS).get(reference, "t")
    assert arrived == body
    if reference is not None:
        await objects.delete(reference, "t")
        assert await objects.digests("t") == []
    assert bus._wire._client.stats["reconnects"] == 0
    assert bus._wire._client.stats["errors_received"] == 0


async def test_an_upload_that_is_cut_off_leaves_nothing_that_could_be_read(nats: NatsPlatform) -> None:
    bus = await nats.bus()
    objects = bus.objects(RESULTS)
    body = os.urandom(8_000_000)
    upload = asyncio.create_task(objects.put(body, "t"))
    await asyncio.sleep(0.02)
    await nats.broker.kill()
    with pytest.raises(Unavailable):
        await upload
    await nats.recover()
    assert await objects.digests("t") == []
    digest = await objects.put(body, "t")
    assert await objects.get(digest, "t") == body
