"""Connections to tools, over real sockets."""

from __future__ import annotations

import asyncio
import gzip
import shutil
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from forerun.sandbox.connectors.answers import Answers
from forerun.sandbox.connectors.connections import Connections


@dataclass
class Server:
    """Answers each request of a connection with the next of some raw answers, and keeps what it was asked."""

    answers: list[bytes]
    hang_up: bool = False
    port: int = 0
    connections: int = 0
    requests: list[bytes] = field(default_factory=list)
    writers: list[asyncio.StreamWriter] = field(default_factory=list)
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writers.append(writer)
        try:
            while self.answers:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0] or 0)
                self.requests.append(head + await reader.readexactly(length))
                writer.write(self.answers.pop(0))
                await writer.drain()
                if self.hang_up:
                    break
            else:
                await reader.read()
        except asyncio.IncompleteReadError:
            pass
        finally:
            self.gone.set()
            writer.close()


@asynccontextmanager
async def serving(*answers: bytes, hang_up: bool = False, tls: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    served = Server(list(answers), hang_up)
    server = await asyncio.start_server(served.serve, "127.0.0.1", 0, ssl=tls)
    served.port = server.sockets[0].getsockname()[1]
    try:
        yield served
    finally:
        for writer in served.writers:
            writer.close()
        server.close()


@asynccontextmanager
async def connecting(most: int = 4, idle_most: int = 4, idle_seconds: float = 60.0) -> AsyncIterator[Connections]:
    connections = Connections(most=most, idle_most=idle_most, idle_seconds=idle_seconds)
    try:
        yield connections
    finally:
        await connections.aclose()


async def ask(connections: Connections, port: int, content: bytes = b"", method: str = "POST") -> bytes:
    request = httpx.Request(method, f"http://127.0.0.1:{port}/x?y=1", content=content)
    response = await connections.handle_async_request(request)
    try:
        return await response.aread()
    finally:
        await response.aclose()


def ok(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body


async def test_a_connection_is_used_again() -> None:
    async with serving(ok(b"one"), ok(b"two")) as server, connecting() as connections:
        assert await ask(connections, server.port, b"abc") == b"one"
        assert await ask(connections, server.port) == b"two"
        assert server.connections == 1
    assert server.requests[0].startswith(b"POST /x?y=1 HTTP/1.1\r\n") and server.requests[0].endswith(b"\r\n\r\nabc")
    assert b"Host: 127.0.0.1:%d\r\n" % server.port in server.requests[0]


async def test_bodies_come_whole_in_every_form() -> None:
    large = bytes(range(256)) * 8_192  # 2 MiB: more than is read ahead
    chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    packed = gzip.compress(b"packed")
    zipped = b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(packed) + packed
    early = b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n"
    async with serving(ok(large), chunked, zipped, early + ok(b"late")) as server, connecting() as connections:
        assert await ask(connections, server.port) == large
        assert await ask(connections, server.port) == b"abcde"
        assert await ask(connections, server.port) == b"packed"
        assert await ask(connections, server.port) == b"late"
        assert server.connections == 1
    until_the_end = b"HTTP/1.1 200 OK\r\n\r\nuntil the end"
    async with serving(until_the_end, hang_up=True) as server, connecting() as connections:
        assert await ask(connections, server.port) == b"until the end"


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\ncontent-length:  4 \n\nfine",
        b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\ntransfer-encoding: chunked\r\n\r\n4\r\nfine\r\n0\r\nx: y\r\n\r\n",
        b"HTTP/1.1 200\r\na: b\r\n c\r\nupgrade: h2c\r\nconnection: upgrade\r\ncontent-length: 4\r\n\r\nfine",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nfine",
    ],
    ids=["lines that end with LF", "a length beside chunks", "a folded header", "interim answers"],
)
async def test_what_servers_do_is_understood_also_in_pieces(answer: bytes) -> None:
    async with serving(answer, ok(b"next")) as server, connecting() as connections:
        assert [await ask(connections, server.port) for _ in range(2)] == [b"fine", b"next"]
        assert server.connections == 1
    answers = Answers()
    answers.expect("GET")
    for at in range(len(answer)):
        assert not answers.complete
        answers.feed(answer[at : at + 1])
    assert (answers.complete, answers.reusable, b"".join(answers.parts)) == (True, True, b"fine")
    assert answers.head is not None and answers.head.status == 200
    assert all(value == value.strip() for _, value in answers.head.headers)


@pytest.mark.parametrize(
    ("answer", "method", "body"),
    [
        (b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 3\r\n\r\nbye", "GET", b"bye"),
        (b"HTTP/1.0 200 OK\r\ncontent-length: 3\r\n\r\nbye", "GET", b"bye"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n", "HEAD", b""),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nbye and no HTTP", "GET", b"bye"),
    ],
    ids=["it says so", "it is of an old version", "it has no content", "more came"],
)
async def test_a_connection_that_may_not_be_used_again_is_not(answer: bytes, method: str, body: bytes) -> None:
    async with serving(answer, ok(b"two")) as server, connecting() as connections:
        assert await ask(connections, server.port, method=method) == body
        assert await ask(connections, server.port) == b"two"
        assert server.connections == 2


@pytest.mark.parametrize("status", [204, 304])
async def test_an_answer_without_content_leaves_the_connection(status: int) -> None:
    answer = b"HTTP/1.1 %d None\r\n\r\n" % status
    async with serving(answer, ok(b"two")) as server, connecting() as connections:
        assert [await ask(connections, server.port) for _ in range(2)] == [b"", b"two"]
        assert server.connections == 1


async def test_the_length_of_a_request_is_its_own_whatever_headers_say() -> None:
    async with serving(ok(b"one"), ok(b"two")) as server, connecting() as connections:
        for headers in ({"content-length": "1"}, {"transfer-encoding": "chunked"}):
            url = f"http://127.0.0.1:{server.port}/"
            response = await connections.handle_async_request(
                httpx.Request("POST", url, headers=headers, stream=httpx.ByteStream(b"abc"))
            )
            await response.aread()
            await response.aclose()
        assert server.connections == 1
    for request in server.requests:
        assert request.endswith(b"\r\nContent-Length: 3\r\n\r\nabc") and b"chunked" not in request


async def test_a_connection_that_was_closed_while_idle_is_not_used() -> None:
    async with serving(ok(b"one"), ok(b"two"), hang_up=True) as server, connecting() as connections:
        assert await ask(connections, server.port) == b"one"
        await server.gone.wait()
        await asyncio.sleep(0.01)  # until the goodbye is there, which gives no event on this side
        assert await ask(connections, server.port) == b"two"
        assert server.connections == 2


async def test_what_nobody_asked_for_is_never_an_answer() -> None:
    async with serving(ok(b"one") + ok(b"unasked"), ok(b"two")) as server, connecting() as connections:
        assert await ask(connections, server.port) == b"one"
        assert await ask(connections, server.port) == b"two"
        assert server.connections == 2
    async with serving(ok(b"one"), ok(b"two")) as server, connecting() as connections:
        assert await ask(connections, server.port) == b"one"
        server.writers[0].write(ok(b"unasked"))
        await asyncio.sleep(0.01)
        assert await ask(connections, server.port) == b"two"
        assert server.connections == 2


async def test_idle_connections_are_few_and_short_lived() -> None:
    async with serving(*[ok(b"x")] * 3) as server, connecting(idle_most=0) as connections:
        for _ in range(2):
            await ask(connections, server.port)
        assert server.connections == 2
    async with serving(*[ok(b"x")] * 3) as server, connecting(idle_seconds=0.0) as connections:
        for _ in range(2):
            await ask(connections, server.port)
        assert server.connections == 2


async def test_more_requests_than_connections_wait() -> None:
    async with serving(*[ok(b"x")] * 9) as server, connecting(most=2) as connections:
        assert await asyncio.gather(*(ask(connections, server.port) for _ in range(9))) == [b"x"] * 9
        assert server.connections <= 2


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n4\r\nhalf\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\na: \0\r\ncontent-length: 4\r\n\r\nhalf",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\nhalf",
        b"HTTP/1.1 200 OK\r\na: " + b"x" * 400_000 + b"\r\ncontent-length: 4\r\n\r\nhalf",
        b"HTTP/1.1 103 Early Hints\r\n\r\n" * 20_000 + b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nhalf",
        b"no http at all\r\n\r\n",
    ],
    ids=len,
)
async def test_half_an_answer_is_none(answer: bytes) -> None:
    async with serving(answer, hang_up=True) as server, connecting() as connections:
        with pytest.raises(httpx.RemoteProtocolError):
            await ask(connections, server.port)
        assert await asyncio.wait_for(server.gone.wait(), 5)


async def test_whoever_leaves_in_the_middle_hangs_up() -> None:
    async with (
        serving(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf") as server,
        connecting(most=1) as connections,
    ):
        request = httpx.Request("GET", f"http://127.0.0.1:{server.port}/")
        response = await connections.handle_async_request(request)
        await response.aclose()
        await response.aclose()
        async with asyncio.timeout(5):
            await server.gone.wait()
    async with serving(ok(b"its place is free")) as server:
        assert await ask(connections, server.port) == b"its place is free"


async def test_what_does_not_connect_was_certainly_not_sent() -> None:
    async with serving() as server:
        pass
    async with connecting(most=1) as connections:
        for _ in range(2):
            with pytest.raises(httpx.ConnectError):
                await ask(connections, server.port)
        request = httpx.Request("GET", "http://127.0.0.1:1/", extensions={"timeout": {"connect": 0.0}})
        with pytest.raises(httpx.ConnectTimeout):
            await connections.handle_async_request(request)
        with pytest.raises(httpx.UnsupportedProtocol):
            await connections.handle_async_request(httpx.Request("GET", "ftp://127.0.0.1/"))
        with pytest.raises(httpx.LocalProtocolError):
            async with serving(ok(b"x")) as server:
                url = f"http://127.0.0.1:{server.port}/"
                await connections.handle_async_request(httpx.Request("GET", url, headers={"a": "b\r\nc: d"}))
        for headers in ({"a b": "c"}, {"a": "b\0"}, {"a": " b"}, {"": "b"}):
            await refused(connections, httpx.Request("GET", HTTP, headers=headers))
        await refused(connections, httpx.Request("GET /x HTTP/1.1\r\na: b", HTTP))
        unquoted = httpx.Request("GET", HTTP)
        unquoted.url = Unquoted(HTTP)
        await refused(connections, unquoted)


HTTP = "http://127.0.0.1/"


class Unquoted(httpx.URL):
    """An address that httpx would not make."""

    @property
    def raw_path(self) -> bytes:
        return b"/x y"


async def refused(connections: Connections, request: httpx.Request) -> None:
    async with serving(ok(b"x")) as server:
        request.url = type(request.url)(request.url.copy_with(port=server.port))
        with pytest.raises(httpx.LocalProtocolError):
            await connections.handle_async_request(request)
        assert not server.requests


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl here to make a certificate")
async def test_a_server_proves_its_name_also_when_it_is_reached_by_its_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)]
    made = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.DEVNULL)
    assert await made.wait() == 0
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    async with serving(ok(b"one"), ok(b"two"), tls=context) as server, connecting() as connections:

        async def named(name: str) -> bytes:
            extensions = {"sni_hostname": name}
            request = httpx.Request("GET", f"https://127.0.0.1:{server.port}/", extensions=extensions)
            response = await connections.handle_async_request(request)
            try:
                return await response.aread()
            finally:
                await response.aclose()

        assert [await named("localhost"), await named("localhost")] == [b"one", b"two"]
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            await named("another.test")
