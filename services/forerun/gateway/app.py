"""Wires the gateway."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from typing import Any, Final

import uvicorn
from starlette.types import ASGIApp

from forerun.gateway.expected import ExpectedCalls
from forerun.gateway.service import Gateway
from forerun.gateway.settings import GatewaySettings
from forerun.gateway.upstream import Upstream
from forerun.runtime.app import App, Callbacks, Part
from forerun.runtime.chassis import chassis_parts, make_chassis
from forerun.runtime.clock import Clock
from forerun.runtime.errors import Bug, ErrorReason, FailedPrecondition
from forerun.runtime.ids import Ids
from forerun.runtime.models.port import Deadlines
from forerun.runtime.tasks import Failure

_LOG: Final = logging.getLogger(__name__)


class HttpServer:
    """Serves an application as a part of a process.

    Args:
        application: What is served.
        address: `host:port`; port 0 takes a free one.
        failed: Told when it ends before it is stopped: without it the process is of no use.
    """

    def __init__(self, application: ASGIApp, address: str, failed: Failure) -> None:
        self._asked = address
        self._failed = failed
        config = uvicorn.Config(application, log_level="warning", lifespan="off", timeout_graceful_shutdown=5)
        self._server = _Quiet(config)
        self._socket: socket.socket | None = None
        self._serving: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """Where it listens, once it is started."""
        if self._socket is None:
            return self._asked
        host, port = self._socket.getsockname()[:2]
        return f"{host}:{port}"

    async def start(self) -> None:
        """Begins to listen.

        Raises:
            FailedPrecondition: The address is taken.
        """
        host, _, port = self._asked.rpartition(":")
        try:
            self._socket = socket.create_server((host or "127.0.0.1", int(port)))
        except OSError as error:
            raise FailedPrecondition(
                ErrorReason.SETTING_INVALID,
                f"cannot listen on {self._asked!r}; set http_address to host:port of a free port",
                metadata={"setting": "http_address"},
            ) from error
        self._serving = asyncio.create_task(self._server.serve(sockets=[self._socket]))
        self._serving.add_done_callback(self._ended)

    async def stop(self, grace_seconds: float) -> None:
        """Lets running answers end, then hangs up."""
        self._server.should_exit = True
        if self._serving is not None:
            # How it ended is told by `_ended`: an exception of it must not keep the socket open.
            _, late = await asyncio.wait([self._serving], timeout=grace_seconds)
            if late:
                self._serving.cancel()
                await asyncio.wait(late)
        if self._socket is not None:
            self._socket.close()

    def _ended(self, serving: asyncio.Task[None]) -> None:
        error = None if serving.cancelled() else serving.exception()
        if not self._server.should_exit:
            _LOG.error("the HTTP server has ended by itself", exc_info=error)
            self._failed.report(error or Bug(ErrorReason.INTERNAL, "the HTTP server has ended by itself"))


class _Quiet(uvicorn.Server):
    """Leaves the signals to the process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        """Captures none."""
        yield


def build(settings: GatewaySettings, *, clock: Clock | None = None, ids: Ids | None = None) -> App:
    """Wires the service; what is given is used instead of the real thing."""
    return assemble(settings, clock=clock, ids=ids)[0]


def assemble(
    settings: GatewaySettings, *, clock: Clock | None = None, ids: Ids | None = None
) -> tuple[App, HttpServer]:
    """The process and its door."""
    chassis = make_chassis(settings, clock=clock, ids=ids)
    deadlines = Deadlines(
        first_token=settings.first_token_seconds,
        between_tokens=settings.between_tokens_seconds,
        total=settings.total_seconds,
    )
    # What is under way is bounded at the door, so nothing waits for a place behind it.
    upstream = Upstream(settings.models, deadlines=deadlines, concurrency=settings.max_requests)
    gateway = Gateway(
        upstream,
        chassis.authenticator,
        total_seconds=settings.total_seconds,
        max_body_bytes=settings.max_body_bytes,
        max_requests=settings.max_requests,
        expected=ExpectedCalls(chassis.network, settings.predictor_targets, settings.expected_seconds),
        clock=chassis.clock,
        ids=chassis.ids,
    )

    async def close(_: float) -> None:
        await upstream.close()

    failed = Failure()
    server = HttpServer(gateway.application(), settings.http_address, failed)
    parts = [
        *chassis_parts(chassis, settings),
        Part("models", Callbacks(stop=close), stop_seconds=2.0),
        Part("http", server, stop_seconds=None),
    ]
    app = App(
        service="gateway", parts=parts, metrics=chassis.metrics, drain_seconds=settings.drain_seconds, failed=failed
    )  # fmt: skip
    return app, server
