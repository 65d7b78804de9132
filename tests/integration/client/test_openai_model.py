"""Models behind an OpenAI-compatible endpoint: what is sent, what is read, and every way in which a server fails."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest

from forerun.cli.credentials.certificates import issue, new_authority
from forerun.client import InvalidRequest
from forerun.client.compiler import ModelError, ModelMessage, ModelPiece, ModelRequest, OpenAiModel, Usage

NOW = 1_700_000_000.0
REQUEST = ModelRequest([ModelMessage("system", "plan"), ModelMessage("user", "é 1?")], 50, ("<END>",))
HEAD = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"

Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Server:
    """Answers each request with the same script, and keeps what it was asked."""

    answer: Answer
    port: int = 0
    heads: list[list[str]] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    hung_up: asyncio.Event = field(default_factory=asyncio.Event)
    running: set[asyncio.Task[Any]] = field(default_factory=set)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.running.add(task)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            length = next(int(line.split(":")[1]) for line in head if line.lower().startswith("content-length"))
            self.heads.append(head)
            self.bodies.append(json.loads(await reader.readexactly(length)))
            await self.answer(writer)
            if not writer.is_closing() and await reader.read(1) == b"":
                self.hung_up.set()
        except (OSError, EOFError):
            self.hung_up.set()
        finally:
            writer.transport.abort()
            self.running.discard(task)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def model(self, **more: Any) -> OpenAiModel:
        return OpenAiModel(self.url, "a-model", wall=lambda: NOW, **more)


@asynccontextmanager
async def serving(answer: Answer, tls: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    made = Server(answer)
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0, ssl=tls)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        for task in list(made.running):
            task.cancel()
        await asyncio.gather(*made.running, return_exceptions=True)
        await server.wait_closed()


def says(*parts: bytes, then: str = "close") -> Answer:
    """Writes parts one after the other, each in a packet of its own; then closes, resets or hangs."""

    async def answer(writer: asyncio.StreamWriter) -> None:
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0)
        if then == "close":
            writer.close()
        elif then == "reset":
            writer.transport.abort()

    return answer


def event(text: str = "", finish: str | None = None, **more: Any) -> bytes:
    choice = {"index": 0, "delta": {"content": text} if text else {}, "finish_reason": finish}
    return b"data: " + json.dumps({"id": "x", "choices": [choice], **more}).encode() + b"\n\n"


def chunked(*parts: bytes) -> bytes:
    return b"".join(b"%x;ext=1\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\nTrailer: x\r\n\r\n"


STOP = event(finish="stop")
USAGE = b'data: {"choices": [], "usage": {"prompt_tokens": 12, "completion_tokens": 3}}\n\n'
DONE = b"data: [DONE]\n\n"
EVENTS = (event("Hel"), b": alive\n\n", event("lo é"), STOP, USAGE, DONE)


async def read(model: OpenAiModel) -> list[ModelPiece]:
    async with asyncio.timeout(20):
        return [piece async for piece in model(REQUEST)]


async def failure(model: OpenAiModel) -> ModelError:
    with pytest.raises(ModelError) as caught:
        await read(model)
    return caught.value


def text_of(pieces: list[ModelPiece]) -> str:
    return "".join(piece.text for piece in pieces)


@pytest.mark.parametrize(
    "body",
    [
        HEAD.encode() + b"\r\n" + b"".join(EVENTS),
        HEAD.encode() + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(*EVENTS),
        HEAD.encode() + b"Content-Length: %d\r\n\r\n" % len(b"".join(EVENTS)) + b"".join(EVENTS),
    ],
    ids=["until the end", "chunked", "counted"],
)
@pytest.mark.parametrize("size", [1, 7, 100_000])
async def test_a_streamed_answer_is_read_in_every_form(body: bytes, size: int) -> None:
    async with serving(says(*[body[start : start + size] for start in range(0, len(body), size)])) as server:
        pieces = await read(server.model(api_key="secret", headers={"x-team": "a"}, options={"temperature": 0}))
    assert text_of(pieces) == "Hello é"
    assert [piece.finish_reason for piece in pieces if piece.finish_reason] == ["stop"]
    assert pieces[-1].usage == Usage(12, 3)
    head = [line.lower() for line in server.heads[0]]
    assert head[0] == "post /v1/chat/completions http/1.1"
    assert {"authorization: bearer secret", "x-team: a", f"host: 127.0.0.1:{server.port}"} <= set(head)
    assert server.bodies == [
        {
            "model": "a-model",
            "messages": [{"role": "system", "content": "plan"}, {"role": "user", "content": "é 1?"}],
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": 50,
            "stop": ["<END>"],
            "temperature": 0,
        }
    ]


async def test_a_server_that_does_not_stream() -> None:
    content = json.dumps(
        {
            "choices": [{"message": {"role": "assistant", "content": "Hello"}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 2},
        }
    ).encode()
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
    async with serving(says(head.encode(), content)) as server:
        model = server.model(options={"max_tokens": None, "max_completion_tokens": 9, "stream_options": None})
        assert await read(model) == [ModelPiece("Hello", "stop", Usage(1, 2))]
        assert "max_tokens" not in server.bodies[0] and server.bodies[0]["max_completion_tokens"] == 9
        assert "stream_options" not in server.bodies[0]


@pytest.mark.parametrize("usage", ["[-5, 1]", "[1, -5]", "[true, 1]", "[1.5, 1]", '["1", 1]'])
async def test_a_bill_that_is_none_is_not_taken(usage: str) -> None:
    prompt, completion = json.loads(usage)
    bill = {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion}}
    parts = (event("a"), STOP, f"data: {json.dumps(bill)}\n\n".encode(), DONE)
    async with serving(says(HEAD.encode() + b"\r\n", *parts)) as server:
        assert [piece.usage for piece in await read(server.model())] == [None] * 3


async def test_pieces_come_while_the_answer_streams_and_whoever_stops_reading_hangs_up() -> None:
    async with serving(says(HEAD.encode() + b"\r\n", event("a"), event("b"), then="hang")) as server:
        async with asyncio.timeout(20), aclosing(server.model()(REQUEST)) as pieces:
            assert (await anext(pieces)).text == "a"
            assert (await anext(pieces)).text == "b"
        async with asyncio.timeout(20):
            await server.hung_up.wait()


async def test_cancelling_hangs_up() -> None:
    async with serving(says(HEAD.encode() + b"\r\n", event("a"), then="hang")) as server:
        reading = asyncio.ensure_future(read(server.model()))
        async with asyncio.timeout(20):
            while not server.bodies:  # noqa: ASYNC110  (the server's state)
                await asyncio.sleep(0.01)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
            await server.hung_up.wait()


@pytest.mark.parametrize("then", ["close", "reset"])
@pytest.mark.parametrize(
    "parts",
    [
        [HEAD.encode() + b"\r\n", event("Hello wor")],
        [HEAD.encode() + b"Transfer-Encoding: chunked\r\n\r\n", b"40\r\n" + event("Hello wor")],
        [HEAD.encode() + b"Content-Length: 99999\r\n\r\n", event("Hello wor")],
        [HEAD.encode() + b"\r\n", event("Hello wor"), b'data: {"error": {"message": "overloaded"}}\n\n', DONE],
    ],
    ids=["until the end", "chunked", "counted", "error"],
)
async def test_a_server_that_dies_amid_its_answer(parts: list[bytes], then: str) -> None:
    async with serving(says(*parts, then=then)) as server:
        error = await failure(server.model())
    assert (error.reason, error.transient, error.billed) == ("MODEL_BROKEN_OFF", True, True)


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ([HEAD.encode() + b"\r\n", b"data: Hello\n\n"], "MODEL_PROTOCOL"),
        ([HEAD.encode() + b"\r\n", b"data: [1]\n\n"], "MODEL_PROTOCOL"),
        ([HEAD.encode() + b"\r\n", b"data: {}\n\n"], "MODEL_PROTOCOL"),
        ([HEAD.encode() + b"\r\n", b"data: " + b"[" * 100_000 + b"\n\n"], "MODEL_PROTOCOL"),
        ([HEAD.encode() + b"\r\n", b"data: \xff\xfe\n\n"], "MODEL_PROTOCOL"),
        ([HEAD.encode() + b"\r\n", b"data: " + b"x" * 1_100_000], "MODEL_PROTOCOL"),
        ([b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n", b"<html>"], "MODEL_PROTOCOL"),
        ([HEAD.encode() + b"Transfer-Encoding: chunked\r\n\r\n", b"zz\r\n"], "MODEL_BROKEN_OFF"),
        ([HEAD.encode() + b"Transfer-Encoding: chunked\r\n\r\n", b"2\r\nabcdef\r\n"], "MODEL_BROKEN_OFF"),
        ([HEAD.encode() + b"Content-Length: -5\r\n\r\n"], "MODEL_BROKEN_OFF"),
        ([b"SSH-2.0-OpenSSH\r\n\r\n"], "MODEL_BROKEN_OFF"),
        ([b"HTTP/1.1 200 OK\r\n" + b"x: " + b"y" * 70_000 + b"\r\n\r\n"], "MODEL_BROKEN_OFF"),
        ([b"HTTP/1.1 200 OK\r\n" + b"".join(b"x%d: y\r\n" % n for n in range(300)) + b"\r\n"], "MODEL_BROKEN_OFF"),
        ([b"HTTP/1.1 abc\r\n\r\n"], "MODEL_BROKEN_OFF"),
        ([b""], "MODEL_BROKEN_OFF"),
    ],
)
async def test_garbage(parts: list[bytes], reason: str) -> None:
    async with serving(says(*parts)) as server:
        error = await failure(server.model())
    assert (error.reason, error.transient) == (reason, True)


@pytest.mark.parametrize(
    ("status", "headers", "reason", "transient", "retry_after"),
    [
        (429, "Retry-After: 7", "MODEL_RATE_LIMITED", True, 7.0),
        (429, f"Retry-After: {formatdate(NOW + 90, usegmt=True)}", "MODEL_RATE_LIMITED", True, 90.0),
        (429, "retry-after-ms: 1500", "MODEL_RATE_LIMITED", True, 1.5),
        (503, "Retry-After: 120", "MODEL_UNAVAILABLE", True, 120.0),
        (500, "x: y", "MODEL_UNAVAILABLE", True, None),
        (529, "x: y", "MODEL_UNAVAILABLE", True, None),
        (400, "x: y", "MODEL_REFUSED", False, None),
        (401, "x: y", "MODEL_REFUSED", False, None),
        (307, "location: http://elsewhere/", "MODEL_REFUSED", False, None),
    ],
)
async def test_a_server_that_refuses(
    status: int, headers: str, reason: str, transient: bool, retry_after: float | None
) -> None:
    said = b'{"error": {"message": "you said: my secret", "type": "overloaded_error"}}'
    head = f"HTTP/1.1 {status} Sorry\r\n{headers}\r\nContent-Length: {len(said)}\r\n\r\n"
    async with serving(says(head.encode(), said)) as server:
        error = await failure(server.model())
    assert (error.reason, error.transient, error.retry_after_seconds) == (reason, transient, retry_after)
    assert error.billed is False
    assert error.message == f"the model's server answered {status} (overloaded_error)"
    assert "my secret" in error.said and "my secret" not in str(error)


async def test_a_server_that_is_not_there(unused_tcp_port: int) -> None:
    error = await failure(OpenAiModel(f"http://127.0.0.1:{unused_tcp_port}/v1", "m"))
    assert (error.reason, error.transient, error.billed) == ("MODEL_UNAVAILABLE", True, False)
    assert "127.0.0.1" in error.message


async def test_a_connection_is_encrypted_and_the_server_has_to_be_the_one_that_is_named(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    authority = new_authority(now)
    served = issue(authority, ["127.0.0.1"], now)
    (tmp_path / "pair.pem").write_bytes(served.certificate + served.key)
    server_side = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server_side.load_cert_chain(tmp_path / "pair.pem")
    trusting = ssl.create_default_context(cadata=authority.certificate.decode())
    async with serving(says(HEAD.encode() + b"\r\n", *EVENTS), server_side) as server:
        url = server.url.replace("http:", "https:")
        assert text_of(await read(OpenAiModel(url, "m", tls=trusting))) == "Hello é"
        assert len(server.heads) == 1
        for model in (OpenAiModel(url, "m"), OpenAiModel(url.replace("127.0.0.1", "localhost"), "m", tls=trusting)):
            error = await failure(model)
            assert (error.reason, error.billed) == ("MODEL_UNAVAILABLE", False)
        assert len(server.heads) == 1, "nothing is said to a server that cannot prove who it is"


async def test_a_server_without_tls_is_not_taken_for_one_with_it() -> None:
    async with serving(says(b"", then="hang")) as server:
        error = await failure(OpenAiModel(server.url.replace("http:", "https:"), "m", connect_timeout_seconds=5.0))
        assert (error.reason, error.billed) == ("MODEL_UNAVAILABLE", False)
        assert server.heads == [], "no key was sent in the clear"


@pytest.mark.parametrize("more", [{"api_key": "a\r\nx: y"}, {"headers": {"x": "é"}}, {"headers": {"x\n": "y"}}])
def test_headers_that_cannot_be_sent(more: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        OpenAiModel("http://127.0.0.1:1/v1", "m", **more)
