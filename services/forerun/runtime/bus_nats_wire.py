"""One connection to NATS: nats-py for the protocol, with our own way for messages in and out.

nats-py connects, authenticates, reconnects, pings and parses. Publishing and dispatch are done here, because they are
on the way of every event: a request costs a third of the processor time of `nats.aio.client.Client.request` (no queue
and task per subscription, no flusher task, no second future), and because three things have to differ:

* Nothing is ever buffered while the connection is down. A request fails at once, or tells that its fate is unknown.
* When the connection breaks, everything in flight is told so; nobody waits for a timeout.
* An error of the server leads to a reconnect, never to a client that is closed for good.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import nats.errors
from nats.aio.client import Server

from forerun.runtime import bus_headers
from forerun.runtime.bus_nats_client import WireClient
from forerun.runtime.errors import ErrorReason, PermissionDenied, Unauthenticated, Unavailable
from forerun.runtime.ids import Ids

_log = logging.getLogger(__name__)

OnMessage = Callable[[str, bytes, bytes, bytes | None], None]
"""Gets subject, reply subject, body and header block of a message, synchronously; must not raise."""

# What may wait in this process for the network before notifications are dropped and requests wait.
_CONGESTED_BYTES: Final = 8 * 1024 * 1024
_FIRST_RECONNECT_SECONDS: Final = 0.05
_NO_RESPONDERS: Final = "503"
_CONNECT_TRY_SECONDS: Final = 2
_CLOSE_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class NatsOptions:
    """How to reach the broker.

    Attributes:
        servers: Addresses such as `nats://127.0.0.1:4222`.
        user: User of the topology.
        password: Its password.
        tls: Whom to trust, where the broker asks for TLS; None takes the authorities that the system trusts. An address
            `tls://` never connects to a broker that does not ask for it.
        reconnect_max_seconds: Upper end of the growing pause between attempts, which never end.
        ping_interval_seconds: A peer that leaves two pings unanswered is given up.
        request_timeout_seconds: Bound of everything that has no bound of its own in the port.
    """

    servers: tuple[str, ...]
    user: str
    password: str = field(repr=False)
    tls: ssl.SSLContext | None = None
    reconnect_max_seconds: float = 2.0
    ping_interval_seconds: float = 10.0
    request_timeout_seconds: float = 5.0


class NotSentError(Exception):
    """The connection is down, so nothing was sent."""


class UnansweredError(Exception):
    """It was sent, and no answer came: in time, or before the connection broke."""


class NoRespondersError(Exception):
    """Nothing listens on the subject of a request."""


@dataclass(slots=True)
class _Route:
    subject: str
    on_message: OnMessage


class Wire:
    """A connection that stays. Made by `Wire.open`."""

    def __init__(self, options: NatsOptions, inbox_prefix: str, ids: Ids) -> None:
        self.options = options
        self.reconnected: list[Callable[[], None]] = []
        self.disconnected: list[Callable[[], None]] = []
        self._ids = ids
        self._loop = asyncio.get_running_loop()
        self._client = WireClient(self)
        self._ready = False
        self._closed = False
        self._usable = asyncio.Event()
        self._sids = itertools.count(1)
        self._tokens = itertools.count(1)
        self._routes: dict[int, _Route] = {}
        self._answers: dict[bytes, tuple[str, asyncio.Future[tuple[bytes, bytes | None]]]] = {}
        # A second connection of the same user must not share answers; the prefix alone is per user.
        self._inbox = f"{inbox_prefix}.{ids.token(9)}"
        self._outgoing: list[bytes] = []
        self._flush_scheduled = False
        self._unauthorised: asyncio.Future[None] = self._loop.create_future()
        self._refusals: set[str] = set()

    @classmethod
    async def open(cls, options: NatsOptions, inbox_prefix: str, ids: Ids, *, timeout_seconds: float) -> Wire:
        """Connects.

        Raises:
            Unavailable: nobody answered in time.
            Unauthenticated: the broker refused user or password.
        """
        wire = cls(options, inbox_prefix, ids)
        connecting = asyncio.ensure_future(wire._connect())
        try:
            await asyncio.wait(
                (connecting, wire._unauthorised), timeout=timeout_seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if wire._unauthorised.done():
                raise Unauthenticated(ErrorReason.CREDENTIAL_REFUSED, f"the broker refuses user {options.user!r}")
            if not connecting.done():
                raise Unavailable(
                    ErrorReason.BROKER_UNAVAILABLE,
                    f"no broker answered within {timeout_seconds:g} s",
                    metadata={"servers": ",".join(options.servers)},
                )
            connecting.result()
        except BaseException:
            connecting.cancel()
            await asyncio.wait((connecting,))
            await wire.close()
            raise
        return wire

    async def _connect(self) -> None:
        options = self.options
        await self._client.connect(
            servers=list(options.servers),
            user=options.user,
            password=options.password,
            tls=options.tls,
            name=f"forerun-{options.user}",
            inbox_prefix=self._inbox,
            allow_reconnect=True,
            max_reconnect_attempts=-1,
            reconnect_time_wait=_FIRST_RECONNECT_SECONDS,  # type: ignore[arg-type]  # passed on to asyncio.sleep
            reconnect_to_server_handler=self._choose_server,
            connect_timeout=_CONNECT_TRY_SECONDS,
            ping_interval=options.ping_interval_seconds,  # type: ignore[arg-type]  # passed on to asyncio.sleep
            max_outstanding_pings=2,
            error_cb=self._on_error,
            reconnected_cb=self._on_reconnected,
            closed_cb=self._on_closed,
        )
        self.route(f"{self._inbox}.r.*", self._answered)
        self._become_ready()

    @property
    def connected(self) -> bool:
        """Whether messages can be sent now."""
        return self._ready

    @property
    def congested(self) -> bool:
        """Whether the network takes less than we send."""
        return self._client.unsent_bytes > _CONGESTED_BYTES

    async def until_connected(self) -> None:
        """Waits for as long as it takes."""
        await self._usable.wait()

    # Out

    def send(self, subject: str, data: bytes, header_block: bytes = b"", reply: str = "") -> None:
        """Sends a message without waiting. Size and subject have been checked by the caller.

        Raises:
            NotSentError: the connection is down.
        """
        if not self._ready:
            raise NotSentError
        target = f"{subject} {reply}" if reply else subject
        if header_block:
            start = f"HPUB {target} {len(header_block)} {len(header_block) + len(data)}\r\n".encode()
            self._write(b"".join((start, header_block, data, b"\r\n")))
        else:
            self._write(b"".join((f"PUB {target} {len(data)}\r\n".encode(), data, b"\r\n")))

    async def request(
        self, subject: str, data: bytes, header_block: bytes = b"", *, timeout_seconds: float
    ) -> tuple[bytes, bytes | None]:
        """Sends a message and returns body and header block of the first answer.

        Raises:
            NotSentError: the connection is down.
            UnansweredError: no answer in time, or the connection broke.
            NoRespondersError: nothing listens there.
            PermissionDenied: the user may not publish there.
        """
        if self.congested:
            await self._uncongested(timeout_seconds)
        token = b"%d" % next(self._tokens)
        answer: asyncio.Future[tuple[bytes, bytes | None]] = self._loop.create_future()
        self._answers[token] = (subject, answer)
        timer = self._loop.call_later(timeout_seconds, _time_out, answer)
        try:
            self.send(subject, data, header_block, f"{self._inbox}.r.{token.decode()}")
            body, headers = await answer
        finally:
            timer.cancel()
            self._answers.pop(token, None)
        if headers is not None and not body and bus_headers.parse(headers).get(bus_headers.STATUS) == _NO_RESPONDERS:
            raise NoRespondersError
        return body, headers

    async def round_trip(self, timeout_seconds: float) -> None:
        """Returns when the server has processed everything sent before. Raises as `request`."""
        token = b"%d" % next(self._tokens)
        answer: asyncio.Future[tuple[bytes, bytes | None]] = self._loop.create_future()
        self._answers[token] = ("", answer)
        timer = self._loop.call_later(timeout_seconds, _time_out, answer)
        try:
            self.send(f"{self._inbox}.r.{token.decode()}", b"")
            await answer
        finally:
            timer.cancel()
            self._answers.pop(token, None)

    def _write(self, command: bytes) -> None:
        # The first write of an iteration goes out at once, for latency; those that follow go together, for bursts.
        if self._flush_scheduled:
            self._outgoing.append(command)
            return
        self._client.write(command)
        self._flush_scheduled = True
        self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        if self._outgoing:
            outgoing, self._outgoing = self._outgoing, []
            self._client.write(b"".join(outgoing))

    async def _uncongested(self, timeout_seconds: float) -> None:
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._client.drained()
        except (TimeoutError, OSError) as error:
            raise NotSentError from error

    # In

    def inbox(self) -> str:
        """A subject of this connection alone, for answers that are no single answer."""
        return f"{self._inbox}.s.{next(self._tokens)}"

    def unique_name(self) -> str:
        """A name that nobody else uses, made of letters, digits, `_` and `-`."""
        return self._ids.token(12)

    def route(self, subject: str, on_message: OnMessage) -> int:
        """Listens; also after each reconnect. Returns the id to `unroute`."""
        sid = next(self._sids)
        self._routes[sid] = _Route(subject, on_message)
        if self._client.is_connected:
            self._write(f"SUB {subject} {sid}\r\n".encode())
        return sid

    async def listen(self, subject: str, on_message: OnMessage) -> int:
        """As `route`, and returns when the server has agreed.

        Raises:
            PermissionDenied: this user may not listen there.
            NotSentError, UnansweredError: the server cannot be reached.
        """
        sid = self.route(subject, on_message)
        try:
            await self.round_trip(self.options.request_timeout_seconds)
            if subject.lower() in self._refusals:
                raise PermissionDenied(
                    ErrorReason.CALLER_NOT_ALLOWED, f"user {self.options.user!r} may not listen to {subject!r}"
                )
        except BaseException:
            self.unroute(sid)
            raise
        return sid

    def unroute(self, sid: int) -> None:
        """Stops listening."""
        if self._routes.pop(sid, None) is not None and self._ready:
            self._write(f"UNSUB {sid}\r\n".encode())

    def arrived(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes | None) -> None:
        """A message came."""
        route = self._routes.get(sid)
        if route is not None:
            route.on_message(subject.decode(), reply, data, headers)

    def _answered(self, subject: str, _: bytes, data: bytes, headers: bytes | None) -> None:
        waiting = self._answers.get(subject[subject.rindex(".") + 1 :].encode())
        if waiting is not None and not waiting[1].done():
            waiting[1].set_result((data, headers))

    def refused(self, text: str) -> bool:
        """The server said no; True where the connection lives on."""
        if "permissions violation" not in text:
            return False
        _log.error("broker: user %s: %s", self.options.user, text)
        refused = text.split('"')[1] if text.count('"') > 1 else ""
        if "subscription" in text:
            self._refusals.add(refused)
        for subject, answer in self._answers.values():
            if subject.lower() == refused and not answer.done():
                answer.set_exception(
                    PermissionDenied(
                        ErrorReason.CALLER_NOT_ALLOWED, f"user {self.options.user!r} may not publish to {subject!r}"
                    )
                )
        return True

    # The connection's life

    def broke(self) -> None:
        """The connection is gone."""
        if not self._ready:
            return
        self._ready = False
        self._usable.clear()
        self._outgoing.clear()
        for _, answer in self._answers.values():
            if not answer.done():
                answer.set_exception(UnansweredError("the connection broke"))
        _log.warning("broker: connection of user %s lost", self.options.user)
        for callback in tuple(self.disconnected):
            callback()

    def _become_ready(self) -> None:
        self._ready = True
        self._usable.set()

    async def _on_reconnected(self) -> None:
        self._outgoing = [f"SUB {route.subject} {sid}\r\n".encode() for sid, route in self._routes.items()]
        self._flush()
        self._become_ready()
        _log.warning("broker: user %s is connected again", self.options.user)
        for callback in tuple(self.reconnected):
            callback()

    async def _on_error(self, error: Exception) -> None:
        if "authorization violation" in str(error).lower() and not self._unauthorised.done():
            self._unauthorised.set_result(None)
        _log.info("broker: %s", error)

    async def _on_closed(self) -> None:
        self.broke()

    def _choose_server(self, servers: list[Server], _: dict[str, object]) -> tuple[Server, float]:
        server = min(servers, key=lambda candidate: candidate.reconnects)
        if server.reconnects == 0:
            return server, 0.0
        pause = min(self.options.reconnect_max_seconds, _FIRST_RECONNECT_SECONDS * 2 ** min(server.reconnects, 20))
        return server, pause * (0.5 + self._ids.fraction() / 2)

    async def answered(self, timeout_seconds: float) -> None:
        """Waits for the answers that are still due, at most so long."""
        due = [answer for _, answer in self._answers.values()]
        if due and timeout_seconds > 0:
            await asyncio.wait(due, timeout=timeout_seconds)

    async def close(self) -> None:
        """Closes within about two seconds; what was sent before has been sent. May be repeated."""
        if self._closed:
            return
        self._closed = True
        if self._ready:
            try:
                await self.round_trip(_CLOSE_SECONDS)
            except (NotSentError, UnansweredError):
                _log.info("broker: closed without the server's confirmation")
        self._ready = False
        self._usable.clear()
        for _, answer in self._answers.values():
            if not answer.done():
                answer.set_exception(UnansweredError("the connection was closed"))
        self._client.abort()
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._client.close()
        except (TimeoutError, OSError, nats.errors.Error):
            _log.info("broker: the client did not close in time")


def _time_out(answer: asyncio.Future[tuple[bytes, bytes | None]]) -> None:
    if not answer.done():
        answer.set_exception(UnansweredError("no answer in time"))
