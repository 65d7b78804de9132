"""A small model's second guess at the orchestrator: admitted as any candidate, with its own price, and booked."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from forerun.client import Call
from forerun.runtime import metrics_table as m
from forerun.runtime import subjects
from forerun.v1 import event_pb2, ledger_pb2, prediction_pb2
from tests.integration.orchestrator.conftest import SCHEMA, Stage

SETTINGS = {"orchestrator": {"replica": "first", "journal_tool_schemas": True}}


def guess(session: str, number: int, *, seconds: float, result: str = "proposed") -> bytes:
    batch = prediction_pb2.Candidates(
        tenant="local",
        session=session,
        based_on=1_000,
        guess=prediction_pb2.SecondGuess(
            model="small", result=result, asked_because="pays", seconds=seconds, input_tokens=300, output_tokens=20
        ),
    )
    if result == "proposed":
        one = batch.candidates.add(
            probability=0.95, evidence=200.0, rank=9, site=f"small-{seconds}", expected_seconds=1.0,
            explanation="second guess of small", prediction_seconds=seconds,
        )  # fmt: skip
        one.action.tool, one.action.arguments = "get", json.dumps({"id": number}).encode()
    return batch.SerializeToString()


async def lines(s: Stage, session: str) -> list[ledger_pb2.LedgerLine]:
    await asyncio.sleep(2.0)
    messages = await s.platform.bus.read(subjects.ledger("local", session), limit=1_000)
    return [ledger_pb2.LedgerLine.FromString(message.data) for message in messages]


def test_a_guess_is_launched_where_it_is_worth_its_price_and_every_one_is_booked(stage: Any) -> None:
    async def play(s: Stage) -> None:
        async with s.client.session("a") as session:
            await session.model_started()
            await asyncio.sleep(0.1)
            for number, seconds in ((1, 0.5), (2, 300.0)):
                data = guess(session.id, number, seconds=seconds)
                await s.platform.bus.notify(subjects.candidates("first"), data)
            late = guess(session.id, 3, seconds=4.0, result="late")
            await s.platform.bus.notify(subjects.candidates("first"), late)
            await asyncio.sleep(2.0)
            assert [arguments["id"] for _, arguments, _ in s.world.log] == [1], "a guess that took too much is not run"
            await session.call_tool("get", {"id": 1})
        found = await lines(s, session.id)
        guesses = [line for line in found if line.kind == ledger_pb2.LEDGER_KIND_MODEL]
        assert [(one.model, one.seconds, one.wasted_seconds) for one in guesses] == [
            ("small", 0.5, 0.0),
            ("small", 300.0, 0.0),
            ("small", 4.0, 4.0),
        ]
        assert {(one.input_tokens, one.output_tokens) for one in guesses} == {(300, 20)}
        assert guesses[2].reason == "second guess: late, asked because pays"
        (run,) = [line for line in found if line.kind == ledger_pb2.LEDGER_KIND_SPECULATION]
        assert run.expected_cost == 1.5, "a second of a slot, and half a second of the model"
        assert run.explanation == "second guess of small"
        metrics = s.platform.apps["orchestrator"].metrics
        assert metrics.value(m.MODEL_REQUESTS, model="small", mode="extra") == 3

    stage(play, settings=SETTINGS)


def test_schemas_are_in_the_journal_where_that_is_set(stage: Any) -> None:
    async def opened(s: Stage) -> event_pb2.SessionOpened:
        async with s.client.session("a", tools=["get", "set"]) as session:
            await session.call_tools([Call("get", {"id": 1})])
        number = subjects.partition("local", "a", partitions=16)
        page = await s.platform.bus.read(subjects.event(number, "local", "a", session.id), limit=10)
        return event_pb2.SessionEvent.FromString(page[0].data).opened

    async def with_them(s: Stage) -> None:
        found = {one.name: json.loads(one.input_schema) for one in (await opened(s)).schemas}
        assert found == {"get": json.loads(SCHEMA), "set": json.loads(SCHEMA)}

    async def without(s: Stage) -> None:
        assert not (await opened(s)).schemas

    stage(with_them, settings=SETTINGS)
    stage(without)
