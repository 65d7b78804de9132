"""Approximate answers: a small model answers, the one that was asked for says yes or no. Real HTTP model servers."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from forerun.cli.virtual import VirtualPlatform
from forerun.client import AsyncClient, ChatMessage, ModelAnswer, Scorer, Search
from forerun.core.answers import verdict
from forerun.runtime import metrics_table as m
from forerun.runtime import subjects
from forerun.runtime.clock import SystemClock
from forerun.runtime.ids import SystemIds
from forerun.v1 import ledger_pb2
from tests.integration.models.server import Behave, Exchange, ModelServer, serving

QUESTION = [ChatMessage("user", "What is six times seven?")]
MILLION = 1_000_000


class Stage:
    """A platform with a large model `m` and a small one."""

    def __init__(self, platform: VirtualPlatform, client: AsyncClient, large: ModelServer, small: ModelServer) -> None:
        self.platform, self.client, self.large, self.small = platform, client, large, small
        self.told: list[str] = []

    async def ask(self, model: str = "m", **options: Any) -> ModelAnswer:
        return await self.client.answers("a").generate(model, QUESTION, on_text=self.told.append, **options)

    async def lines(self, answer: ModelAnswer) -> list[ledger_pb2.LedgerLine]:
        await self.platform.stop_service("orchestrator", 5.0)
        messages = await self.platform.bus.read(subjects.ledger("local", answer.id), limit=100)
        found = [ledger_pb2.LedgerLine.FromString(message.data) for message in messages]
        assert sum(line.cost_money for line in found) == pytest.approx(answer.cost), "both costs are in the ledger"
        assert sum(line.input_tokens for line in found) == answer.input_tokens
        return found

    def answers(self, strategy: str) -> float:
        return self.platform.apps["orchestrator"].metrics.value(m.ANSWERS, strategy=strategy)


def play(test: Callable[[Stage], Awaitable[None]], folder: Path, large: Behave, small: Behave, **answers: Any) -> None:
    async def main() -> None:
        async with serving(large, small) as servers:
            models = [
                {"name": name, "providers": [{"name": f"p-{name}", "url": server.url, "maxOutputTokens": 20,
                 "inputPrice": price * MILLION, "outputPrice": price * MILLION}]}
                for name, server, price in (("m", servers[0], 10), ("small", servers[1], 1))
            ]  # fmt: skip
            policy = {"name": "p", "mode": "MODE_EXACT", "answers": {"draftedBy": "small"} | answers}
            (folder / "policy.yaml").write_text(json.dumps({"policies": [policy], "models": models, "servers": []}))
            clock = SystemClock()
            ids = SystemIds(clock)
            platform = VirtualPlatform(
                directory=folder, policy_file=folder / "policy.yaml", clock=clock, ids=ids,
                http=httpx.MockTransport(lambda _: httpx.Response(500)), settings={},
            )  # fmt: skip
            await platform.start()
            try:
                async with asyncio.timeout(60), AsyncClient(channel=platform.channel(), ids=ids) as client:
                    await test(Stage(platform, client, *servers))
            finally:
                await platform.stop()

    asyncio.run(main())


def judging(word: str, text: str = "it is 42") -> Behave:
    """Says `word` where it is asked whether it agrees, and the text where it is asked itself."""

    async def behave(exchange: Exchange) -> None:
        judged = "<answer>" in exchange.body["messages"][-1]["content"]
        await exchange.say(word if judged else text, usage=(30, 1) if judged else (10, 3))

    return behave


async def drafting(exchange: Exchange) -> None:
    await exchange.say("forty two", usage=(10, 2))


async def failing(exchange: Exchange) -> None:
    await exchange.whole(400, {"error": {"message": "no"}})


def test_the_small_model_answers_where_the_other_agrees_and_both_are_billed(tmp_path: Path) -> None:
    async def test(s: Stage) -> None:
        answer = await s.ask(max_output_tokens=9)
        assert (answer.text, answer.approximate, answer.provider) == ("forty two", True, "p-small")
        assert answer.why == "small answered, m agreed"
        assert "".join(s.told) == "forty two"
        assert answer.cost == 12 * 1 + 31 * 10
        (judged,) = s.large.asked
        assert "forty two" in judged.body["messages"][-1]["content"]
        assert judged.body["max_tokens"] == 4
        assert s.answers("approximate") == 1
        assert s.answers("single") == 0, "reported apart"
        lines = {(line.model, line.kind, line.reason) for line in await s.lines(answer)}
        assert lines == {
            ("small", ledger_pb2.LEDGER_KIND_CANDIDATE, "approximate: chosen"),
            ("m", ledger_pb2.LEDGER_KIND_MODEL, "judge"),
        }

    play(test, tmp_path, judging("Yes."), drafting)


@pytest.mark.parametrize("word", ["no", "yes, but it is wrong", '{"score": 1}', "maybe"])
def test_without_a_clear_yes_the_model_that_was_asked_for_answers(tmp_path: Path, word: str) -> None:
    async def test(s: Stage) -> None:
        answer = await s.ask()
        assert (answer.text, answer.approximate, answer.provider) == ("it is 42", False, "p-m")
        assert "".join(s.told) == "it is 42", "nobody has seen what was refused"
        assert answer.cost > 12 * 1 + 30 * 10 + 13 * 10, "all three"
        lines = await s.lines(answer)
        assert Counter(line.reason for line in lines) == {"approximate: beaten": 1, "judge": 1, "single": 1}
        (beaten,) = [line for line in lines if line.model == "small"]
        assert beaten.wasted_seconds > 0

    play(test, tmp_path, judging(word), drafting)


def test_a_small_model_that_fails_costs_no_answer(tmp_path: Path) -> None:
    async def test(s: Stage) -> None:
        answer = await s.ask()
        assert (answer.text, answer.approximate) == ("it is 42", False)
        assert len(s.large.asked) == 1, "nothing to judge"

    play(test, tmp_path, judging("yes"), failing)


@pytest.mark.parametrize(
    ("options", "answers"),
    [
        ({}, {"draftedBy": ""}),
        ({"model": "small"}, {}),
        ({"once": True}, {}),
        ({}, {"maxCost": 100.0}),
        ({"search": Search(count=2, scorer=Scorer.votes())}, {"on": True, "worth": MILLION}),
    ],
)
def test_it_is_never_the_default_and_never_where_it_may_not_be(
    tmp_path: Path, options: dict[str, Any], answers: dict[str, Any]
) -> None:
    async def test(s: Stage) -> None:
        answer = await s.ask(**options)
        assert not answer.approximate
        assert s.answers("approximate") == 0
        assert not any("<answer>" in one.body["messages"][-1]["content"] for one in s.large.asked)

    play(test, tmp_path, judging("yes"), drafting, **answers)


def test_the_kill_switch_ends_it(tmp_path: Path) -> None:
    async def test(s: Stage) -> None:
        assert (await s.ask()).approximate
        await s.client.set_speculation(on=False, reason="test")
        await asyncio.sleep(1.2)
        assert not (await s.ask()).approximate

    play(test, tmp_path, judging("yes"), drafting)


@pytest.mark.parametrize(
    ("text", "yes"), [("yes", True), (" Yes!\n", True), ("no", False), ("yes no", False), ("", False)]
)
def test_only_a_yes_is_a_yes(text: str, yes: bool) -> None:
    assert verdict(text) is yes
