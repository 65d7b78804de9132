"""The predictor as it is wired in production, with a real small model on a real Triton."""

from __future__ import annotations

import asyncio
import contextlib
import json

import pytest
from jsonschema import Draft202012Validator

from forerun.core.sites import Site
from forerun.predictor.app import build
from forerun.predictor.settings import PredictorSettings, SmallModelSettings
from forerun.runtime import metrics_table as m
from forerun.runtime.app import App
from forerun.runtime.bus_memory import MemoryBroker, MemoryBus
from forerun.runtime.clock import SystemClock
from forerun.runtime.memory_network import MemoryFabric, MemoryNetwork
from forerun.v1 import common_pb2, event_pb2, prediction_pb2
from tests.integration.predictor.test_service import OWNER, Journal
from tests.integration.serving.conftest import Served

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(900)]

SCHEMAS = {
    "get_order": {
        "type": "object",
        "properties": {"order_id": {"type": "string", "maxLength": 10}},
        "required": ["order_id"],
    },
    "list_orders": {
        "type": "object",
        "properties": {"state": {"enum": ["open", "shipped"]}, "most": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["state", "most"],
    },
}


class Agent:
    """Sessions of one step, whose call nobody can foresee."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.number = 0

    async def step(self, app: App) -> prediction_pb2.Candidates | None:
        """One session, whose own model takes as long as the small one; what was told of a second guess."""
        self.number += 1
        session = f"s{self.number}"
        schemas = [event_pb2.ToolSchema(name=name, input_schema=json.dumps(one)) for name, one in SCHEMAS.items()]
        opened = event_pb2.SessionOpened(tools=list(SCHEMAS), schemas=schemas)
        await self._journal.write(session, event_pb2.SessionEvent(opened=opened))
        text = f"Please look up the order W{self.number}77."
        await self._journal.write(session, event_pb2.SessionEvent(user_turn=event_pb2.UserTurn(text=text)))
        refused = _refused(app)
        await self._journal.ask(session, 1)
        told = None
        async with asyncio.timeout(300):
            while told is None and _refused(app) == refused:
                told = await self._told(session)
        other = f"x{self.number * 7919 % 9973}"
        action = common_pb2.Action(tool="get_order", arguments=json.dumps({"order_id": other}).encode())
        asked = event_pb2.CallsAsked(turn=1, calls=[event_pb2.AskedCall(index=0, action=action)])
        await self._journal.write(session, event_pb2.SessionEvent(calls_asked=asked))
        await self._journal.write(session, event_pb2.SessionEvent(closed=event_pb2.SessionClosed(reason="done")))
        return told

    async def _told(self, session: str) -> prediction_pb2.Candidates | None:
        """Word of a second guess, where it comes soon."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.05):
                batch = await self._journal.heard.get()
                if batch.HasField("guess") and batch.session == session:
                    return batch
        return None


def _refused(app: App) -> float:
    """Steps at which the model was not asked."""
    kinds = ("sure", "too_late", "off", "busy", "no_tools")
    return sum(app.metrics.value(m.SECOND_GUESSES, guess=kind) for kind in kinds)


async def test_only_valid_calls_and_off_where_they_do_not_pay(real: Served) -> None:
    broker, fabric = MemoryBroker(SystemClock()), MemoryFabric()
    small = SmallModelSettings(
        name="smollm2", url=f"kserve://{real.running.grpc_address}", deadline_seconds=120.0, prompt_chars=300
    )
    app = build(
        PredictorSettings(save_seconds=3_600, small_model=small),
        clock=SystemClock(),
        bus=MemoryBus(broker, "predictor"),
        network=lambda inbound, token, options: MemoryNetwork(
            fabric, inbound, source="predictor", token=token, options=options
        ),
    )
    journal = Journal(MemoryBus(broker, OWNER))
    await journal.listen()
    await app.start()
    agent, told = Agent(journal), list[prediction_pb2.Candidates]()
    try:
        while agent.number < 4 * Site.PROBE_EVERY:
            one = await agent.step(app)
            told += [] if one is None else [one]
    finally:
        assert await app.stop(20.0)
        await journal.bus.close(1.0)

    assert 1 <= len(told) <= 4, "a look now and then"
    assert _refused(app) == agent.number - len(told), "and off in between"
    off, late = (app.metrics.value(m.SECOND_GUESSES, guess=kind) for kind in ("off", "too_late"))
    assert off >= Site.PROBE_EVERY - 1
    assert late > 0, "the agent's own model takes a second here, so that a guess of more is not asked for again"
    for batch in told:
        assert batch.guess.result in ("proposed", "same")
        assert (batch.guess.model, batch.guess.asked_because) == ("smollm2", "probe")
        assert batch.guess.seconds > 0
        assert batch.guess.input_tokens > 50
        assert not batch.guess.tokens_estimated
        for candidate in batch.candidates:
            Draft202012Validator(SCHEMAS[candidate.action.tool]).validate(json.loads(candidate.action.arguments))
            assert candidate.prediction_seconds == batch.guess.seconds
    assert any(batch.candidates for batch in told)
    assert app.metrics.value(m.SECOND_GUESS_HITS) == 0
    assert app.metrics.value(m.SECOND_GUESS_SITES) == 0, "it did not pay, so it is off"
