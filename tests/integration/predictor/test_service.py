"""The predictor as it is wired in production, on a bus and a network in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from forerun.predictor.app import build
from forerun.predictor.settings import PredictorSettings
from forerun.runtime import subjects
from forerun.runtime.app import App
from forerun.runtime.bus import Message
from forerun.runtime.bus_memory import MemoryBroker, MemoryBus
from forerun.runtime.clock import SystemClock
from forerun.runtime.memory_network import MemoryFabric, MemoryNetwork
from forerun.runtime.topology import MODELS
from forerun.v1 import common_pb2, event_pb2, prediction_pb2

OWNER = "replica-1"
SESSIONS = 30


@dataclass
class Journal:
    """Writes sessions as their owner does, and hears the owner's candidates."""

    bus: MemoryBus
    heard: asyncio.Queue[prediction_pb2.Candidates] = field(default_factory=asyncio.Queue)
    numbers: dict[str, int] = field(default_factory=dict)

    async def listen(self) -> None:
        async def hear(message: Message) -> None:
            self.heard.put_nowait(prediction_pb2.Candidates.FromString(message.data))

        await self.bus.subscribe(subjects.candidates(OWNER), hear, pending_messages=1_000)

    async def write(self, session: str, event: event_pb2.SessionEvent) -> None:
        number = self.numbers[session] = self.numbers.get(session, 0) + 1
        event.tenant, event.agent, event.session, event.number, event.epoch = "t", "a", session, number, 1
        event.at_seconds = float(number)
        await self.bus.append(
            subjects.event(0, "t", "a", session),
            event.SerializeToString(),
            headers={"Forerun-Owner": OWNER},
            timeout_seconds=5.0,
        )

    async def begin(self, session: str, user: str) -> prediction_pb2.Candidates:
        await self.write(session, event_pb2.SessionEvent(opened=event_pb2.SessionOpened(tools=["get_user"])))
        await self.write(session, event_pb2.SessionEvent(user_turn=event_pb2.UserTurn(text=f"I am {user}")))
        return await self.ask(session, 1)

    async def ask(self, session: str, turn: int) -> prediction_pb2.Candidates:
        await self.write(session, event_pb2.SessionEvent(model_started=event_pb2.ModelStarted(turn=turn)))
        async with asyncio.timeout(10):
            while True:
                batch = await self.heard.get()
                if batch.session == session:
                    return batch

    async def whole(self, session: str, user: str) -> None:
        await self.begin(session, user)
        action = common_pb2.Action(tool="get_user", arguments=b'{"user_id": "%s"}' % user.encode())
        asked = event_pb2.CallsAsked(turn=1, calls=[event_pb2.AskedCall(index=0, action=action)])
        await self.write(session, event_pb2.SessionEvent(calls_asked=asked))
        finished = event_pb2.CallFinished(
            call=common_pb2.CallKey(session=session, turn=1, index=0),
            status=common_pb2.CALL_STATUS_OK,
            observation=common_pb2.Observation(content=b'{"name": "Liu"}'),
            served=common_pb2.SERVED_DIRECT,
            seconds=0.5,
            tool="get_user",
        )
        await self.write(session, event_pb2.SessionEvent(call_finished=finished))
        await self.ask(session, 2)
        message = event_pb2.AssistantMessage(turn=2, text="Hello!")
        await self.write(session, event_pb2.SessionEvent(assistant_message=message))
        await self.write(session, event_pb2.SessionEvent(closed=event_pb2.SessionClosed(reason="done")))


def predictor(broker: MemoryBroker) -> App:
    fabric = MemoryFabric()
    return build(
        PredictorSettings(save_seconds=3_600),
        clock=SystemClock(),
        bus=MemoryBus(broker, "predictor"),
        network=lambda inbound, token, options: MemoryNetwork(
            fabric, inbound, source="predictor", token=token, options=options
        ),
    )


@pytest.fixture
async def broker() -> MemoryBroker:
    return MemoryBroker(SystemClock())


@pytest.fixture
async def journal(broker: MemoryBroker) -> AsyncIterator[Journal]:
    journal = Journal(MemoryBus(broker, "owner"))
    await journal.listen()
    yield journal
    await journal.bus.close(1.0)


async def test_what_was_learned_is_published_to_the_owner_and_survives_a_restart(
    broker: MemoryBroker, journal: Journal
) -> None:
    app = predictor(broker)
    await app.start()
    try:
        cold = await journal.begin("cold", "liu_wong_1000")
        assert not cold.candidates
        for number in range(SESSIONS):
            await journal.whole(f"s{number}", f"liu_wong_{2000 + number}")
        warm = await journal.begin("warm", "liu_wong_7311")
    finally:
        assert await app.stop(10.0)
    assert len(await journal.bus.objects(MODELS).digests("t")) == 1

    again = predictor(broker)
    await again.start()
    try:
        restored = await journal.begin("restored", "liu_wong_7312")
    finally:
        assert await again.stop(10.0)

    for batch, user in ((warm, b"liu_wong_7311"), (restored, b"liu_wong_7312")):
        best = batch.candidates[0]
        assert (best.action.tool, best.action.arguments) == ("get_user", b'{"user_id":"%s"}' % user)
        assert best.probability > 0.7
        assert best.evidence > SESSIONS / 2
        assert best.rank == 1
        assert best.expected_seconds == pytest.approx(0.5, rel=0.2)
        assert batch.no_call_probability < 0.3


async def test_a_session_that_was_missed_is_read_back_from_the_journal(broker: MemoryBroker, journal: Journal) -> None:
    app = predictor(broker)
    await app.start()
    for number in range(SESSIONS):
        await journal.whole(f"s{number}", f"liu_wong_{2000 + number}")
    assert await app.stop(10.0)

    await journal.write("missed", event_pb2.SessionEvent(opened=event_pb2.SessionOpened(tools=["get_user"])))
    turn = event_pb2.UserTurn(text="This is liu_wong_9001")
    await journal.write("missed", event_pb2.SessionEvent(user_turn=turn))
    again = predictor(broker)
    await again.start()
    try:
        batch = await journal.ask("missed", 1)
    finally:
        assert await again.stop(10.0)
    assert batch.candidates[0].action.arguments == b'{"user_id":"liu_wong_9001"}'
