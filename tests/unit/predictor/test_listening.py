"""Events are learned together, and what is predicted is as if each had been learned at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field

from forerun.predictor.engine.engine import Engine
from forerun.predictor.follower import Follower
from forerun.predictor.service import Listener
from forerun.predictor.store import ModelStore
from forerun.runtime import subjects
from forerun.runtime.bus import Message
from forerun.runtime.bus_memory import MemoryBroker, MemoryBus
from forerun.runtime.clock import LoopClock
from forerun.runtime.ids import SeededIds
from forerun.runtime.metrics import Metrics
from forerun.runtime.tasks import TaskScope
from forerun.runtime.virtual import run_virtual
from forerun.v1 import common_pb2, event_pb2

OWNER = "replica-1"
SESSIONS, TURNS = 12, 8
EVENTS_THAT_WAIT = 32


@dataclass
class Room:
    """A predictor's ears with what they need."""

    clock: LoopClock
    engine: Engine = field(default_factory=Engine)
    candidates: list[bytes] = field(default_factory=list)

    async def __aenter__(self) -> Room:
        metrics, broker = Metrics("predictor"), MemoryBroker(self.clock)
        bus, self.tasks = MemoryBus(broker, "predictor"), TaskScope("predictor", metrics=metrics)
        self.listener = Listener(
            self.engine, Follower(self.engine, 100), ModelStore(self.engine, bus, self.clock), bus, self.tasks,
            clock=self.clock, metrics=metrics, candidates=8,
        )  # fmt: skip

        async def hear(message: Message) -> None:
            self.candidates.append(message.data)

        await MemoryBus(broker, "owner").subscribe(subjects.candidates(OWNER), hear, pending_messages=1_000)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.tasks.stop(0.0)

    async def hear(self, event: event_pb2.SessionEvent) -> None:
        subject = subjects.event(0, event.tenant, event.agent, event.session)
        waiting = self.listener.hear(Message(subject, event.SerializeToString(), {"Forerun-Owner": OWNER}))
        if waiting is not None:
            await waiting

    def knows(self, event: event_pb2.SessionEvent) -> bool:
        return self.engine.knows(event.tenant, event.agent, event.session)


def opened(session: str) -> event_pb2.SessionEvent:
    tools = event_pb2.SessionOpened(tools=["find", "read"])
    return event_pb2.SessionEvent(tenant="t", agent="a", session=session, epoch=1, number=1, opened=tools)


def steps(session: str) -> Iterator[list[event_pb2.SessionEvent]]:
    """The events of a session, message by message."""
    number = 1

    def event(**kind: object) -> event_pb2.SessionEvent:
        nonlocal number
        number += 1
        return event_pb2.SessionEvent(
            tenant="t", agent="a", session=session, epoch=1, number=number, at_seconds=number * 0.3, **kind  # type: ignore[arg-type]
        )  # fmt: skip

    yield [opened(session), event(user_turn=event_pb2.UserTurn(text=f"Please look for {session}-0"))]
    for turn in range(TURNS):
        tool = ("find", "read")[turn % 2]
        action = common_pb2.Action(tool=tool, arguments=b'{"id": "%s-%d"}' % (session.encode(), turn // 2))
        key = common_pb2.CallKey(session=session, turn=turn, index=0)
        seen = common_pb2.Observation(content=b'{"next": "%s-%d"}' % (session.encode(), turn // 2 + 1))
        yield [
            event(model_started=event_pb2.ModelStarted(turn=turn)),
            event(calls_asked=event_pb2.CallsAsked(turn=turn, calls=[event_pb2.AskedCall(index=0, action=action)])),
            event(
                call_finished=event_pb2.CallFinished(
                    call=key, status=common_pb2.CALL_STATUS_OK, observation=seen, served=common_pb2.SERVED_DIRECT
                )
            ),
        ]
    yield [event(closed=event_pb2.SessionClosed())]


def interleaved() -> list[event_pb2.SessionEvent]:
    """Sessions side by side, as a journal holds them."""
    sessions = [steps(f"s{number}") for number in range(SESSIONS)]
    rounds: list[list[event_pb2.SessionEvent]] = []
    while any(events := [next(session, []) for session in sessions]):
        rounds += events
    return [event for events in rounds for event in events]


def listen(after_each: Callable[[Room], Awaitable[object]]) -> tuple[list[bytes], bytes]:
    """What was published for the interleaved sessions, and the model in the end."""

    async def main(clock: LoopClock, ids: SeededIds) -> tuple[list[bytes], bytes]:
        async with Room(clock) as room:
            for event in interleaved():
                await room.hear(event)
                await after_each(room)
            await room.listener.learn()
            await asyncio.sleep(1.0)
            return room.candidates, room.engine.dump("t", "a")

    return run_virtual(main)


def test_what_is_predicted_is_as_if_each_event_had_been_learned_at_once() -> None:
    at_once, model = listen(lambda room: room.listener.learn())
    assert len(at_once) == SESSIONS * TURNS
    assert any(len(batch) > 200 for batch in at_once), "some batch has candidates"
    assert listen(lambda room: asyncio.sleep(0.0)) == (at_once, model)
    assert listen(lambda room: asyncio.sleep(0.02)) == (at_once, model)


def test_an_event_that_only_teaches_is_learned_soon_also_where_nothing_follows() -> None:
    async def main(clock: LoopClock, ids: SeededIds) -> None:
        async with Room(clock) as room:
            for session in ("first", "second"):  # the second time as well
                await room.hear(opened(session))
                await asyncio.sleep(0.01)
                assert not room.knows(opened(session))
                await asyncio.sleep(0.2)
                assert room.knows(opened(session))

    run_virtual(main)


def test_no_more_than_some_events_wait() -> None:
    async def main(clock: LoopClock, ids: SeededIds) -> None:
        async with Room(clock) as room:
            for number in range(EVENTS_THAT_WAIT):
                assert not room.knows(opened("s0"))
                await room.hear(opened(f"s{number}"))
            assert room.knows(opened("s0"))
            assert room.knows(opened(f"s{EVENTS_THAT_WAIT - 1}"))

    run_virtual(main)
