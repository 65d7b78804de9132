"""HTTP/1.1 connections for tools, as a transport of httpx.

httpx's own transport costs a worker more than everything else of a call together (its pool looks at every connection
for every request, over a portability layer that is not needed here). This one puts a parser on asyncio's transports:
a request is one write, and an idle connection is known to be gone the moment the other side closes it.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncIterator
from typing import Final, cast

import h11
import httpx

# More than this waits in the kernel until what has come was read.
_UNREAD_BYTES: Final = 256 * 1024
_CONNECT_SECONDS: Final = 10.0

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
            head.status_code, headers=head.headers.raw_items(), stream=_Body(connection, self), request=request,
            extensions={"http_version": b"HTTP/" + head.http_version, "reason_phrase": bytes(head.reason)},
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
        self._state = h11.Connection(h11.CLIENT)
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
        self._state.receive_data(data)
        self._unread_bytes += len(data)
        if self._unread_bytes > _UNREAD_BYTES and self._transport is not None and not self._paused:
            self._paused = True
            self._transport.pause_reading()
        self._arrived()

    def eof_received(self) -> None:
        """The other side says nothing more."""
        self._over = True
        self._state.receive_data(b"")
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

    async def exchange(self, request: httpx.Request) -> h11.Response:
        """Sends a request and reads the head of its response."""
        assert isinstance(request.stream, httpx.AsyncByteStream) and self._transport is not None
        self._busy = True
        try:
            head = h11.Request(method=request.method, target=request.url.raw_path, headers=request.headers.raw)
            data = [self._state.send(head) or b""]
            async for part in request.stream:
                data.append(self._state.send(h11.Data(data=part)) or b"")
            data.append(self._state.send(h11.EndOfMessage()) or b"")
        except h11.LocalProtocolError as error:
            raise httpx.LocalProtocolError(str(error), request=request) from error
        self._transport.write(b"".join(data))
        event = await self.event()
        while isinstance(event, h11.InformationalResponse):
            event = await self.event()
        if not isinstance(event, h11.Response):
            raise httpx.RemoteProtocolError("the server hung up without a response", request=request)
        return event

    async def event(self) -> h11.Event:
        """The next event of the response."""
        try:
            while (event := self._state.next_event()) is h11.NEED_DATA:
                await self._more()
        except h11.RemoteProtocolError as error:
            if self._lost is not None:
                raise httpx.ReadError(str(self._lost)) from self._lost
            raise httpx.RemoteProtocolError(str(error)) from error
        if not isinstance(event, h11.Event):
            raise httpx.RemoteProtocolError("the server wants to change the protocol")
        return event

    async def _more(self) -> None:
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
        if self._state.our_state is not h11.DONE or self._state.their_state is not h11.DONE or not self.alive:
            return False
        unasked, _ = self._state.trailing_data
        if unasked:
            return False
        self._state.start_next_cycle()
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
        while not isinstance(event := await self._connection.event(), h11.EndOfMessage):
            if isinstance(event, h11.Data):
                yield bytes(event.data)

    async def aclose(self) -> None:
        """Gives the connection back, or hangs up in the middle of a response. May be repeated."""
        connections, self._connections = self._connections, None
        if connections is not None:
            connections.give_back(self._connection)


def _origin(request: httpx.Request) -> _Origin:
    url = request.url
    port = url.port or (443 if url.scheme == "https" else 80)
    return url.scheme, url.host, port, str(request.extensions.get("sni_hostname") or url.host)
