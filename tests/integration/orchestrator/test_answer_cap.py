"""The price cap of an answer holds whatever providers do, and the kill switch ends what is extra of it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from forerun.client import PlatformUnavailable, Scorer, Search
from tests.integration.models.server import Exchange, forever
from tests.integration.orchestrator.test_answers import ON, Stage, check_books, ends, play, saying

MOST = 76.0
"""What one candidate can cost at most: its prompt and 20 tokens."""
ANY = Scorer.rules(max_chars=1_000)


@pytest.mark.parametrize(("max_cost", "asked"), [(MOST, 1), (2 * MOST - 1, 1), (2 * MOST, 2)])
def test_the_first_candidate_is_sent_again_only_where_the_cap_has_room_for_it(
    tmp_path: Path, max_cost: float, asked: int
) -> None:
    """What has broken off may have cost its price, so the same must be there once more."""

    async def breaks_off_once(exchange: Exchange) -> None:
        if exchange.number == 0:
            await exchange.whole(500, {})
            return
        await exchange.say("one", usage=(10, 1))

    async def test(stage: Stage) -> None:
        search = Search(count=2, scorer=ANY, max_cost=max_cost, at_once=1)
        if asked == 1:
            with pytest.raises(PlatformUnavailable) as raised:
                await stage.ask(search, seed=0)
            assert raised.value.reason == "MODEL_UNAVAILABLE"
        else:
            answer = await stage.ask(search, seed=0)
            assert answer.text == "one" and answer.cost <= max_cost
            check_books(answer, await stage.lines(answer.id))
        first = [one for one in stage.servers[0].asked if one.body.get("seed") == 0]
        assert len(first) == asked

    play(test, tmp_path, breaks_off_once, answers=ON | {"maxCandidates": 1})


def test_a_judge_is_paid_for_all_that_it_reads(tmp_path: Path) -> None:
    """The criterion is part of its prompt: one that the cap has no room for leaves the candidates unscored."""

    async def test(stage: Stage) -> None:
        search = Search(count=2, scorer=Scorer.judge(criterion="It is short. " * 400), max_cost=3_000.0)
        answer = await stage.ask(search)
        assert (ends(answer), answer.limited_by) == (["chosen", "unscored"], "the price cap is reached")
        assert all(one.body["messages"][0]["role"] == "user" for one in stage.servers[0].asked), "no judge was asked"

    play(test, tmp_path, saying("one", "two"), answers=ON)


@pytest.mark.parametrize("breaks", [False, True])
def test_the_cap_holds_also_where_only_one_answer_is_allowed(tmp_path: Path, breaks: bool) -> None:
    async def behave(exchange: Exchange) -> None:
        if breaks:
            await exchange.whole(500, {})
            return
        await exchange.say("one", usage=(10, 1))

    async def test(stage: Stage) -> None:
        (server,) = stage.servers
        with pytest.raises(PlatformUnavailable) as raised:
            await stage.ask(Search(count=2, scorer=ANY, max_cost=MOST - 1))
        assert (raised.value.reason, len(server.asked)) == ("BUDGET_EXHAUSTED", 0)
        if breaks:
            with pytest.raises(PlatformUnavailable):
                await stage.ask(Search(count=2, scorer=ANY, max_cost=MOST))
        else:
            assert (await stage.ask(Search(count=2, scorer=ANY, max_cost=MOST))).text == "one"
        assert len(server.asked) == 1

    play(test, tmp_path, behave)


def test_the_kill_switch_stops_further_candidates_that_run_and_launches_no_more(tmp_path: Path) -> None:
    going_on = asyncio.Event()

    async def behave(exchange: Exchange) -> None:
        if exchange.body["seed"] == 0:
            await going_on.wait()
            await exchange.say("first", usage=(10, 1))
        else:
            await forever(exchange)

    async def test(stage: Stage) -> None:
        (server,) = stage.servers
        search = Search(count=4, scorer=Scorer.judge(), at_once=3)
        under_way = asyncio.ensure_future(stage.ask(search, seed=0))
        await server.wait_for(lambda: len(server.asked) == 3)
        await stage.client.set_speculation(on=False, reason="test")
        await server.wait_for(lambda: len(server.hang_ups) == 2)
        going_on.set()
        answer = await under_way
        assert (answer.text, answer.limited_by) == ("first", "speculation is switched off")
        assert ends(answer) == ["chosen", "stopped", "stopped"]
        assert len(server.asked) == 3, "neither a fourth candidate nor a judge"
        check_books(answer, await stage.lines(answer.id))

    play(test, tmp_path, behave, answers=ON)


def test_a_beam_writes_no_more_tokens_than_the_whole_answer_may_have(tmp_path: Path) -> None:
    async def behave(exchange: Exchange) -> None:
        await exchange.head()
        for _ in range(exchange.body["max_tokens"]):
            await exchange.token("x")
        await exchange.end("length", usage=(10, exchange.body["max_tokens"]))

    async def test(stage: Stage) -> None:
        shape: dict[str, int | str] = {"expand": 1, "steps": 4, "step_tokens": 4}
        search = Search(count=2, scorer=Scorer.rules(contains=["x"]), beam=shape)
        answer = await stage.ask(search, max_output_tokens=6)
        assert (answer.text, answer.finish_reason) == ("x" * 6, "length")

    play(test, tmp_path, behave, answers=ON, continues=True)


def test_the_end_of_a_beam_is_sent_again_as_any_request_that_is_waited_for(tmp_path: Path) -> None:
    busy = True

    async def behave(exchange: Exchange) -> None:
        nonlocal busy
        if exchange.body["max_tokens"] == 4:
            await exchange.head()
            await exchange.token("begun")
            await exchange.end("length", usage=(10, 4))
        elif busy:
            busy = False
            await exchange.whole(503, {}, {"retry-after-ms": "1"})
        else:
            await exchange.say(" and done", usage=(10, 2))

    async def test(stage: Stage) -> None:
        shape: dict[str, int | str] = {"expand": 1, "steps": 1, "step_tokens": 4}
        answer = await stage.ask(Search(count=2, scorer=ANY, beam=shape))
        assert (answer.text, answer.finish_reason) == ("begun and done", "stop")
        check_books(answer, await stage.lines(answer.id))

    play(test, tmp_path, behave, answers=ON, continues=True)
