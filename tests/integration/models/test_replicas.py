"""Requests over the replicas of a model, on real HTTP: second attempts, losers that are hung up on, retries, bills."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import httpx
import pytest

from forerun.core.race import Race
from forerun.core.tokens import TokenPrices, Usage
from forerun.runtime.clock import SystemClock
from forerun.runtime.errors import ErrorReason, ForerunError
from forerun.runtime.models.calling import ModelCall
from forerun.runtime.models.catalogue import Model, Provider
from forerun.runtime.models.chat import ChatCompletions
from forerun.runtime.models.models import CallTerms, Models
from forerun.runtime.models.port import Gathered, Message, ModelRequest
from tests.integration.models.server import Behave, Exchange, ModelServer, forever, serving

QUESTION = ModelRequest(messages=(Message("user", "What is six times seven?"),), temperature=0.0)
PRICES = TokenPrices(1_000_000.0, 2_000_000.0)  # 1 for a token of the prompt, 2 for a generated one


@dataclass
class Stage:
    """A model with its servers."""

    models: Models
    model: Model
    servers: tuple[ModelServer, ...]

    def knows_pace(self, seconds: float) -> None:
        """Enough requests were seen that a second attempt is due after so long, and may be sent."""
        pace = self.models.pace(self.model)
        pace.calls = 1_000
        for _ in range(100):
            pace.observe(seconds)

    async def ask(self, **terms: object) -> tuple[ModelCall, Gathered]:
        call = self.models.call(self.model, QUESTION, CallTerms(**terms))  # type: ignore[arg-type]
        message = Gathered()
        async with contextlib.aclosing(call.events()) as events:
            async for event in events:
                message.add(event)
        return call, message


Play = Callable[[Stage], Awaitable[None]]


def play(test: Play, *behaviours: Behave, race: Race | None = None) -> None:
    async def main() -> None:
        async with serving(*behaviours) as servers:
            providers = tuple(
                Provider(name=f"p{number}", url=server.url, model="m", prices=PRICES)
                for number, server in enumerate(servers)
            )
            models = Models.made_of(
                lambda one: ChatCompletions(one, httpx.AsyncHTTPTransport(verify=False), None, SystemClock())
            )
            model = Model("m", providers, race or Race())
            await models.adopt([model])
            try:
                async with asyncio.timeout(20):
                    await test(Stage(models, model, servers))
            finally:
                await models.endpoints.close()

    asyncio.run(main())


async def says_forty_two(exchange: Exchange) -> None:
    await exchange.say("forty two")


def test_a_straggler_is_answered_by_the_other_replica_and_hung_up_on_within_a_tenth_of_a_second() -> None:
    async def test(stage: Stage) -> None:
        stage.knows_pace(0.02)
        call, message = await stage.ask()
        answered_at = asyncio.get_running_loop().time()
        slow, fast = stage.servers
        await slow.wait_for(lambda: len(slow.hang_ups) == 1)
        assert slow.hang_ups[0] - answered_at < 0.1
        assert message.text == "forty two"
        assert (len(slow.asked), len(fast.asked), fast.hang_ups) == (1, 1, [])
        beaten, won = call.bills()
        assert (beaten.attempt.second, won.attempt.second, won.attempt.endpoint.provider.name) == (False, True, "p1")
        assert (won.usage, won.money) == (Usage(10, 5), 20.0)
        # Its prompt was read: as many tokens as the other one was told; nothing had come of it.
        assert (beaten.usage, beaten.money, beaten.attempt.stopped) == (Usage(10, 0, True), 10.0, True)
        assert call.raced and call.differs() is None
        assert all(one.endpoint.busy == 0 for one in call.attempts)

    play(test, forever, says_forty_two)


def test_a_request_that_is_fast_enough_or_may_not_be_repeated_is_sent_once() -> None:
    async def slowly(exchange: Exchange) -> None:
        await asyncio.sleep(0.1)
        await says_forty_two(exchange)

    async def test(stage: Stage) -> None:
        await stage.ask()
        stage.knows_pace(0.02)
        call, message = await stage.ask(repeatable=False)
        assert (message.text, call.raced) == ("forty two", False)
        call, _ = await stage.ask(races=False)
        assert not call.raced
        assert stage.servers[1].asked == []

    play(test, slowly, says_forty_two)


def test_a_cancelled_request_hangs_up_on_both_attempts() -> None:
    async def test(stage: Stage) -> None:
        stage.knows_pace(0.02)
        task = asyncio.ensure_future(stage.ask())
        for server in stage.servers:
            await server.wait_for(lambda server=server: len(server.asked) == 1)  # type: ignore[misc]
        task.cancel()
        stopped_at = asyncio.get_running_loop().time()
        for server in stage.servers:
            await server.wait_for(lambda server=server: len(server.hang_ups) == 1)  # type: ignore[misc]
            assert server.hang_ups[0] - stopped_at < 0.1
        with pytest.raises(asyncio.CancelledError):
            await task

    play(test, forever, forever)


def test_a_replica_that_fails_is_left_for_the_next_and_costs_what_it_had_read() -> None:
    async def broken(exchange: Exchange) -> None:
        exchange.writer.transport.abort()

    async def busy(exchange: Exchange) -> None:
        await exchange.whole(429, {}, {"retry-after": "600"})

    async def test(stage: Stage) -> None:
        call, message = await stage.ask()
        assert message.text == "forty two"
        assert [bill.money for bill in call.bills()] == [10.0, 0.0, 20.0]
        assert [one.error is None for one in call.attempts] == [False, False, True]

    play(test, broken, busy, says_forty_two)


def test_the_same_replica_is_asked_again_after_the_wait_that_it_asked_for() -> None:
    async def first_busy(exchange: Exchange) -> None:
        if exchange.number == 0:
            await exchange.whole(503, {}, {"retry-after-ms": "300"})
        else:
            await says_forty_two(exchange)

    async def test(stage: Stage) -> None:
        began = asyncio.get_running_loop().time()
        _, message = await stage.ask()
        assert message.text == "forty two"
        assert asyncio.get_running_loop().time() - began >= 0.3
        assert len(stage.servers[0].asked) == 2

    play(test, first_busy)


def test_a_retry_that_would_come_too_late_is_not_waited_for() -> None:
    async def busy(exchange: Exchange) -> None:
        await exchange.whole(429, {}, {"retry-after": "600"})

    async def test(stage: Stage) -> None:
        loop = asyncio.get_running_loop()
        with pytest.raises(ForerunError) as raised:
            await stage.ask(deadline=loop.time() + 5.0)
        assert raised.value.reason is ErrorReason.RATE_LIMITED
        assert raised.value.retry_after_seconds == 600.0

    play(test, busy)


def test_what_has_sent_a_token_is_never_begun_again() -> None:
    async def breaks_off(exchange: Exchange) -> None:
        await exchange.head()
        await exchange.token("for")
        exchange.writer.transport.abort()

    async def test(stage: Stage) -> None:
        with pytest.raises(ForerunError) as raised:
            await stage.ask()
        assert raised.value.reason is ErrorReason.MODEL_UNAVAILABLE
        assert stage.servers[1].asked == []

    play(test, breaks_off, says_forty_two)


def test_the_time_of_the_whole_request_bounds_each_attempt() -> None:
    async def test(stage: Stage) -> None:
        with pytest.raises(ForerunError) as raised:
            await stage.ask(deadline=asyncio.get_running_loop().time() + 0.1)
        assert raised.value.reason is ErrorReason.MODEL_TIMEOUT
        server = stage.servers[0]
        await server.wait_for(lambda: len(server.hang_ups) == 1)

    play(test, forever)
