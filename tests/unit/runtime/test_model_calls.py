"""Requests over replicas whose providers do what a test says, in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import replace

import pytest

from forerun.core.race import Race
from forerun.core.race_replicas import Fault
from forerun.core.tokens import Usage
from forerun.runtime.clock import Clock
from forerun.runtime.errors import Bug, DeadlineExceeded, ErrorReason, ForerunError, Unavailable
from forerun.runtime.ids import Ids
from forerun.runtime.models.calling import ModelCall
from forerun.runtime.models.catalogue import Model, Provider
from forerun.runtime.models.errors import ModelError, broken
from forerun.runtime.models.models import CallTerms, Models
from forerun.runtime.models.port import (
    Deadlines,
    Finished,
    FinishReason,
    Gathered,
    Message,
    ModelEvent,
    ModelRequest,
    TextDelta,
)
from forerun.runtime.virtual import run_virtual

END = Finished(FinishReason.STOP, Usage(10, 5))
Script = Callable[[ModelRequest], AsyncGenerator[ModelEvent, None]]


class Scripted:
    """A provider that plays a script."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.asked = 0
        self.closed_early = 0

    async def generate(self, request: ModelRequest, deadlines: Deadlines) -> AsyncGenerator[ModelEvent, None]:
        self.asked += 1
        try:
            async with contextlib.aclosing(self.script(request)) as events:
                async for event in events:
                    yield event
        except (GeneratorExit, asyncio.CancelledError):
            self.closed_early += 1
            raise

    async def close(self) -> None:
        pass


def says(text: str, *, after: float = 0.0, between: float = 0.0) -> Script:
    async def script(_: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        await asyncio.sleep(after)
        for word in text.split():
            yield TextDelta(word + " ")
            await asyncio.sleep(between)
        yield END

    return script


def fails(error: Exception, *, after: float = 0.0) -> Script:
    async def script(_: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        await asyncio.sleep(after)
        if after >= 0.0:
            raise error
        yield END

    return script


def request(temperature: float | None = 0.0) -> ModelRequest:
    return ModelRequest(messages=(Message("user", "hello"),), temperature=temperature)


def play(test: Callable[[Models, Model], Awaitable[None]], *scripts: Script, concurrency: int = 8) -> list[Scripted]:
    ports = {f"p{number}": Scripted(script) for number, script in enumerate(scripts)}

    async def main(clock: Clock, ids: Ids) -> None:
        models = Models.made_of(lambda provider: ports[provider.name])
        providers = tuple(Provider(name=name, url="http://x/v1", model="m", concurrency=concurrency) for name in ports)
        model = Model("m", providers, Race())
        await models.adopt([model])
        pace = models.pace(model)
        pace.calls = 10_000
        for _ in range(100):
            pace.observe(1.0)
        await test(models, model)

    run_virtual(main, epoch=1_700_000_000.0, seed=1)
    return list(ports.values())


async def read(call: ModelCall) -> Gathered:
    message = Gathered()
    async with contextlib.aclosing(call.events()) as events:
        async for event in events:
            message.add(event)
    return message


@pytest.mark.parametrize(
    ("second", "temperature", "differs"),
    [("the answer is 42", 0.0, False), ("an answer is 42", 0.0, True), ("an answer is 42", 0.7, None)],
)
def test_attempts_that_answer_at_once_are_compared_only_where_equal_replicas_have_to_be_equal(
    second: str, temperature: float, differs: bool | None
) -> None:
    async def test(models: Models, model: Model) -> None:
        call = models.call(model, request(temperature), CallTerms())
        message = await read(call)
        assert call.raced
        assert len([one for one in call.attempts if one.message.text]) == 2, "both had sent something"
        assert message.text in ("the answer is 42 ", f"{second} ")
        assert call.differs() is differs

    # The second starts after 1.05 s, so that both send their first words in the same moment.
    play(test, says("the answer is 42", after=1.5, between=0.1), says(second, after=0.45, between=0.1))


def test_a_beaten_attempt_without_a_word_is_not_compared() -> None:
    async def test(models: Models, model: Model) -> None:
        call = models.call(model, request(), CallTerms())
        await read(call)
        assert (call.raced, call.differs()) == (True, None)

    first, second = play(test, says("one", after=100.0), says("two"))
    assert (first.closed_early, second.closed_early) == (1, 0)


def test_a_reader_that_leaves_closes_what_runs() -> None:
    async def test(models: Models, model: Model) -> None:
        call = models.call(model, request(), CallTerms())
        async with contextlib.aclosing(call.events()) as events:
            async for _ in events:
                break
        assert call.answered is None
        (bill,) = call.bills()
        assert bill.attempt.stopped and bill.usage.estimated and bill.usage.output_tokens > 0

    (port,) = play(test, says("one two three", between=1.0))
    assert port.closed_early == 1


def test_a_slow_reader_holds_the_provider_back_within_a_bound() -> None:
    sent = 0

    async def endless(_: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        nonlocal sent
        while True:
            sent += 1
            yield TextDelta("x")

    async def test(models: Models, model: Model) -> None:
        call = models.call(model, request(), CallTerms())
        async with contextlib.aclosing(call.events()) as events:
            await anext(events)
            await asyncio.sleep(10.0)
        assert sent < 100

    play(test, endless)


def test_waiting_for_a_place_ends_with_the_request_and_costs_nothing() -> None:
    async def test(models: Models, model: Model) -> None:
        loop = asyncio.get_running_loop()
        busy = asyncio.create_task(read(models.call(model, request(), CallTerms())))
        await asyncio.sleep(0.1)
        began = loop.time()
        call = models.call(model, request(), CallTerms(deadline=began + 2.0))
        with pytest.raises(DeadlineExceeded, match="had no place for 2 s") as raised:
            await read(call)
        assert loop.time() - began == pytest.approx(2.0)
        assert raised.value.metadata["limit"] == "timeout_seconds"
        assert [bill.usage for bill in call.bills()] == [Usage()], "nothing was sent"
        assert (await busy).text == "one "

    (port,) = play(test, says("one", after=10.0), concurrency=1)
    assert port.asked == 1


def test_what_was_stopped_is_estimated_at_no_more_tokens_than_it_was_allowed() -> None:
    async def test(models: Models, model: Model) -> None:
        call = models.call(model, replace(request(), max_output_tokens=5), CallTerms())
        async with contextlib.aclosing(call.events()) as events:
            async for _ in events:
                break
        (bill,) = call.bills()
        assert (bill.usage.output_tokens, bill.usage.estimated) == (5, True)

    play(test, says("long" * 100, between=1.0))


def test_a_defect_of_a_client_is_an_error_and_no_silence() -> None:
    async def test(models: Models, model: Model) -> None:
        with pytest.raises(Bug) as raised:
            await read(models.call(model, request(), CallTerms()))
        assert raised.value.reason is ErrorReason.INTERNAL

    play(test, fails(ZeroDivisionError()))


def test_who_fails_while_the_provider_is_left_alone_hears_when_to_come_back() -> None:
    async def test(models: Models, model: Model) -> None:
        told = []
        for _ in range(6):
            with pytest.raises(Unavailable) as raised:
                await read(models.call(model, request(), CallTerms()))
            told.append(raised.value.retry_after_seconds)
        assert told[0] is None, "its retries are over, and the next request has as many"
        assert told[-1] is not None and 0.0 < told[-1] <= 1.0

    def failing(_: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        return fails(broken("p0", "closed"))(request())

    play(test, failing)


def test_a_speculative_request_is_not_sent_where_guesses_keep_failing_and_the_real_one_is() -> None:
    async def test(models: Models, model: Model) -> None:
        for _ in range(20):
            with pytest.raises(ForerunError):
                await read(models.call(model, request(), CallTerms(speculative=True)))
        with pytest.raises(Unavailable, match="keep failing"):
            await read(models.call(model, request(), CallTerms(speculative=True)))
        asked = ports_asked(models, model)
        with pytest.raises(Unavailable, match="closed"):
            await read(models.call(model, request(), CallTerms()))
        assert (asked, ports_asked(models, model)) == (5, 8), "five guesses; one request and its two retries"

    def ports_asked(models: Models, model: Model) -> int:
        port = models.endpoints.of(model.providers[0]).port
        assert isinstance(port, Scripted)
        return port.asked

    play(test, fails(broken("p0", "closed")))


def test_errors_say_what_they_mean_for_a_repetition() -> None:
    error = ModelError(Unavailable(ErrorReason.MODEL_UNAVAILABLE, "x", retry_after_seconds=3.0), Fault.BUSY)
    assert (error.failed.fault, error.failed.retry_after_seconds, error.failed.began) == (Fault.BUSY, 3.0, False)
