"""Model servers on loopback that do what a test says, and note when a client hangs up."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

Behave = Callable[["Exchange"], Awaitable[None]]


@dataclass
class Exchange:
    """One request, and the means to answer it."""

    body: Any
    headers: Mapping[str, str]
    writer: asyncio.StreamWriter
    hung_up: asyncio.Event
    number: int

    async def head(
        self, status: int = 200, kind: str = "text/event-stream", headers: Mapping[str, str] | None = None
    ) -> None:
        lines = [f"HTTP/1.1 {status} X", f"content-type: {kind}", "transfer-encoding: chunked"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        self.writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
        await self.writer.drain()

    async def raw(self, data: bytes) -> None:
        self.writer.write(b"%x\r\n%s\r\n" % (len(data), data))
        await self.writer.drain()

    async def event(self, value: object) -> None:
        await self.raw(f"data: {value if isinstance(value, str) else json.dumps(value)}\n\n".encode())

    async def token(self, text: str, **delta: object) -> None:
        await self.event({"model": "m-1", "choices": [{"index": 0, "delta": {"content": text, **delta}}]})

    async def end(self, reason: str = "stop", usage: tuple[int, int] | None = (10, 5)) -> None:
        await self.event({"model": "m-1", "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
        if usage is not None:
            prompt, generated = usage
            await self.event({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": generated}})
        await self.event("[DONE]")
        await self.close()

    async def close(self) -> None:
        self.writer.write(b"0\r\n\r\n")
        await self.writer.drain()

    async def whole(self, status: int, body: object, headers: Mapping[str, str] | None = None) -> None:
        await self.head(status, "application/json", headers)
        await self.raw(json.dumps(body).encode())
        await self.close()

    async def say(self, text: str, usage: tuple[int, int] | None = (10, 5)) -> None:
        """A whole answer, word by word."""
        await self.head()
        for number, word in enumerate(text.split(" ")):
            await self.token(f" {word}" if number else word)
        await self.end(usage=usage)


@dataclass
class ModelServer:
    """A server that behaves as it is told.

    Attributes:
        behave: What it does with a request.
        asked: All requests.
        hang_ups: Loop time at which a client has hung up during a request.
    """

    behave: Behave
    asked: list[Exchange] = field(default_factory=list)
    hang_ups: list[float] = field(default_factory=list)
    connections: int = 0
    port: int = 0
    more: asyncio.Condition = field(default_factory=asyncio.Condition)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def wait_for(self, fits: Callable[[], bool]) -> None:
        """Until something of the server's record is so."""
        async with asyncio.timeout(10), self.more:
            await self.more.wait_for(fits)

    async def _told(self) -> None:
        async with self.more:
            self.more.notify_all()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, lost: asyncio.Event) -> None:
        """One connection, request after request."""
        self.connections += 1
        try:
            while line := await reader.readline():
                assert line.split()[:2] == [b"POST", b"/v1/chat/completions"]
                headers = {}
                while (header := (await reader.readline()).strip()) != b"":
                    name, _, value = header.decode().partition(":")
                    headers[name.lower()] = value.strip()
                body = json.loads(await reader.readexactly(int(headers["content-length"])))
                await self._answer(Exchange(body, headers, writer, asyncio.Event(), len(self.asked)), lost)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _answer(self, exchange: Exchange, lost: asyncio.Event) -> None:
        self.asked.append(exchange)
        await self._told()
        work = asyncio.ensure_future(self.behave(exchange))
        watch = asyncio.ensure_future(lost.wait())
        await asyncio.wait({work, watch}, return_when=asyncio.FIRST_COMPLETED)
        watch.cancel()
        if not lost.is_set():
            work.result()
            return
        self.hang_ups.append(asyncio.get_running_loop().time())
        exchange.hung_up.set()
        await self._told()
        work.cancel()
        await asyncio.wait({work})
        raise ConnectionError


class _Watched(asyncio.StreamReaderProtocol):
    """Notes that the client has closed its side, also while nothing is read."""

    def __init__(self, server: ModelServer) -> None:
        self.lost = asyncio.Event()
        self.reader = asyncio.StreamReader()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await server.serve(reader, writer, self.lost)

        super().__init__(self.reader, serve)

    def eof_received(self) -> bool:
        self.lost.set()
        return bool(super().eof_received())

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.set()
        super().connection_lost(error)


async def forever(_: Exchange) -> None:
    """Takes the request and says nothing."""
    await asyncio.Event().wait()


@asynccontextmanager
async def serving(*behaviours: Behave) -> AsyncIterator[tuple[ModelServer, ...]]:
    """Servers, one for each behaviour."""
    servers = [ModelServer(one) for one in behaviours]
    listening = []
    for server in servers:
        made = await asyncio.get_running_loop().create_server(partial(_Watched, server), "127.0.0.1", 0)
        server.port = int(made.sockets[0].getsockname()[1])
        listening.append(made)
    try:
        yield tuple(servers)
    finally:
        for made in listening:
            made.close()
