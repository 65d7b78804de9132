"""The journal of a session when appends fail: what is owed, what is dropped, and when an owner stops itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from forerun.core.outcomes import CallStatus, Served
from forerun.core.session import Append, CallAnswer, CallFinished, CallIntent, CallsAsked, UserTurn
from forerun.orchestrator.journal import Journal
from forerun.orchestrator.records import EventContext
from forerun.runtime.bus_errors import AppendUncertain, SequenceMismatch
from forerun.runtime.bus_memory import MemoryBroker, MemoryBus
from forerun.runtime.bus_memory_faults import AppendFault, Faults
from forerun.runtime.clock import LoopClock
from forerun.runtime.errors import ErrorReason, ResourceExhausted
from forerun.runtime.ids import SeededIds
from forerun.runtime.virtual import run_virtual
from forerun.v1 import event_pb2

SUBJECT = "forerun.v1.event.0.t.a.s"


class Scripted(Faults):
    """Appends fail as listed, then no more."""

    def __init__(self, *faults: AppendFault) -> None:
        self.faults = list(faults)

    def append(self, client: str, subject: str) -> AppendFault:
        return self.faults.pop(0) if self.faults else AppendFault.NONE


class Owner:
    """A journal and what it told."""

    def __init__(self, clock: LoopClock, ids: SeededIds, faults: Faults, bus: MemoryBus | None = None) -> None:
        self.bus = bus or MemoryBus(MemoryBroker(clock, faults=faults), "owner")
        self.told: list[tuple[int, bool]] = []
        self.lost = False
        context = EventContext("t", "p", "c", "a", "s", 1, clock, ids)
        self.journal = Journal(
            self.bus,
            SUBJECT,
            context,
            acknowledged=lambda token, stored: self.told.append((token, stored)),
            lost=self._lose,
            owner="replica",
        )
        self.task = asyncio.ensure_future(self.journal.run())

    def _lose(self) -> None:
        self.lost = True

    async def kinds(self) -> list[str | None]:
        messages = await self.bus.read(SUBJECT, limit=100)
        return [event_pb2.SessionEvent.FromString(one.data).WhichOneof("event") for one in messages]


def run(test: Callable[[Owner], Awaitable[None]], *faults: AppendFault) -> None:
    async def main(clock: LoopClock, ids: SeededIds) -> None:
        owner = Owner(clock, ids, Scripted(*faults))
        await test(owner)
        owner.task.cancel()
        await asyncio.wait([owner.task])

    run_virtual(main)


def finished() -> CallFinished:
    answer = CallAnswer(call=(1, 0), tool="set", status=CallStatus.OK, result=None, failure=None, served=Served.DIRECT)
    return CallFinished(answer)


def test_an_owner_whose_acknowledgement_was_lost_goes_on() -> None:
    async def test(owner: Owner) -> None:
        owner.journal.write(Append(1, CallIntent((1, 0), "i"), 7))
        await asyncio.sleep(1.0)
        owner.bus.cut()  # stored, and nobody hears of it for longer than anybody waits
        owner.journal.write(Append(2, UserTurn("hello")))
        await asyncio.sleep(30.0)
        assert owner.told == [(7, False)]
        owner.bus.heal()
        await asyncio.sleep(10.0)
        assert not owner.lost
        assert await owner.kinds() == ["intent", "user_turn"]

    run(test, AppendFault.UNACKNOWLEDGED)


def test_an_append_that_was_stored_is_known_again_by_its_id() -> None:
    async def test(owner: Owner) -> None:
        owner.journal.write(Append(1, CallIntent((1, 0), "i"), 7))
        owner.journal.write(Append(2, UserTurn("hello")))
        await asyncio.sleep(10.0)
        assert not owner.lost
        assert owner.told == [(7, True)]
        assert await owner.kinds() == ["intent", "user_turn"]

    run(test, *[AppendFault.UNACKNOWLEDGED] * 4)


class Faulty(MemoryBus):
    """A bus with a fault that the first append meets."""

    def __init__(self, broker: MemoryBroker, fault: Exception | None = None) -> None:
        super().__init__(broker, "owner")
        self.fault = fault or RuntimeError("a fault of ours")
        self.met = False

    async def append(self, subject: str, data: bytes, **more: Any) -> int:
        if not self.met:
            self.met = True
            raise self.fault
        return await super().append(subject, data, **more)


def test_an_event_that_meets_a_fault_is_not_stored_and_the_next_one_is() -> None:
    async def main(clock: LoopClock, ids: SeededIds) -> None:
        owner = Owner(clock, ids, Scripted(), Faulty(MemoryBroker(clock)))
        owner.journal.write(Append(1, CallIntent((1, 0), "i"), 7))
        owner.journal.write(Append(2, UserTurn("hello"), 8))
        await asyncio.sleep(1.0)
        assert owner.told == [(7, False), (8, True)], "whoever waits must not wait for ever"
        assert await owner.kinds() == ["user_turn"]
        owner.task.cancel()
        await asyncio.wait([owner.task])

    run_virtual(main)


class Forgetful(MemoryBus):
    """A bus whose first append stores, and then meets a fault."""

    def __init__(self, broker: MemoryBroker) -> None:
        super().__init__(broker, "owner")
        self.met = False

    async def append(self, subject: str, data: bytes, **more: Any) -> int:
        sequence = await super().append(subject, data, **more)
        if not self.met:
            self.met = True
            raise RuntimeError("a fault of ours")
        return sequence


def test_an_event_that_was_stored_before_a_fault_is_no_other_owners() -> None:
    async def main(clock: LoopClock, ids: SeededIds) -> None:
        owner = Owner(clock, ids, Scripted(), Forgetful(MemoryBroker(clock)))
        owner.journal.write(Append(1, UserTurn("hello"), 7))
        owner.journal.write(Append(2, UserTurn("again"), 8))
        await asyncio.sleep(1.0)
        assert not owner.lost
        assert owner.told == [(7, True), (8, True)]
        assert await owner.kinds() == ["user_turn", "user_turn"]
        owner.task.cancel()
        await asyncio.wait([owner.task])

    run_virtual(main)


def test_an_event_that_cannot_be_written_as_a_message_keeps_nobody_waiting() -> None:
    async def test(owner: Owner) -> None:
        owner.journal.write(Append(1, UserTurn("no \udc80 character"), 7))
        owner.journal.write(Append(2, UserTurn("hello"), 8))
        await asyncio.sleep(1.0)
        assert owner.told == [(7, False), (8, True)]
        assert await owner.kinds() == ["user_turn"]

    run(test)


class Replicating(MemoryBus):
    """A cluster without its majority: the first append stays in process, and refuses all others of its subject."""

    def __init__(self, broker: MemoryBroker) -> None:
        super().__init__(broker, "owner")
        self.majority = False
        self.in_process: tuple[str, bytes] | None = None

    async def append(
        self,
        subject: str,
        data: bytes,
        *,
        headers: Mapping[str, str] | None = None,
        message_id: str | None = None,
        expected_last_sequence: int | None = None,
        timeout_seconds: float,
    ) -> int:
        if self.majority:
            return await super().append(
                subject, data, expected_last_sequence=expected_last_sequence, timeout_seconds=timeout_seconds
            )
        if self.in_process is not None:
            raise SequenceMismatch(expected_last_sequence or 0)
        self.in_process = subject, data
        raise AppendUncertain("no majority")

    async def have_majority(self) -> None:
        """What is in process is stored."""
        assert self.in_process is not None
        self.majority = True
        await self.append(*self.in_process, timeout_seconds=1.0)


def test_an_append_that_is_still_replicated_is_no_other_owner() -> None:
    async def main(clock: LoopClock, ids: SeededIds) -> None:
        owner = Owner(clock, ids, Faults())
        bus = Replicating(owner.bus.broker)
        journal = Journal(
            bus,
            SUBJECT,
            EventContext("t", "p", "c", "a", "s", 1, clock, ids),
            acknowledged=lambda *_: None,
            lost=owner._lose,
            owner="replica",
        )
        writing = asyncio.ensure_future(journal.run())
        journal.write(Append(1, UserTurn("hello")))
        await asyncio.sleep(20.0)
        assert (owner.lost, journal.owed) == (False, 1)
        await bus.have_majority()
        journal.write(Append(2, UserTurn("again")))
        await asyncio.sleep(5.0)
        assert (owner.lost, journal.owed) == (False, 0)
        assert await owner.kinds() == ["user_turn", "user_turn"]
        for task in (writing, owner.task):
            task.cancel()
            await asyncio.wait([task])

    run_virtual(main)


def test_an_outcome_stays_owed_however_long_the_outage_is() -> None:
    async def test(owner: Owner) -> None:
        owner.bus.broker.go_down()
        owner.journal.write(Append(1, finished(), 7))
        owner.journal.write(Append(2, finished(), 8))
        await asyncio.sleep(4.5)
        assert owner.told == [(7, False), (8, False)]
        await asyncio.sleep(30.0)
        owner.bus.broker.come_up()
        await asyncio.sleep(5.0)
        assert await owner.kinds() == ["call_finished", "call_finished"]

    run(test)


def test_an_intent_that_was_not_stored_in_time_is_dropped() -> None:
    async def test(owner: Owner) -> None:
        owner.bus.broker.go_down()
        owner.journal.write(Append(1, CallIntent((1, 0), "i"), 7))
        owner.journal.write(Append(2, CallIntent((1, 1), "i"), 8))
        await asyncio.sleep(30.0)
        assert owner.told == [(7, False), (8, False)]
        owner.bus.broker.come_up()
        owner.journal.write(Append(3, UserTurn("hello")))
        await asyncio.sleep(5.0)
        assert await owner.kinds() == ["user_turn"]

    run(test)


def test_a_lost_acknowledgement_is_recognised_however_late() -> None:
    async def test(owner: Owner) -> None:
        owner.journal.write(Append(1, UserTurn("hello")))
        await asyncio.sleep(1.0)
        owner.bus.cut()  # stored, and then away for longer than any stream remembers ids
        await asyncio.sleep(900.0)
        owner.bus.heal()
        owner.journal.write(Append(2, UserTurn("again")))
        await asyncio.sleep(10.0)
        assert not owner.lost
        assert await owner.kinds() == ["user_turn", "user_turn"]

    run(test, AppendFault.UNACKNOWLEDGED)


def test_another_owner_stops_this_one() -> None:
    async def test(owner: Owner) -> None:
        await owner.bus.append(SUBJECT, event_pb2.SessionEvent(id="other").SerializeToString(), timeout_seconds=1.0)
        owner.journal.write(Append(1, CallIntent((1, 0), "i"), 7))
        await asyncio.sleep(1.0)
        assert owner.lost
        assert owner.told == [(7, False)]

    run(test)


def test_what_is_said_of_a_call_lets_its_answer_go_first_and_delays_nothing_else() -> None:
    async def test(owner: Owner) -> None:
        sent: list[Callable[[], None]] = []
        owner.journal.after_answers = sent.append
        await asyncio.sleep(0.0)  # it runs
        owner.journal.write(Append(1, finished()))
        await asyncio.sleep(0.0005)
        assert await owner.kinds() == []
        sent.pop()()
        await asyncio.sleep(0.0005)
        assert await owner.kinds() == ["call_finished"]
        owner.journal.write(Append(2, finished()))
        await asyncio.sleep(0.0005)
        assert len(await owner.kinds()) == 1
        # What nobody is answered is not delayed, and what somebody waits for takes along what is before it.
        owner.journal.write(Append(3, finished()))
        owner.journal.write(Append(4, CallIntent((1, 0), "i"), 7))
        await asyncio.sleep(0.0005)
        assert owner.told == [(7, True)]
        assert (await owner.kinds())[2:] == ["call_finished", "intent"]
        owner.journal.write(Append(5, UserTurn("hello")))
        await asyncio.sleep(0.0005)
        assert len(await owner.kinds()) == 5

    run(test)


def test_who_waits_for_what_is_stored_is_told_when_all_of_it_is() -> None:
    async def test(owner: Owner) -> None:
        owner.journal.tell_stored(1, 1)
        assert owner.told == []  # not while effects are performed
        await asyncio.sleep(0.0)
        assert owner.told == [(1, True)]
        owner.journal.after_answers = lambda _: None  # nothing else wakes it
        owner.journal.write(Append(1, finished()))
        owner.journal.write(Append(2, finished()))
        owner.journal.tell_stored(2, 1)
        assert await owner.kinds() == []
        await asyncio.sleep(1.0)
        assert owner.told == [(1, True), (2, True)]
        assert await owner.kinds() == ["call_finished", "call_finished"]

    run(test)


def with_a_lost_answer(test: Callable[[Owner], Awaitable[None]]) -> None:
    """The first event is an answer that can never be stored."""

    async def main(clock: LoopClock, ids: SeededIds) -> None:
        full = ResourceExhausted(ErrorReason.STREAM_FULL, "the stream has reached its size")
        owner = Owner(clock, ids, Scripted(), Faulty(MemoryBroker(clock), full))
        owner.journal.write(Append(1, finished()))
        await test(owner)
        owner.task.cancel()
        await asyncio.wait([owner.task])

    run_virtual(main)


def test_who_waits_for_what_is_stored_hears_of_an_answer_that_can_never_be() -> None:
    async def test(owner: Owner) -> None:
        owner.journal.write(Append(2, UserTurn("hello")))
        owner.journal.tell_stored(1, 1)
        await asyncio.sleep(1.0)
        owner.journal.tell_stored(2, 1)
        await asyncio.sleep(1.0)
        owner.journal.write(Append(3, CallsAsked(2, ())))  # of another message: it says nothing of that answer
        owner.journal.tell_stored(3, 1)
        owner.journal.tell_stored(4, 4)
        await asyncio.sleep(1.0)
        assert owner.told == [(1, False), (2, False), (3, False), (4, True)]
        assert await owner.kinds() == ["user_turn", "calls_asked"]

    with_a_lost_answer(test)


def test_an_intent_is_not_stored_where_an_answer_before_it_is_lost_that_matters_to_it() -> None:
    async def test(owner: Owner) -> None:
        owner.journal.write(Append(2, CallIntent((1, 1), "i"), 7, since=1))  # before anybody knows of the loss
        owner.journal.write(Append(3, CallIntent((1, 2), "i"), 8))
        await asyncio.sleep(1.0)
        owner.journal.write(Append(4, CallIntent((1, 3), "i"), 9, since=1))
        owner.journal.write(Append(5, CallIntent((2, 0), "i"), 10, since=2))
        await asyncio.sleep(1.0)
        assert owner.told == [(7, False), (8, True), (9, False), (10, True)]
        assert await owner.kinds() == ["intent", "intent"]

    with_a_lost_answer(test)


def test_who_waits_for_what_is_stored_does_not_wait_for_ever() -> None:
    async def test(owner: Owner) -> None:
        owner.bus.cut()
        owner.journal.write(Append(1, finished()))
        owner.journal.tell_stored(1, 1)
        await asyncio.sleep(30.0)
        assert owner.told == [(1, False)]
        owner.bus.heal()
        await asyncio.sleep(10.0)
        assert owner.told == [(1, False)]
        assert await owner.kinds() == ["call_finished"]

    run(test)


def test_who_waits_for_what_is_stored_hears_of_another_owner_when_this_one_has_stopped() -> None:
    async def test(owner: Owner) -> None:
        await owner.bus.append(SUBJECT, event_pb2.SessionEvent(id="other").SerializeToString(), timeout_seconds=1.0)
        lost: list[list[tuple[int, bool]]] = []
        owner.journal._lost = lambda: lost.append(list(owner.told))
        owner.journal.write(Append(1, finished()))
        owner.journal.tell_stored(7, 1)
        await asyncio.sleep(1.0)
        assert lost == [[]]
        assert owner.told == [(7, False)]

    run(test)
