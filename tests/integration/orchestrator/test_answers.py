"""Answers of models through a platform, with real HTTP model servers: races, candidates, faults, money, ledger."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from forerun.cli.virtual import VirtualPlatform
from forerun.client import (
    AsyncClient,
    ChatMessage,
    InvalidRequest,
    ModelAnswer,
    PlatformUnavailable,
    Scorer,
    Search,
)
from forerun.runtime import metrics_table as m
from forerun.runtime import subjects
from forerun.runtime.clock import SystemClock
from forerun.runtime.ids import SystemIds
from forerun.v1 import common_pb2, ledger_pb2
from tests.integration.models.server import Behave, Exchange, ModelServer, forever, serving

QUESTION = [ChatMessage("user", "What is six times seven?")]
MILLION = 1_000_000
ON = {"on": True, "worth": 1_000_000}


@dataclass
class Stage:
    """A platform whose models are served by the test.

    Attributes:
        servers: The model servers, in the order of the policy.
    """

    platform: VirtualPlatform
    client: AsyncClient
    servers: tuple[ModelServer, ...]
    answers: list[ModelAnswer] = field(default_factory=list)

    async def ask(self, search: Search | None = None, **options: Any) -> ModelAnswer:
        """Asks the model `m`; its prompt has 10 tokens, a token costs 1, of the prompt and of the answer."""
        answer = await self.client.answers("a").generate("m", QUESTION, search=search, **options)
        self.answers.append(answer)
        return answer

    async def lines(self, answer: str) -> list[ledger_pb2.LedgerLine]:
        """The ledger lines of an answer, once all are stored."""
        await self.platform.stop_service("orchestrator", 5.0)
        messages = await self.platform.bus.read(subjects.ledger("local", answer), limit=1_000)
        return [ledger_pb2.LedgerLine.FromString(message.data) for message in messages]

    def counted(self, metric: m.Metric, **labels: str) -> float:
        """A counter of the orchestrator."""
        return self.platform.apps["orchestrator"].metrics.value(metric, **labels)


Play = Callable[[Stage], Awaitable[None]]


def play(
    test: Play,
    tmp_path: Path,
    *behaviours: Behave,
    answers: dict[str, Any] | None = None,
    race: dict[str, Any] | None = None,
    continues: bool = False,
    free_prompts: Sequence[int] = (),
    **model: Any,
) -> None:
    async def main() -> None:
        async with serving(*behaviours) as servers:
            providers = [
                {
                    "name": f"p{number}", "url": server.url,
                    "inputPrice": 0 if number in free_prompts else MILLION, "outputPrice": MILLION,
                    "maxOutputTokens": 20, "continues": continues, "secret": "key",
                }
                for number, server in enumerate(servers)
            ]  # fmt: skip
            models = [{"name": "m", "providers": providers, "race": race} | model]
            policies = [{"name": "p", "mode": "MODE_EXACT", "answers": answers or {}}]
            (tmp_path / "policy.yaml").write_text(json.dumps({"policies": policies, "models": models, "servers": []}))
            (tmp_path / "secrets").mkdir()
            (tmp_path / "secrets" / "key").write_text("sk-test")
            ids = SystemIds(SystemClock())
            platform = VirtualPlatform(
                directory=tmp_path, policy_file=tmp_path / "policy.yaml", clock=SystemClock(), ids=ids,
                http=httpx.MockTransport(lambda _: httpx.Response(500)),
                settings={"orchestrator": {"secrets_directory": tmp_path / "secrets"}},
            )  # fmt: skip
            await platform.start()
            try:
                async with asyncio.timeout(60), AsyncClient(channel=platform.channel(), ids=ids) as client:
                    await test(Stage(platform, client, servers))
            finally:
                await platform.stop()

    asyncio.run(main())


def saying(*texts: str, seconds: Sequence[float] = ()) -> Behave:
    """Answers with these texts, a token a word: by the seed, or one request after the other."""

    async def behave(exchange: Exchange) -> None:
        number = exchange.body.get("seed", exchange.number) % len(texts)
        if seconds:
            await asyncio.sleep(seconds[number])
        await exchange.say(texts[number], usage=(10, len(texts[number].split())))

    return behave


def ends(answer: ModelAnswer) -> list[str]:
    return [one.end for one in answer.candidates]


def check_books(answer: ModelAnswer, lines: list[ledger_pb2.LedgerLine]) -> None:
    """The lines are those of the answer, and their sums are what it says."""
    assert {line.answer for line in lines} == {answer.id}
    assert sum(line.cost_money for line in lines) == pytest.approx(answer.cost)
    assert sum(line.input_tokens for line in lines) == answer.input_tokens
    assert sum(line.output_tokens for line in lines) == answer.output_tokens
    assert all(line.model == "m" and line.provider and line.agent == "a" and line.tenant == "local" for line in lines)


def test_a_single_answer_streams_and_has_one_line(tmp_path: Path) -> None:
    async def test(stage: Stage) -> None:
        parts: list[str] = []
        answer = await stage.ask(on_text=parts.append, temperature=0.0, max_output_tokens=7)
        assert parts == ["forty", " two"]
        assert (answer.text, answer.finish_reason, answer.provider, answer.why) == (
            "forty two", "stop", "p0", "the only one",
        )  # fmt: skip
        assert (answer.cost, answer.cost_of_one, answer.input_tokens, answer.output_tokens) == (12.0, 12.0, 10, 2)
        asked = stage.servers[0].asked[0]
        assert (asked.body["max_tokens"], asked.headers["authorization"]) == (7, "Bearer sk-test")
        assert stage.counted(m.MODEL_REQUESTS, model="m", mode="authoritative") == 1.0
        assert stage.counted(m.MODEL_TOKENS, model="m", mode="authoritative", direction="output") == 2.0
        assert stage.counted(m.ANSWERS, strategy="single") == 1.0
        (line,) = await stage.lines(answer.id)
        check_books(answer, [line])
        assert (line.kind, line.reason) == (ledger_pb2.LEDGER_KIND_MODEL, "single")
        assert line.policy.startswith("p@")

    play(test, tmp_path, saying("forty two"))


def test_a_straggler_is_raced_and_its_loser_is_billed_as_a_race(tmp_path: Path) -> None:
    hangs = False

    async def hangs_later(exchange: Exchange) -> None:
        if hangs:
            await forever(exchange)
        await exchange.say("forty two", usage=(10, 2))

    async def test(stage: Stage) -> None:
        nonlocal hangs
        for _ in range(25):
            await stage.ask()
        slow, fast = stage.servers
        # On a loaded machine some of these may have been raced, too.
        hung_up, asked, hangs = len(slow.hang_ups), len(fast.asked), True
        answer = await stage.ask()
        await slow.wait_for(lambda: len(slow.hang_ups) == hung_up + 1)
        assert (answer.text, answer.provider, answer.races) == ("forty two", "p1", 1)
        assert len(fast.asked) == asked + 1
        assert (answer.cost, answer.cost_of_one) == (12.0, 2.0)
        assert stage.counted(m.RACES, tool="m", winner="second") >= 1.0
        lines = await stage.lines(answer.id)
        check_books(answer, lines)
        kinds = Counter(line.kind for line in lines)
        assert kinds == {ledger_pb2.LEDGER_KIND_RACE: 1, ledger_pb2.LEDGER_KIND_MODEL: 1}
        beaten = next(line for line in lines if line.kind == ledger_pb2.LEDGER_KIND_RACE)
        assert (beaten.provider, beaten.cost_money, beaten.tokens_estimated) == ("p0", 10.0, True)
        assert beaten.wasted_seconds == beaten.seconds > 0

    play(test, tmp_path, hangs_later, saying("forty two"), race={"mostExtra": 1.0}, free_prompts=[1])


def test_candidates_are_off_unless_the_policy_allows_them(tmp_path: Path) -> None:
    async def test(stage: Stage) -> None:
        answer = await stage.ask(Search(count=3, scorer=Scorer.votes()))
        assert (answer.text, answer.limited_by) == ("one", "candidates are off under this policy")
        assert (len(stage.servers[0].asked), answer.candidates) == (1, [])

    play(test, tmp_path, saying("one", "two", "three"))


def test_votes_decide_and_what_cannot_win_any_more_is_stopped(tmp_path: Path) -> None:
    async def behave(exchange: Exchange) -> None:
        number = exchange.body["seed"] - 5
        if number == 3:
            await exchange.head()
            await exchange.token("still")
            await forever(exchange)
        await exchange.say(("I think 41", "so: 42", "it is 42", "", "surely 42")[number], usage=(10, 3))

    async def test(stage: Stage) -> None:
        answer = await stage.ask(Search(count=5, scorer=Scorer.votes(behind=" ")), seed=5, temperature=0.0)
        (server,) = stage.servers
        await server.wait_for(lambda: len(server.hang_ups) == 1)
        assert ends(answer) == ["beaten", "chosen", "beaten", "stopped", "beaten"]
        assert answer.text == "so: 42"
        assert answer.why == "3 of 4 say the same; no other answer can get as many votes any more"
        # Four of 13, and what was stopped: its prompt, and the two tokens of its text where that was there already.
        assert answer.cost in (4 * 13 + 10, 4 * 13 + 10 + 2)
        sent = [(one.body.get("temperature"), one.body.get("seed")) for one in server.asked]
        assert sorted(sent) == [(0.0, 5), (0.8, 6), (0.8, 7), (0.8, 8), (0.8, 9)]
        assert stage.counted(m.MODEL_REQUESTS, model="m", mode="extra") == 5.0
        lines = await stage.lines(answer.id)
        check_books(answer, lines)
        assert Counter(line.kind for line in lines) == {ledger_pb2.LEDGER_KIND_CANDIDATE: 5}
        chosen = [line for line in lines if "chosen" in line.reason]
        assert [line.wasted_seconds for line in chosen] == [0.0]

    play(test, tmp_path, behave, answers=ON)


def test_a_verifier_of_the_client_scores_candidates_as_they_come_and_stops_early(tmp_path: Path) -> None:
    seen: list[str] = []

    async def verify(text: str) -> float | None:
        seen.append(text)
        if text == "bad":
            raise ValueError("the verifier's own defect")
        return {"fair": 0.5, "good": 0.95}[text]

    async def test(stage: Stage) -> None:
        search = Search(count=4, scorer=Scorer.verifier(verify), stop_at=0.9, at_once=1)
        answer = await stage.ask(search)
        assert (answer.text, answer.why) == (
            "good", "the best score, 0.95, of 2; a score of 0.95 is good enough",
        )  # fmt: skip
        assert (seen, ends(answer)) == (["bad", "fair", "good"], ["unscored", "beaten", "chosen"])
        assert [one.score for one in answer.candidates] == [None, 0.5, 0.95]
        assert len(stage.servers[0].asked) == 3, "the fourth was never needed"

    play(test, tmp_path, saying("bad", "fair", "good", "better"), answers=ON)


def test_a_verifier_that_never_answers_costs_its_time_and_the_first_candidate_is_taken(tmp_path: Path) -> None:
    async def verify(text: str) -> float | None:
        await asyncio.Event().wait()
        return None

    async def test(stage: Stage) -> None:
        search = Search(count=2, scorer=Scorer.verifier(verify, timeout_seconds=0.05))
        answer = await stage.ask(search, seed=0)
        assert (answer.text, answer.why) == ("one", "no candidate could be compared, so the first one is taken")
        slow = Search(count=2, scorer=Scorer.verifier(verify, timeout_seconds=60.0))
        answer = await stage.ask(slow, timeout_seconds=0.3, seed=0)
        assert (answer.text, ends(answer)) == ("one", ["chosen", "stopped"])

    play(test, tmp_path, saying("one", "two"), answers=ON)


def test_one_candidate_hangs_one_fails_and_the_judge_says_nonsense_of_another(tmp_path: Path) -> None:
    """Candidates and judge are the same server: who is asked is seen from the request."""
    judged: list[str] = []

    async def behave(exchange: Exchange) -> None:
        body = exchange.body
        if body["messages"][0]["role"] == "system":
            text = body["messages"][1]["content"]
            judged.append(text)
            said = {"ten": '{"score": 10}', "most": '{"score": 0.7}', "less": '{"score": 0.6}'}
            await exchange.say(next(score for word, score in said.items() if f"<answer>\n{word}" in text), (30, 4))
            return
        match body.get("seed"):
            case 1:
                await exchange.say("less", (10, 1))  # the first candidate has the seed that was asked for
            case 2:
                await forever(exchange)
            case 3:
                await exchange.whole(500, {"error": {"code": "broken"}})
            case 4:
                await exchange.say("ten", (10, 1))
            case _:
                await exchange.say("most", (10, 1))

    async def test(stage: Stage) -> None:
        answer = await stage.ask(Search(count=5, scorer=Scorer.judge(criterion="It is short.")), seed=1)
        assert answer.text == "most"
        assert ends(answer) == ["beaten", "stopped", "failed", "unscored", "chosen"]
        assert [one.reason for one in answer.candidates] == ["", "", "MODEL_UNAVAILABLE", "", ""]
        assert len(judged) == 3 and all("Criterion: It is short." in one for one in judged)
        (server,) = stage.servers
        await server.wait_for(lambda: len(server.hang_ups) == 1)
        lines = await stage.lines(answer.id)
        check_books(answer, lines)
        kinds = Counter((line.kind, line.status) for line in lines)
        assert kinds[ledger_pb2.LEDGER_KIND_MODEL, common_pb2.CALL_STATUS_OK] == 3, "three judgements"
        assert sum(count for (kind, _), count in kinds.items() if kind == ledger_pb2.LEDGER_KIND_CANDIDATE) == 5

    play(test, tmp_path, behave, answers=ON)


def test_the_price_cap_holds_and_says_so(tmp_path: Path) -> None:
    """A candidate may cost its prompt, at most 24 bytes and the frame of a message, and 20 tokens: 76."""

    async def test(stage: Stage) -> None:
        search = Search(count=4, scorer=Scorer.rules(max_chars=100), max_cost=160.0)
        answer = await stage.ask(search)
        assert len(answer.candidates) == 2
        assert (answer.limited_by, answer.cost) == ("the price cap is reached", 22.0)
        with pytest.raises(PlatformUnavailable) as raised:
            await stage.ask(Search(count=4, scorer=Scorer.votes(), max_cost=50.0))
        assert raised.value.reason == "BUDGET_EXHAUSTED"
        assert len(stage.servers[0].asked) == 2

    play(test, tmp_path, saying("one"), answers=ON)


def test_candidates_have_to_be_worth_their_price(tmp_path: Path) -> None:
    async def test(stage: Stage) -> None:
        answer = await stage.ask(Search(count=4, scorer=Scorer.votes()))
        assert (len(answer.candidates), answer.limited_by) == (1, "a further candidate is not worth its price")
        assert answer.cost == answer.cost_of_one == 11.0

    play(test, tmp_path, saying("one"), answers=ON | {"worth": 50})


def test_the_kill_switch_leaves_one_answer(tmp_path: Path) -> None:
    async def test(stage: Stage) -> None:
        await stage.client.set_speculation(on=False, reason="test")
        answer = await stage.ask(Search(count=4, scorer=Scorer.votes()))
        assert (answer.limited_by, len(stage.servers[0].asked)) == ("speculation is switched off", 1)
        await stage.client.set_speculation(on=True, reason="test")
        once = await stage.ask(Search(count=4, scorer=Scorer.votes()), once=True)
        assert (once.limited_by, len(stage.servers[0].asked)) == ("the request may not be repeated", 2)

    play(test, tmp_path, saying("one"), answers=ON)


def test_a_beam_writes_the_best_line_by_line(tmp_path: Path) -> None:
    """The model offers two next lines; the scorer likes one of them; what was begun is gone on with."""
    lines = ["good\n", "bad\n"]

    async def behave(exchange: Exchange) -> None:
        messages = exchange.body["messages"]
        begun = messages[-1]["content"] if messages[-1]["role"] == "assistant" else ""
        if begun:
            assert exchange.body["continue_final_message"] is True
        await exchange.head()
        if begun.count("\n") == 2:
            await exchange.token("end")
            await exchange.end(usage=(10, 1))
            return
        await exchange.token(lines[exchange.number % 2])
        await exchange.token("what comes behind the line is cut off")
        await exchange.end("length", usage=(10, 2))

    def verify(text: str) -> float | None:
        return 0.1 + 0.2 * text.count("good") + (0.3 if text.endswith("end") else 0.0)

    async def test(stage: Stage) -> None:
        shape: dict[str, int | str] = {"expand": 2, "steps": 4, "step_tokens": 10, "delimiter": "\n"}
        answer = await stage.ask(Search(count=2, scorer=Scorer.verifier(verify), beam=shape))
        assert answer.text == "good\ngood\nend"
        assert answer.finish_reason == "stop"
        assert answer.why.startswith("the best score, 0.8")
        assert stage.counted(m.ANSWERS, strategy="beam") == 1.0
        check_books(answer, await stage.lines(answer.id))

    play(test, tmp_path, behave, answers=ON, continues=True)


def test_a_client_that_leaves_stops_every_candidate_at_its_provider_and_all_is_in_the_ledger(tmp_path: Path) -> None:
    async def test(stage: Stage) -> None:
        (server,) = stage.servers
        answers = stage.client.answers("a", session="session-1")
        search = Search(count=3, scorer=Scorer.votes())
        task = asyncio.ensure_future(answers.generate("m", QUESTION, search=search))
        await server.wait_for(lambda: len(server.asked) == 3)
        left_at = asyncio.get_running_loop().time()
        task.cancel()
        await server.wait_for(lambda: len(server.hang_ups) == 3)
        assert max(server.hang_ups) - left_at < 0.5
        with pytest.raises(asyncio.CancelledError):
            await task
        lines = await stage.lines("session-1")
        assert Counter(line.kind for line in lines) == {ledger_pb2.LEDGER_KIND_CANDIDATE: 3}
        assert all(line.input_tokens for line in lines), "the prompts were read"

    play(test, tmp_path, forever, answers=ON)


@pytest.mark.parametrize(
    ("search", "options", "names"),
    [
        (Search(count=1, scorer=Scorer.votes()), {}, "candidates.count"),
        (Search(count=33, scorer=Scorer.votes()), {}, "ANSWER_CANDIDATES"),
        (Search(count=2, scorer=Scorer.votes(), stop_at=2.0), {}, "stop_at"),
        (Search(count=2, scorer=Scorer.votes(), beam={}), {}, "votes in a beam"),
        (Search(count=2, scorer=Scorer.rules(), beam={"steps": 65}), {}, "ANSWER_STEPS"),
        (Search(count=8, scorer=Scorer.rules(), beam={"expand": 5}), {}, "ANSWER_CANDIDATES"),
        (Search(count=2, scorer=Scorer.rules(), beam={}), {}, "continues"),
        (None, {"temperature": -1.0}, "request.temperature"),
        (None, {"timeout_seconds": 0.0}, "timeout_seconds"),
    ],
)
def test_what_is_wrong_is_refused_by_its_name_and_nothing_is_sent(
    tmp_path: Path, search: Search | None, options: dict[str, Any], names: str
) -> None:
    async def test(stage: Stage) -> None:
        with pytest.raises(InvalidRequest, match=names):
            await stage.ask(search, **options)
        assert stage.servers[0].asked == []

    play(test, tmp_path, saying("one"), answers=ON)


def test_another_policy_file_holds_for_the_next_request_and_what_runs_goes_on(tmp_path: Path) -> None:
    going_on = asyncio.Event()

    async def slow_first(exchange: Exchange) -> None:
        if exchange.number == 0:
            await going_on.wait()
        await exchange.say("forty two", usage=(10, 2))

    async def test(stage: Stage) -> None:
        (server,) = stage.servers
        under_way = asyncio.ensure_future(stage.ask())
        await server.wait_for(lambda: len(server.asked) == 1)
        file = tmp_path / "policy.yaml"
        policy = json.loads(file.read_text())
        policy["models"][0]["name"] = "another"
        policy["models"][0]["providers"][0]["secret"] = ""
        file.write_text(json.dumps(policy))
        answer: ModelAnswer | None = None
        async with asyncio.timeout(10):
            while answer is None:
                try:
                    answer = await stage.client.answers("a").generate("another", QUESTION)
                except InvalidRequest as error:
                    assert error.reason == "MODEL_NOT_FOUND"
                    await asyncio.sleep(0.05)  # the file is looked at four times a second
        assert answer.text == "forty two"
        assert "authorization" not in server.asked[-1].headers
        with pytest.raises(InvalidRequest):
            await stage.ask()
        going_on.set()
        assert (await under_way).text == "forty two"

    play(test, tmp_path, slow_first)


def test_unknown_models_and_too_much_text_are_refused(tmp_path: Path) -> None:
    async def test(stage: Stage) -> None:
        with pytest.raises(InvalidRequest) as raised:
            await stage.client.answers("a").generate("n", QUESTION)
        assert raised.value.reason == "MODEL_NOT_FOUND"
        with pytest.raises(InvalidRequest, match="MODEL_PROMPT_BYTES"):
            await stage.client.answers("a").generate("m", [ChatMessage("user", "x" * (2 * 1024 * 1024 + 1))])
        with pytest.raises(InvalidRequest, match="role"):
            await stage.client.answers("a").generate("m", [ChatMessage("nobody", "x")])

    play(test, tmp_path, saying("one"), tenants=["local"])
