"""Liveness, readiness and metrics over HTTP: `/live` and `/ready`, 200 or 503, and `/metrics` for Prometheus."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Final

from forerun.runtime.errors import ErrorReason, FailedPrecondition

_REQUEST_SECONDS: Final = 5.0
_REQUEST_BYTES: Final = 4_096
_TEXT: Final = "Content-Type: text/plain; version=0.0.4; charset=utf-8"


@contextlib.asynccontextmanager
async def health(address: str, ready: Callable[[], bool], metrics: Callable[[], str]) -> AsyncIterator[str]:
    """Answers as long as the context is open; yields where.

    Args:
        address: `host:port`; port 0 takes a free one.
        ready: Whether requests are served.
        metrics: In Prometheus' text format.

    Raises:
        FailedPrecondition: The address is malformed or taken.
    """

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(TimeoutError, ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            async with asyncio.timeout(_REQUEST_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                path = head.split(b" ", 2)[1:2]
                told = metrics().encode() if path == [b"/metrics"] else b""
                good = told or path == [b"/live"] or (path == [b"/ready"] and ready())
                status = "200 OK" if good else "503 Service Unavailable"
                lines = (f"HTTP/1.1 {status}", f"Content-Length: {len(told)}", _TEXT, "Connection: close", "", "")
                writer.write("\r\n".join(lines).encode() + told)
                await writer.drain()
        writer.close()

    host, _, port = address.rpartition(":")
    try:
        server = await asyncio.start_server(answer, host or "127.0.0.1", int(port), limit=_REQUEST_BYTES)
    except (ValueError, OSError) as error:
        raise FailedPrecondition(
            ErrorReason.SETTING_INVALID, f"cannot answer probes on {address!r}: name host:port of a free port"
        ) from error
    async with server:
        bound = server.sockets[0].getsockname()
        yield f"{bound[0]}:{bound[1]}"
