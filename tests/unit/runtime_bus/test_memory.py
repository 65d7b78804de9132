"""The bus in memory under virtual time: faults on demand, and the same seed gives the same run."""

from __future__ import annotations

import asyncio

import pytest

from forerun.runtime import subjects
from forerun.runtime.bus import ConsumerSpec, Entry, Message
from forerun.runtime.bus_errors import AppendUncertain
from forerun.runtime.bus_memory import MemoryBroker, MemoryBus
from forerun.runtime.bus_memory_faults import AppendFault, FaultRates, Faults, RandomFaults
from forerun.runtime.clock import LoopClock
from forerun.runtime.errors import ResourceExhausted, Unavailable
from forerun.runtime.ids import SeededIds
from forerun.runtime.topology import EPOCHS, EVENTS, TOPOLOGY, Discard, Retention, Stream, Topology
from forerun.runtime.virtual import run_virtual

JOURNAL = subjects.event(0, "t", "a", "s")
LOAD = subjects.load("w")


class Scripted(Faults):
    """Plays faults in order, then none."""

    def __init__(self, appends: list[AppendFault] | None = None, core: list[tuple[float, ...]] | None = None) -> None:
        self._appends = appends or []
        self._core = core or []

    def append(self, client: str, subject: str) -> AppendFault:
        return self._appends.pop(0) if self._appends else AppendFault.NONE

    def core(self, client: str, subject: str) -> tuple[float, ...]:
        return self._core.pop(0) if self._core else (0.0,)


def test_core_messages_are_lost_doubled_and_late_as_the_faults_say() -> None:
    async def main(clock: LoopClock, ids: SeededIds) -> list[bytes]:
        broker = MemoryBroker(clock, faults=Scripted(core=[(), (0.0, 0.0), (2.0,), (0.0,)]))
        bus = MemoryBus(broker, "listener")
        heard: list[bytes] = []

        async def handler(message: Message) -> None:
            heard.append(message.data)

        await bus.subscribe(LOAD, handler, pending_messages=10)
        for body in (b"lost", b"twice", b"late", b"last"):
            await bus.notify(LOAD, body)
        await asyncio.sleep(3.0)
        return heard

    assert run_virtual(main) == [b"twice", b"twice", b"last", b"late"]


@pytest.mark.parametrize(
    "fault, error, stored, waited",
    [
        (AppendFault.REFUSED, Unavailable, 0, 0.0),
        (AppendFault.LOST, AppendUncertain, 0, 2.0),
        (AppendFault.UNACKNOWLEDGED, AppendUncertain, 1, 2.0),
    ],
)
def test_appends_fail_as_the_faults_say_and_repeating_with_the_id_stores_once(
    fault: AppendFault, error: type[Exception], stored: int, waited: float
) -> None:
    async def main(clock: LoopClock, ids: SeededIds) -> None:
        bus = MemoryBus(MemoryBroker(clock, faults=Scripted(appends=[fault])))
        with pytest.raises(error) as caught:
            await bus.append(JOURNAL, b"1", message_id="m", expected_last_sequence=0, timeout_seconds=2.0)
        assert type(caught.value) is error
        assert clock.monotonic() == waited
        assert len(await bus.read(JOURNAL, limit=9)) == stored
        await bus.append(JOURNAL, b"1", message_id="m", expected_last_sequence=0, timeout_seconds=2.0)
        assert len(await bus.read(JOURNAL, limit=9)) == 1

    run_virtual(main)


def test_changes_of_keys_are_durable_writes_with_faults_of_their_own() -> None:
    async def main(clock: LoopClock, ids: SeededIds) -> None:
        kv = MemoryBus(MemoryBroker(clock, faults=Scripted(appends=[AppendFault.UNACKNOWLEDGED]))).kv(EPOCHS)
        with pytest.raises(AppendUncertain):
            await kv.create("k", b"1")
        entry = await kv.get("k")
        assert isinstance(entry, Entry)
        assert entry.value == b"1"

    run_virtual(main)


def test_a_round_trip_takes_the_latency_of_the_broker() -> None:
    async def main(clock: LoopClock, ids: SeededIds) -> tuple[float, float]:
        bus = MemoryBus(MemoryBroker(clock, latency_seconds=0.25))
        await bus.append(JOURNAL, b"1", timeout_seconds=1.0)
        appended = clock.monotonic()
        await bus.read(JOURNAL, limit=1)
        return appended, clock.monotonic()

    assert run_virtual(main) == (0.25, 0.5)


def test_one_process_alone_can_lose_its_connection() -> None:
    async def main(clock: LoopClock, ids: SeededIds) -> None:
        broker = MemoryBroker(clock)
        cut, fine = MemoryBus(broker, "cut"), MemoryBus(broker, "fine")
        told: list[tuple[str, bytes | None]] = []

        async def watcher(key: str, entry: Entry | None) -> None:
            told.append((key, entry.value if entry else None))

        kv = fine.kv(EPOCHS)
        await kv.put("gone", b"1")
        await cut.kv(EPOCHS).watch("", watcher)
        cut.cut()
        with pytest.raises(Unavailable):
            await cut.append(JOURNAL, b"1", timeout_seconds=1.0)
        await kv.put("new", b"1")
        await kv.put("new", b"2")
        await kv.delete("gone")
        await asyncio.sleep(1.0)
        assert told == [("gone", b"1")]
        cut.heal()
        await asyncio.sleep(1.0)
        assert told[1:] == [("new", b"2"), ("gone", None)]
        await cut.append(JOURNAL, b"1", timeout_seconds=1.0)

    run_virtual(main)


def test_a_verdict_that_gets_lost_leads_to_another_delivery_after_ack_wait() -> None:
    async def main(clock: LoopClock, ids: SeededIds) -> list[tuple[int, float]]:
        broker = MemoryBroker(clock)
        dying, healthy = MemoryBus(broker, "dying"), MemoryBus(broker, "healthy")
        attempts: list[tuple[int, float]] = []

        async def die(message: Message) -> None:
            attempts.append((message.deliveries, clock.monotonic()))
            dying.cut()

        async def work(message: Message) -> None:
            attempts.append((message.deliveries, clock.monotonic()))

        spec = ConsumerSpec(EVENTS, "c", ("forerun.v1.event.>",), ack_wait_seconds=30.0)
        await dying.consume(spec, die)
        await healthy.append(JOURNAL, b"1", timeout_seconds=1.0)
        await asyncio.sleep(0)
        consumption = await healthy.consume(spec, work)
        await asyncio.sleep(40.0)
        assert consumption.acknowledged == 1
        return attempts

    assert run_virtual(main) == [(1, 0.0), (2, 30.0)]


def small(discard: Discard, max_age_seconds: float = 60.0) -> Topology:
    stream = Stream(
        "SMALL", "", ("small.>",), Retention.LIMITS, discard,
        max_age_seconds=max_age_seconds, max_bytes=1000, dedupe_window_seconds=10.0, content=False,
    )  # fmt: skip
    return Topology((stream,), (), (), ())


def test_a_full_stream_drops_the_oldest_or_refuses_as_its_row_says() -> None:
    async def main(clock: LoopClock, ids: SeededIds) -> None:
        old = MemoryBus(MemoryBroker(clock, topology=small(Discard.OLD)))
        for number in range(10):
            await old.append("small.x", b"%d" % number * 200, timeout_seconds=1.0)
        assert [message.data[:1] for message in await old.read("small.x", limit=99)] == [b"6", b"7", b"8", b"9"]
        new = MemoryBus(MemoryBroker(clock, topology=small(Discard.NEW)))
        for _ in range(4):
            await new.append("small.x", b"x" * 200, timeout_seconds=1.0)
        with pytest.raises(ResourceExhausted):
            await new.append("small.x", b"x" * 200, timeout_seconds=1.0)

    run_virtual(main)


def test_messages_age_and_the_dedupe_window_ends() -> None:
    async def main(clock: LoopClock, ids: SeededIds) -> None:
        bus = MemoryBus(MemoryBroker(clock, topology=small(Discard.OLD)))
        assert await bus.append("small.x", b"1", message_id="m", timeout_seconds=1.0) == 1
        await asyncio.sleep(11.0)
        assert await bus.append("small.x", b"1", message_id="m", timeout_seconds=1.0) == 2
        await asyncio.sleep(55.0)
        assert [message.sequence for message in await bus.read("small.x", limit=9)] == [2]

    run_virtual(main)


def test_a_message_whose_acknowledgement_got_lost_is_delivered_again() -> None:
    class FirstVerdictLost(Faults):
        lost = 0

        def verdict_lost(self, client: str, stream: str) -> bool:
            self.lost += 1
            return self.lost == 1

    async def main(clock: LoopClock, ids: SeededIds) -> None:
        broker = MemoryBroker(clock, topology=TOPOLOGY, faults=FirstVerdictLost())
        bus = MemoryBus(broker)
        worked: list[int] = []

        async def work(message: Message) -> None:
            worked.append(message.deliveries)

        await bus.consume(ConsumerSpec(EVENTS, "c", ("forerun.v1.event.>",), concurrency=4, ack_wait_seconds=2), work)
        await bus.append(JOURNAL, b"1", timeout_seconds=0.5)
        await asyncio.sleep(30.0)
        assert worked == [1, 2]

    run_virtual(main)


def test_the_same_seed_gives_the_same_run() -> None:
    async def main(clock: LoopClock, ids: SeededIds) -> list[tuple[object, ...]]:
        rates = FaultRates(
            core_drop=0.2, core_double=0.2, core_delay=0.3, append_refused=0.1, append_lost=0.1,
            append_unacknowledged=0.1, delivery_lost=0.2, verdict_lost=0.2,
        )  # fmt: skip
        broker = MemoryBroker(clock, topology=TOPOLOGY, faults=RandomFaults(rates, ids), latency_seconds=0.001)
        bus = MemoryBus(broker)
        log: list[tuple[object, ...]] = []

        async def hear(message: Message) -> None:
            log.append(("heard", message.data, clock.monotonic()))

        async def work(message: Message) -> None:
            log.append(("worked", message.sequence, message.deliveries, clock.monotonic()))

        await bus.subscribe(LOAD, hear, pending_messages=3)
        await bus.consume(ConsumerSpec(EVENTS, "c", ("forerun.v1.event.>",), concurrency=4, ack_wait_seconds=2), work)
        for number in range(60):
            await bus.notify(LOAD, b"%d" % number)
            try:
                await bus.append(JOURNAL, b"%d" % number, message_id=str(number), timeout_seconds=0.5)
            except Unavailable as error:
                log.append((type(error).__name__, number, clock.monotonic()))
        await asyncio.sleep(60.0)
        return log

    first, again, other = run_virtual(main, seed=1), run_virtual(main, seed=1), run_virtual(main, seed=2)
    assert first == again
    assert first != other
    assert {kind for kind, *_ in first} == {"heard", "worked", "Unavailable", "AppendUncertain"}
    # Every message that was stored was worked off, whatever got lost on the way.
    worked = sorted({int(str(entry[1])) for entry in first if entry[0] == "worked"})
    assert worked == list(range(1, worked[-1] + 1))
