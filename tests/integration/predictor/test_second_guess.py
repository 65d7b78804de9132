"""A small model beside the statistics: the production wiring, and a model server that answers as it is told."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from forerun.core.sites import Site
from forerun.predictor.app import build
from forerun.predictor.settings import PredictorSettings, SmallModelSettings
from forerun.runtime import metrics_table as m
from forerun.runtime.app import App
from forerun.runtime.bus_memory import MemoryBroker, MemoryBus
from forerun.runtime.clock import SystemClock
from forerun.runtime.memory_network import MemoryFabric, MemoryNetwork
from forerun.v1 import common_pb2, event_pb2, prediction_pb2
from tests.integration.models.server import Behave, Exchange, ModelServer, serving
from tests.integration.predictor.test_service import Journal

SCHEMA = {
    "type": "object",
    "properties": {"item": {"type": "string", "maxLength": 8}},
    "required": ["item"],
    "additionalProperties": False,
}
PROBE = Site.PROBE_EVERY


def item(number: int) -> str:
    return f"k{number * 7919 % 9973}x"


async def call(exchange: Exchange, name: str, arguments: str, count: int = 1) -> None:
    await exchange.head()
    for index in range(count):
        function = {"name": name, "arguments": arguments}
        one = {"index": index, "id": f"c{index}", "type": "function", "function": function}
        await exchange.event({"choices": [{"index": 0, "delta": {"tool_calls": [one]}}]})
    await exchange.end("tool_calls", usage=(200, 20))


async def right(exchange: Exchange) -> None:
    """Reads the item from the transcript, which statistics cannot: it is written backwards there."""
    found = re.findall(r"about (\w+) backwards", exchange.body["messages"][-1]["content"])
    await call(exchange, "get_item", json.dumps({"item": found[-1][::-1]}))


async def wrong(exchange: Exchange) -> None:
    await call(exchange, "get_item", '{"item": "nothing"}')


async def silent(exchange: Exchange) -> None:
    await exchange.hung_up.wait()


def saying(name: str, arguments: str, count: int = 1) -> Behave:
    async def behave(exchange: Exchange) -> None:
        await call(exchange, name, arguments, count)

    return behave


@dataclass
class Stage:
    """A predictor with a small model, and agents that nobody else can foresee."""

    journal: Journal
    server: ModelServer
    app: App
    steps: int = 0

    async def step(self, think_seconds: float) -> prediction_pb2.Candidates | None:
        """One session of one call; what was told of a second guess before the call was asked for.

        Args:
            think_seconds: How long the agent's own model takes where the small one was asked. Else it takes no time.
        """
        self.steps += 1
        session, wanted = f"s{self.steps}", item(self.steps)
        schema = event_pb2.ToolSchema(name="get_item", input_schema=json.dumps(SCHEMA))
        opened = event_pb2.SessionOpened(tools=["get_item"], schemas=[schema])
        await self.journal.write(session, event_pb2.SessionEvent(opened=opened))
        user = event_pb2.UserTurn(text=f"tell me about {wanted[::-1]} backwards")
        await self.journal.write(session, event_pb2.SessionEvent(user_turn=user))
        refused = self.refused
        await self.journal.ask(session, 1)
        for _ in range(20):
            if self.refused > refused:
                break
            await asyncio.sleep(0.002)
        told = None if self.refused > refused else await self.told(think_seconds)
        if told is not None:
            await asyncio.sleep(0.05)  # what the agent's own model still needs: the time that a hit hides
        action = common_pb2.Action(tool="get_item", arguments=json.dumps({"item": wanted}).encode())
        asked = event_pb2.CallsAsked(turn=1, calls=[event_pb2.AskedCall(index=0, action=action)])
        await self.journal.write(session, event_pb2.SessionEvent(calls_asked=asked))
        finished = event_pb2.CallFinished(
            call=common_pb2.CallKey(session=session, turn=1, index=0),
            status=common_pb2.CALL_STATUS_OK,
            observation=common_pb2.Observation(content=b"{}"),
            served=common_pb2.SERVED_DIRECT,
            seconds=2.0,
            tool="get_item",
        )
        await self.journal.write(session, event_pb2.SessionEvent(call_finished=finished))
        await self.journal.write(session, event_pb2.SessionEvent(closed=event_pb2.SessionClosed(reason="done")))
        return told

    async def told(self, seconds: float) -> prediction_pb2.Candidates | None:
        """What comes of a second guess within so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while True:
                    batch = await self.journal.heard.get()
                    if batch.HasField("guess"):
                        return batch
        return None

    async def until_asked(self, think_seconds: float = 1.0) -> prediction_pb2.Candidates:
        """Steps until there is word of a guess."""
        for _ in range(3 * PROBE):
            told = await self.step(think_seconds)
            if told is None and self.refused < self.steps:
                told = await self.told(5.0)
            if told is not None:
                return told
        raise AssertionError(f"it was never asked: {self.counts()}")

    @property
    def refused(self) -> float:
        return sum(self.counted(guess) for guess in ("sure", "too_late", "off", "busy", "no_tools"))

    def counts(self) -> dict[str, float]:
        return {guess: self.counted(guess) for guess in m.GUESS.values}

    def counted(self, guess: str) -> float:
        return self.app.metrics.value(m.SECOND_GUESSES, guess=guess)


@asynccontextmanager
async def stage(behave: Behave, **settings: object) -> AsyncIterator[Stage]:
    broker = MemoryBroker(SystemClock())
    fabric = MemoryFabric()
    async with serving(behave) as (server,):
        given = {"name": "small", "url": server.url, "cost_per_second": 0.1, "deadline_seconds": 5.0} | settings
        app = build(
            PredictorSettings(save_seconds=3_600, small_model=SmallModelSettings(**given)),  # type: ignore[arg-type]
            clock=SystemClock(),
            bus=MemoryBus(broker, "predictor"),
            network=lambda inbound, token, options: MemoryNetwork(
                fabric, inbound, source="predictor", token=token, options=options
            ),
        )
        journal = Journal(MemoryBus(broker, "owner"))
        await journal.listen()
        await app.start()
        try:
            yield Stage(journal, server, app)
        finally:
            assert await app.stop(10.0)
            await journal.bus.close(1.0)


async def test_it_is_off_until_a_probe_has_shown_that_it_pays_and_then_it_is_on() -> None:
    async with stage(right) as agents:
        first = await agents.until_asked()
        assert agents.steps >= PROBE - 1, "nothing is asked before a site has been seen that often"
        assert (first.guess.result, first.guess.asked_because, first.guess.model) == ("proposed", "probe", "small")
        assert (first.guess.input_tokens, first.guess.output_tokens, first.guess.tokens_estimated) == (200, 20, False)
        (candidate,) = first.candidates
        assert json.loads(candidate.action.arguments) == {"item": item(agents.steps)}
        assert candidate.prediction_seconds == first.guess.seconds > 0
        assert candidate.evidence == 0, "a cold engine launches nothing"
        assert "time to look whether it pays" in candidate.explanation

        asked = len(agents.server.asked)
        later = [await agents.step(1.0) for _ in range(8)]
        assert len(agents.server.asked) == asked + 8, "every step, now that it pays"
        last = later[-1]
        assert last is not None
        assert last.guess.asked_because == "pays"
        assert last.candidates[0].evidence > 5
        assert last.candidates[0].probability > 0.6
        assert agents.app.metrics.value(m.SECOND_GUESS_HITS) >= 8, "the last one may not be judged yet"
        assert agents.app.metrics.value(m.SECOND_GUESS_SITES) == 1


async def test_where_it_does_not_pay_it_stays_off_and_looks_again_now_and_then() -> None:
    async with stage(wrong) as agents:
        for _ in range(5 * PROBE):
            await agents.step(1.0)
        await agents.told(0.2)
        asked = len(agents.server.asked)
        assert 2 <= asked <= 6
        assert agents.counted("off") >= 5 * PROBE - asked - 1
        assert agents.app.metrics.value(m.SECOND_GUESS_SITES) == 0
        assert agents.app.metrics.value(m.SECOND_GUESS_HITS) == 0


async def test_what_paid_once_and_does_not_any_more_is_switched_off_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with stage(right) as agents:
        await agents.until_asked()
        await agents.step(1.0)
        agents.server.behave = wrong
        caplog.set_level("INFO", "forerun.predictor")
        for _ in range(60):
            await agents.step(0.05)
            if agents.app.metrics.value(m.SECOND_GUESS_SITES) == 0:
                break
        assert agents.app.metrics.value(m.SECOND_GUESS_SITES) == 0
        assert "second guesses do not pay at a call site" in caplog.text
        asked = len(agents.server.asked)
        await agents.step(0.05)
        assert len(agents.server.asked) == asked


async def test_a_guess_whose_reason_is_gone_is_stopped_down_to_the_model_and_its_price_is_told() -> None:
    async with stage(silent) as agents:
        told = await agents.until_asked(think_seconds=0.1)
        assert told.guess.result == "late"
        assert told.guess.seconds > 0.05
        assert not told.candidates
        await agents.server.wait_for(lambda: bool(agents.server.hang_ups))
        assert agents.app.metrics.value(m.SECOND_GUESS_SECONDS) == pytest.approx(told.guess.seconds)


async def test_a_guess_has_a_deadline_and_a_model_that_is_away_is_left_alone() -> None:
    async with stage(silent, deadline_seconds=0.05) as agents:
        told = await agents.until_asked(think_seconds=1.0)
        assert told.guess.result == "failed"
        assert told.guess.seconds < 0.8
        assert not told.candidates


@pytest.mark.parametrize(
    ("name", "arguments", "count"),
    [
        ("get_item", '{"item": "much too long"}', 1),
        ("get_item", "{}", 1),
        ("get_item", '{"item": "k", "more": 1}', 1),
        ("get_item", '{"item": "k"', 1),
        ("get_item", '["k"]', 1),
        ("drop_tables", "{}", 1),
        ("get_item", '{"item": "k"}', 2),
    ],
)
async def test_what_is_no_valid_call_is_never_a_candidate(name: str, arguments: str, count: int) -> None:
    async with stage(saying(name, arguments, count)) as agents:
        told = await agents.until_asked(think_seconds=1.0)
        assert told.guess.result == "invalid"
        assert not told.candidates


async def test_the_model_is_told_the_session_and_asked_for_one_call() -> None:
    async with stage(right) as agents:
        await agents.until_asked()
        body = agents.server.asked[0].body
        assert body["tool_choice"] == "required"
        assert [one["function"]["name"] for one in body["tools"]] == ["get_item"]
        assert body["tools"][0]["function"]["parameters"] == SCHEMA
        assert body["temperature"] == 0
        assert "get_item(item)" in body["messages"][0]["content"]
        assert f"user: tell me about {item(agents.steps)[::-1]} backwards" in body["messages"][1]["content"]
