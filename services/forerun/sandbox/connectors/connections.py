"""HTTP/1.1 connections for tools, as a transport of httpx.

httpx's own transport costs a worker more than everything else of a call together (its pool looks at every connection
for every request, over a portability layer that is not needed here). This one puts a parser on asyncio's transports:
a request is one write, and an idle connection is known to be gone the moment the other side closes it.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections import deque
from collections.abc import AsyncIterator
from typing import Final, cast

import httpx

from forerun.sandbox.connectors.answers import Answers, Head

# More than this waits in the kernel until what has come was read.
_UNREAD_BYTES: Final = 256 * 1024
_CONNECT_SECONDS: Final = 10.0

# RFC 9110 and 9112: what a request is made of. Nothing else may reach the wire, or an argument could add a header.
_TOKEN: Final = re.compile(rb"[-!#$%&'*+.^_`|~0-9A-Za-z]+")
_TARGET: Final = re.compile(rb"[\x21-\x7e]+")
_VALUE: Final = re.compile(rb"(?:[^\x00\s]+(?:[ \t]+[^\x00\s]+)*)?")
_FRAMING: Final = frozenset({b"content-length", b"transfer-encoding"})

_Origin = tuple[str, str, int, str]


class Connections(httpx.AsyncBaseTransport):
    """Makes connections and keeps idle ones for a while.

    A failure before the request was handed to a connection is `httpx.ConnectError` or `httpx.ConnectTimeout`; any
    later one is another `httpx.TransportError`, after which the request may have taken effect.

    Args:
        most: Connections at once; more requests wait.
        idle_most: Idle connections that are kept.
        idle_seconds: How long one is kept. Below what servers allow, so that a request rarely meets the other side's
            goodbye.
    """

    def __init__(self, *, most: int, idle_most: int, idle_seconds: float = 4.0) -> None:
        self._places = asyncio.Semaphore(most)
        self._idle_most = idle_most
        self._idle_seconds = idle_seconds
        self._idle: dict[_Origin, deque[_Connection]] = {}
        self._idle_count = 0
        self._ssl: ssl.SSLContext | None = None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Sends a request; the response's stream gives the connection back when it is closed."""
        await self._places.acquire()
        connection: _Connection | None = None
        try:
            connection = self._reusable(_origin(request)) or await self._connect(request)
            head = await connection.exchange(request)
        except BaseException:
            if connection is not None:
                connection.close()
            self._places.release()
            raise
        return httpx.Response(
            head.status, headers=head.headers, stream=_Body(connection, self), request=request,
            extensions={"http_version": b"HTTP/" + head.version.encode(), "reason_phrase": head.reason},
        )  # fmt: skip

    async def aclose(self) -> None:
        """Closes the idle connections; others are closed by the end of their responses."""
        self._idle_most = 0
        for waiting in self._idle.values():
            for connection in waiting:
                connection.close()
        self._idle.clear()
        self._idle_count = 0

    def give_back(self, connection: _Connection) -> None:
        """The response is over."""
        self._places.release()
        if not connection.renew():
            connection.close()
            return
        self._sweep()
        if self._idle_count < self._idle_most:
            connection.idle_since = asyncio.get_running_loop().time()
            self._idle.setdefault(connection.origin, deque()).append(connection)
            self._idle_count += 1
        else:
            connection.close()

    def _reusable(self, origin: _Origin) -> _Connection | None:
        waiting = self._idle.get(origin)
        oldest = asyncio.get_running_loop().time() - self._idle_seconds
        while waiting:
            connection = waiting.pop()  # the one that was used last is the least likely to end
            self._idle_count -= 1
            if connection.alive and connection.idle_since >= oldest:
                return connection
            connection.close()
        return None

    def _sweep(self) -> None:
        """Closes what nobody has used for too long."""
        oldest = asyncio.get_running_loop().time() - self._idle_seconds
        for origin, waiting in list(self._idle.items()):
            while waiting and (waiting[0].idle_since < oldest or not waiting[0].alive):
                waiting.popleft().close()
                self._idle_count -= 1
            if not waiting:
                del self._idle[origin]

    async def _connect(self, request: httpx.Request) -> _Connection:
        origin = _origin(request)
        scheme, host, port, name = origin
        if scheme not in ("http", "https"):
            raise httpx.UnsupportedProtocol(f"tools are reached by http and https, not {scheme}", request=request)
        secure = self._context() if scheme == "https" else None
        timeout = request.extensions.get("timeout", {}).get("connect", _CONNECT_SECONDS)
        try:
            async with asyncio.timeout(timeout):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: _Connection(origin), host, port, ssl=secure, server_hostname=name if secure else None
                )
        except TimeoutError as error:
            raise httpx.ConnectTimeout(f"no connection within {timeout} s", request=request) from error
        except OSError as error:
            raise httpx.ConnectError(str(error), request=request) from error
        return connection

    def _context(self) -> ssl.SSLContext:
        if self._ssl is None:
            self._ssl = httpx.create_ssl_context()
            self._ssl.set_alpn_protocols(["http/1.1"])
        return self._ssl


class _Connection(asyncio.Protocol):
    """One connection, with one request at a time.

    Attributes:
        origin: Where it leads.
        idle_since: Loop time at which it was last given back.
    """

    def __init__(self, origin: _Origin) -> None:
        self.origin = origin
        self.idle_since = 0.0
        self._answers = Answers()
        self._transport: asyncio.Transport | None = None
        self._busy = True
        self._unread_bytes = 0
        self._paused = False
        self._arrival: asyncio.Future[None] | None = None
        self._over = False
        self._lost: Exception | None = None

    # ------------------------------------------------------------ called by the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It stands."""
        self._transport = cast(asyncio.Transport, transport)  # an event loop of another make has a class of its own

    def data_received(self, data: bytes) -> None:
        """The other side said something. What nobody has asked for must not become the answer to the next request."""
        if not self._busy:
            self.close()
            return
        self._answers.feed(data)
        self._unread_bytes += len(data)
        if self._unread_bytes > _UNREAD_BYTES and self._transport is not None and not self._paused:
            self._paused = True
            self._transport.pause_reading()
        self._arrived()

    def eof_received(self) -> None:
        """The other side says nothing more."""
        self._over = True
        self._answers.end()
        self._arrived()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        self._lost = exc
        if not self._over:
            self.eof_received()

    def _arrived(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    # ------------------------------------------------------------ one request

    @property
    def alive(self) -> bool:
        """It can be used: neither side has closed it."""
        return not self._over and self._transport is not None and not self._transport.is_closing()

    async def exchange(self, request: httpx.Request) -> Head:
        """Sends a request and reads the head of its response."""
        assert isinstance(request.stream, httpx.AsyncByteStream) and self._transport is not None
        content = b"".join([part async for part in request.stream])
        data = _head(request, len(content)) + content
        self._busy = True
        answers = self._answers
        answers.expect(request.method)
        self._transport.write(data)
        while answers.head is None:
            await self._more()
        return answers.head

    async def part(self) -> bytes | None:
        """The next bytes of the response's content; None at its end."""
        answers = self._answers
        while not answers.parts:
            if answers.complete:
                return None
            await self._more()
        return answers.parts.popleft()

    async def _more(self) -> None:
        """Waits until more has come.

        Raises:
            TransportError: nothing will.
        """
        if self._answers.fault:
            if self._lost is not None:
                raise httpx.ReadError(str(self._lost)) from self._lost
            raise httpx.RemoteProtocolError(self._answers.fault)
        self._unread_bytes = 0
        if self._paused and self.alive and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        self._arrival = asyncio.get_running_loop().create_future()
        try:
            await self._arrival
        finally:
            self._arrival = None

    def renew(self) -> bool:
        """Makes it ready for another request; False where it cannot be used again."""
        if not self._answers.reusable or self._paused or not self.alive:
            return False
        self._unread_bytes = 0
        self._busy = False
        return True

    def close(self) -> None:
        """Hangs up."""
        if self._transport is not None:
            self._transport.close()


class _Body(httpx.AsyncByteStream):
    """The rest of a response."""

    def __init__(self, connection: _Connection, connections: Connections) -> None:
        self._connection = connection
        self._connections: Connections | None = connections

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (part := await self._connection.part()) is not None:
            yield part

    async def aclose(self) -> None:
        """Gives the connection back, or hangs up in the middle of a response. May be repeated."""
        connections, self._connections = self._connections, None
        if connections is not None:
            connections.give_back(self._connection)


def _origin(request: httpx.Request) -> _Origin:
    url = request.url
    port = url.port or (443 if url.scheme == "https" else 80)
    return url.scheme, url.host, port, str(request.extensions.get("sni_hostname") or url.host)


def _head(request: httpx.Request, content_bytes: int) -> bytes:
    """What goes before the content. Its length is said here, whatever headers say of it.

    Raises:
        LocalProtocolError: something of it is not what HTTP allows.
    """
    method, target = request.method.encode(), request.url.raw_path
    lines = [b"%b %b HTTP/1.1" % (method, target)]
    fine = _TOKEN.fullmatch(method) is not None and _TARGET.fullmatch(target) is not None
    framed = content_bytes > 0
    for name, value in request.headers.raw:
        if name.lower() in _FRAMING:
            framed = True
            continue
        fine = fine and _TOKEN.fullmatch(name) is not None and _VALUE.fullmatch(value) is not None
        lines.append(b"%b: %b" % (name, value))
    if not fine:
        raise httpx.LocalProtocolError("a method, an address or a header has characters that HTTP does not allow")
    if framed:
        lines.append(b"Content-Length: %d" % content_bytes)
    return b"\r\n".join(lines) + b"\r\n\r\n"
