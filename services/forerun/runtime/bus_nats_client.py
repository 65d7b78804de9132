"""nats-py's client, opened up where `Wire` does the work itself.

The only place that touches what nats-py keeps to itself: `_process_msg`, `_process_err`, `_process_op_err`,
`_connect_command` and the writer of its TCP transport. tests/fault/runtime_bus and tests/integration/runtime_bus would
notice a release that changes them.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

import nats.errors
from nats.aio.client import Client
from nats.aio.transport import TcpTransport


class Listener(Protocol):
    """Who is told what happens on the connection; all synchronously."""

    def arrived(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes | None) -> None:
        """A message came."""
        ...

    def refused(self, text: str) -> bool:
        """The server reported an error; True where the connection lives on."""
        ...

    def broke(self) -> None:
        """The connection is gone."""
        ...


class WireClient(Client):
    """nats-py's client with its messages, server errors and breaks led to a `Listener`."""

    def __init__(self, listener: Listener) -> None:
        super().__init__()
        self._listener = listener

    def _connect_command(self) -> bytes:
        """What says the password; nats-py says it in clear to a server at a `tls://` address that asks for no TLS."""
        server, writer = self._current_server, self._writer
        assert server is not None and writer is not None
        if server.uri.scheme == "tls" and writer.get_extra_info("ssl_object") is None:
            raise nats.errors.Error(f"nats: {server.uri.hostname} does not encrypt")
        return bytes(super()._connect_command())

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes | None) -> None:
        self._listener.arrived(sid, subject, reply, data, headers)

    async def _process_err(self, err_msg: str) -> None:
        if self._listener.refused(err_msg):
            return
        await self._process_op_err(nats.errors.Error(f"nats: {err_msg}"))

    async def _process_op_err(self, e: Exception) -> None:
        if not self.is_closed and not self.is_reconnecting:
            self._listener.broke()
            # An orderly close would wait until a peer that no longer reads has read everything.
            self.abort()
        await super()._process_op_err(e)

    def abort(self) -> None:
        """Drops the socket at once."""
        writer = self._writer
        if writer is not None:
            writer.transport.abort()

    def write(self, data: bytes) -> None:
        """Gives bytes to the socket; only called while connected."""
        writer = self._writer
        assert writer is not None
        writer.write(data)

    @property
    def unsent_bytes(self) -> int:
        """What the network has not taken yet."""
        writer = self._writer
        # An encrypted transport of Python 3.11 that was closed twice knows no size any more, and raises.
        return 0 if writer is None or writer.transport.is_closing() else writer.transport.get_write_buffer_size()

    async def drained(self) -> None:
        """Waits until the network has taken most of it."""
        writer = self._writer
        if writer is not None:
            await writer.drain()

    @property
    def _writer(self) -> asyncio.StreamWriter | None:
        # WebSockets are not offered: NatsOptions takes nats:// and tls:// addresses only.
        return self._transport._io_writer if isinstance(self._transport, TcpTransport) else None
