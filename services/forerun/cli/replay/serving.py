"""Serves the tool server on a real loopback socket."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import uvicorn
from starlette.applications import Starlette

_BACKLOG = 256
_STOP_SECONDS = 5
# Connections that wait between calls are kept for longer than models think.
_KEEP_ALIVE_SECONDS = 600


@asynccontextmanager
async def served(app: Starlette) -> AsyncIterator[str]:
    """Serves an application on a free port; gives its address, such as `http://127.0.0.1:40123`."""
    # With the protocol named, asyncio switches Nagle's algorithm off; else each answer may wait 40 ms for an ACK.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(_BACKLOG)
        config = uvicorn.Config(
            app,
            lifespan="off",
            log_level="error",
            access_log=False,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=_STOP_SECONDS,
        )
        server = _Server(config)
        task = asyncio.get_running_loop().create_task(server.serve(sockets=[listener]), name="tool server")
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await task


class _Server(uvicorn.Server):
    """A server without handlers of signals: they belong to the command."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Captures none."""
        yield
