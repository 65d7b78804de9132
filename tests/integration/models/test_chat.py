"""A provider over real HTTP: what is sent, what comes back, what fails and how, and that a cancellation is heard."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from email.utils import formatdate
from pathlib import Path

import httpx
import pytest

from forerun.core.race_replicas import Fault
from forerun.core.tokens import Usage, estimated_tokens
from forerun.runtime.clock import SystemClock
from forerun.runtime.errors import ErrorReason
from forerun.runtime.models.catalogue import Provider
from forerun.runtime.models.chat import ChatCompletions
from forerun.runtime.models.errors import ModelError
from forerun.runtime.models.port import (
    Deadlines,
    Finished,
    FinishReason,
    Gathered,
    Message,
    ModelRequest,
    ToolCall,
)
from tests.integration.models.server import Behave, Exchange, ModelServer, forever, serving

QUESTION = ModelRequest(messages=(Message("user", "What is six times seven?"),), temperature=0.0, max_output_tokens=50)
Talk = Callable[[ChatCompletions, ModelServer], Awaitable[None]]


def run(behave: Behave, talk: Talk, *, secrets: Path | None = None, **provider: object) -> None:
    async def main() -> None:
        async with serving(behave) as (server,):
            given = replace(Provider(name="p", url=server.url, model="m"), **provider)  # type: ignore[arg-type]
            client = ChatCompletions(given, httpx.AsyncHTTPTransport(verify=False), secrets, SystemClock())
            try:
                async with asyncio.timeout(20):
                    await talk(client, server)
            finally:
                await client.close()

    asyncio.run(main())


async def ask(
    client: ChatCompletions, request: ModelRequest = QUESTION, deadlines: Deadlines | None = None
) -> Gathered:
    message = Gathered()
    async with contextlib.aclosing(client.generate(request, deadlines or Deadlines())) as events:
        async for event in events:
            message.add(event)
    return message


def fails(
    behave: Behave, reason: ErrorReason, fault: Fault, *, deadlines: Deadlines | None = None, **provider: object
) -> ModelError:
    caught: list[ModelError] = []

    async def talk(client: ChatCompletions, _: ModelServer) -> None:
        with pytest.raises(ModelError) as raised:
            await ask(client, deadlines=deadlines)
        caught.append(raised.value)

    run(behave, talk, **provider)  # type: ignore[arg-type]
    (error,) = caught
    assert (error.error.reason, error.failed.fault) == (reason, fault)
    return error


def test_a_request_is_streamed_with_its_usage_and_its_connection_is_used_again() -> None:
    async def talk(client: ChatCompletions, server: ModelServer) -> None:
        message = await ask(client)
        assert message.text == "It is forty two"
        assert message.finished == Finished(FinishReason.STOP, Usage(10, 5), "m-1")
        assert server.asked[0].body == {
            "model": "m", "messages": [{"role": "user", "content": "What is six times seven?"}], "stream": True,
            "stream_options": {"include_usage": True}, "max_tokens": 50, "temperature": 0.0,
        }  # fmt: skip
        await ask(client)
        assert (len(server.asked), server.connections) == (2, 1)

    run(lambda exchange: exchange.say("It is forty two"), talk)


def test_tool_calls_come_in_parts_and_tokens_are_estimated_where_nobody_counted() -> None:
    async def behave(exchange: Exchange) -> None:
        await exchange.head()
        for call in (
            {"index": 0, "id": "c1", "function": {"name": "look", "arguments": ""}},
            {"index": 0, "function": {"arguments": '{"id":'}},
            {"index": 0, "function": {"arguments": " 7}"}},
            {"index": 1, "id": "c2", "function": {"name": "list", "arguments": "{}"}},
        ):
            await exchange.event({"choices": [{"delta": {"tool_calls": [call]}}]})
        await exchange.end("tool_calls", usage=None)

    async def talk(client: ChatCompletions, server: ModelServer) -> None:
        request = replace(QUESTION, tools='[{"type": "function", "function": {"name": "look"}}]')
        message = await ask(client, request)
        assert message.tool_calls == (ToolCall("c1", "look", '{"id": 7}'), ToolCall("c2", "list", "{}"))
        assert server.asked[0].body["tools"] == [{"type": "function", "function": {"name": "look"}}]
        assert message.finished is not None
        assert (message.finished.reason, message.finished.usage) == (
            FinishReason.TOOL_CALLS,
            Usage(estimated_tokens(24 + len(request.tools)), 5, True),
        )

    run(behave, talk)


def test_a_provider_that_does_not_stream_is_read_whole() -> None:
    body = {
        "model": "m-1", "choices": [{"message": {"content": "42"}, "finish_reason": "length"}],
        "usage": {"prompt_tokens": 7, "completion_tokens": 1},
    }  # fmt: skip

    async def talk(client: ChatCompletions, _: ModelServer) -> None:
        message = await ask(client)
        assert (message.text, message.finished) == ("42", Finished(FinishReason.LENGTH, Usage(7, 1), "m-1"))

    run(lambda exchange: exchange.whole(200, body), talk)


@pytest.mark.parametrize("when", ["before anything", "after the head", "after a token"])
def test_a_cancelled_request_closes_its_connection_at_once(when: str) -> None:
    async def behave(exchange: Exchange) -> None:
        if when != "before anything":
            await exchange.head()
        if when == "after a token":
            await exchange.token("It")
        await forever(exchange)

    async def talk(client: ChatCompletions, server: ModelServer) -> None:
        task = asyncio.ensure_future(ask(client))
        await server.wait_for(lambda: len(server.asked) == 1)
        for _ in range(5):
            await asyncio.sleep(0)
        stopped_at = asyncio.get_running_loop().time()
        task.cancel()
        await server.wait_for(lambda: len(server.hang_ups) == 1)
        assert server.hang_ups[0] - stopped_at < 0.1
        with pytest.raises(asyncio.CancelledError):
            await task

    run(behave, talk)


def test_each_deadline_is_its_own_and_ends_the_request_at_the_provider() -> None:
    async def slow_end(exchange: Exchange) -> None:
        await exchange.head()
        await exchange.token("It")
        await forever(exchange)

    async def endless(exchange: Exchange) -> None:
        await exchange.head()
        while True:
            await exchange.token("more ")
            await asyncio.sleep(0.005)

    cases: list[tuple[Behave, Deadlines, str]] = [
        (forever, Deadlines(first_token=0.05), "first_token_seconds"),
        (slow_end, Deadlines(between_tokens=0.05), "between_tokens_seconds"),
        (endless, Deadlines(total=0.2), "timeout_seconds"),
    ]
    for behave, deadlines, which in cases:
        error = fails(behave, ErrorReason.MODEL_TIMEOUT, Fault.SLOW, deadlines=deadlines, max_output_tokens=100_000)
        assert error.error.metadata["limit"] == which


def test_a_reader_that_takes_its_time_is_no_slow_provider() -> None:
    async def talk(client: ChatCompletions, _: ModelServer) -> None:
        words = []
        async with contextlib.aclosing(client.generate(QUESTION, Deadlines(between_tokens=0.05))) as events:
            async for event in events:
                words.append(event)
                await asyncio.sleep(0.06)
        assert len(words) == 5

    run(lambda exchange: exchange.say("It is forty two"), talk)


@pytest.mark.parametrize(
    ("status", "reason", "fault"),
    [
        (400, ErrorReason.MODEL_REFUSED, Fault.REFUSED),
        (401, ErrorReason.MODEL_UNAUTHORIZED, Fault.REFUSED),
        (404, ErrorReason.MODEL_REFUSED, Fault.REFUSED),
        (429, ErrorReason.RATE_LIMITED, Fault.BUSY),
        (500, ErrorReason.MODEL_UNAVAILABLE, Fault.BROKEN),
        (503, ErrorReason.MODEL_UNAVAILABLE, Fault.BUSY),
        (302, ErrorReason.MODEL_REFUSED, Fault.REFUSED),
    ],
)
def test_statuses_are_typed_errors_that_repeat_nothing_of_the_conversation(
    status: int, reason: ErrorReason, fault: Fault
) -> None:
    said = {"error": {"code": "too_long", "message": "What is six times seven? is too long, said sk-secret"}}
    error = fails(lambda exchange: exchange.whole(status, said, {"location": "http://127.0.0.1:1/"}), reason, fault)
    assert error.error.metadata["http_status"] == str(status)
    assert "too_long" in error.error.message
    assert "six" not in error.error.message and "sk-secret" not in error.error.message


@pytest.mark.parametrize(
    ("name", "value", "seconds"),
    [
        ("retry-after", "7", 7.0),
        ("retry-after", "1.5", 1.5),
        ("retry-after-ms", "250", 0.25),
        ("retry-after", "Fri, 01 Jan 2021 00:00:00 GMT", 0.0),
    ],
)
def test_retry_after_is_understood_in_all_forms(name: str, value: str, seconds: float) -> None:
    error = fails(lambda one: one.whole(429, {}, {name: value}), ErrorReason.RATE_LIMITED, Fault.BUSY)
    assert error.failed.retry_after_seconds == pytest.approx(seconds)


def test_retry_after_is_understood_as_a_date() -> None:
    headers = {"retry-after": formatdate(SystemClock().now() + 3_600, usegmt=True)}
    error = fails(lambda one: one.whole(429, {}, headers), ErrorReason.RATE_LIMITED, Fault.BUSY)
    assert error.failed.retry_after_seconds == pytest.approx(3_600.0, abs=100.0)


@pytest.mark.parametrize("headers", [{}, {"retry-after": "soon"}, {"retry-after": "nan"}, {"retry-after": "inf"}])
def test_a_retry_after_that_says_nothing_is_none(headers: dict[str, str]) -> None:
    error = fails(lambda one: one.whole(429, {}, headers), ErrorReason.RATE_LIMITED, Fault.BUSY)
    assert error.failed.retry_after_seconds is None


@pytest.mark.parametrize(
    "events",
    [
        ["no json"], ["[1]"], [{"choices": "x"}], [{"choices": [{"delta": 7}]}],
        [{"choices": [{"delta": {"content": 7}}]}], [{"choices": [{"delta": {"tool_calls": [{"index": 5_000}]}}]}],
        [{"error": {"code": "overloaded"}}],
    ],
)  # fmt: skip
def test_what_is_no_completion_is_said_so(events: list[object]) -> None:
    async def behave(exchange: Exchange) -> None:
        await exchange.head()
        for one in events:
            await exchange.event(one)
        await exchange.close()

    fails(behave, ErrorReason.MODEL_PROTOCOL, Fault.BROKEN)


def test_an_answer_that_breaks_off_is_no_answer() -> None:
    async def no_end(exchange: Exchange) -> None:
        await exchange.head()
        await exchange.token("It")
        await exchange.close()

    async def cut(exchange: Exchange) -> None:
        await exchange.head()
        await exchange.token("It")
        exchange.writer.transport.abort()

    for behave in (no_end, cut):
        fails(behave, ErrorReason.MODEL_UNAVAILABLE, Fault.BROKEN)


def test_responses_are_bounded_in_bytes_and_in_tokens() -> None:
    async def endless(exchange: Exchange) -> None:
        await exchange.head()
        while True:
            await exchange.token("more ")

    async def one_line(exchange: Exchange) -> None:
        await exchange.head()
        while True:
            await exchange.raw(b"x" * 1000)

    error = fails(endless, ErrorReason.RESULT_TOO_LARGE, Fault.REFUSED, max_response_bytes=2_000)
    assert error.error.metadata["limit_bytes"] == "2000"
    fails(one_line, ErrorReason.RESULT_TOO_LARGE, Fault.REFUSED, max_response_bytes=20_000)

    async def talk(client: ChatCompletions, server: ModelServer) -> None:
        message = await ask(client)
        assert message.text == "more " * 8
        assert message.finished is not None and message.finished.reason is FinishReason.LENGTH
        await server.wait_for(lambda: len(server.hang_ups) == 1)

    run(endless, talk, max_output_tokens=8)


def test_nobody_listens() -> None:
    async def main() -> None:
        client = ChatCompletions(
            Provider(name="p", url="http://127.0.0.1:1/v1", model="m"),
            httpx.AsyncHTTPTransport(verify=False),
            None,
            SystemClock(),
        )
        with pytest.raises(ModelError) as raised:
            await ask(client)
        assert (raised.value.error.reason, raised.value.failed.fault) == (ErrorReason.MODEL_UNAVAILABLE, Fault.AWAY)
        assert not raised.value.failed.began
        await client.close()

    asyncio.run(main())


def test_secrets_go_by_name_are_read_for_each_request_and_are_in_no_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "key").write_text("sk-first\n")
    (tmp_path / "team").write_text("blue")

    async def talk(client: ChatCompletions, server: ModelServer) -> None:
        await ask(client)
        (tmp_path / "key").write_text("sk-second")
        await ask(client)
        assert [one.headers["authorization"] for one in server.asked] == ["Bearer sk-first", "Bearer sk-second"]
        assert server.asked[0].headers["x-team"] == "blue"
        (tmp_path / "key").unlink()
        with pytest.raises(ModelError) as raised:
            await ask(client)
        assert raised.value.error.metadata == {"provider": "p", "secret": "key"}
        for broken in ("sk-third\nline", "sk-thírd"):
            (tmp_path / "key").write_text(broken)
            with pytest.raises(ModelError, match="no header may have") as raised:
                await ask(client)
            assert (raised.value.failed.fault, raised.value.failed.began) == (Fault.REFUSED, False)
        assert len(server.asked) == 2

    with caplog.at_level(logging.DEBUG):
        run(
            lambda exchange: exchange.say("It is forty two"), talk, secrets=tmp_path, secret="key",
            headers=(("x-team", "secret:team"),),
        )  # fmt: skip
    assert "sk-" not in caplog.text and "blue" not in caplog.text


@pytest.mark.parametrize("delta", [{"content": "\ud83d"}, {"tool_calls": [{"function": {"arguments": "\ud83d"}}]}])
def test_half_of_a_surrogate_pair_is_what_the_provider_did_wrong(delta: dict[str, object]) -> None:
    async def behave(exchange: Exchange) -> None:
        await exchange.head()
        await exchange.event({"choices": [{"index": 0, "delta": delta}]})
        await exchange.end()

    async def talk(client: ChatCompletions, server: ModelServer) -> None:
        with pytest.raises(ModelError, match="no Unicode") as raised:
            await ask(client)
        assert (raised.value.error.reason, raised.value.failed.fault) == (ErrorReason.MODEL_PROTOCOL, Fault.BROKEN)

    run(behave, talk)


def test_an_answer_as_long_as_it_may_be_ends_with_the_words_of_its_provider() -> None:
    """The end and the bill come behind the last token, so that token must not be the last thing that is read."""

    async def behave(exchange: Exchange) -> None:
        await exchange.head()
        for _ in range(3):
            await exchange.token("x")
        await exchange.end("length", usage=(7, 3))

    async def talk(client: ChatCompletions, server: ModelServer) -> None:
        message = await ask(client, replace(QUESTION, max_output_tokens=3))
        assert message.text == "xxx"
        assert message.finished == Finished(FinishReason.LENGTH, Usage(7, 3), "m-1")

    run(behave, talk)
