"""The standard health service, for readiness and liveness probes and for clients that watch.

Own because the library's version holds a lock while it writes to a watcher: one watcher that does not read would keep a
stopping server from ever saying NOT_SERVING.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from forerun.runtime.network import LIVENESS_SERVICE

# Enum values; the stubs give the members no type of their own.
_SERVING: Final[int] = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING: Final[int] = health_pb2.HealthCheckResponse.NOT_SERVING
_UNKNOWN: Final[int] = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


class HealthServicer(health_pb2_grpc.HealthServicer):
    """Answers for the services of one server, which become ready and unready together.

    Args:
        services: Full names; the empty name (the server as a whole) and the liveness name are always known.
    """

    def __init__(self, services: Sequence[str]) -> None:
        self._services = frozenset(services) | {""}
        self._serving = False
        self._closed = False
        self._changed: asyncio.Future[None] | None = None

    def set_serving(self, serving: bool) -> None:
        """Changes what is answered and wakes the watchers."""
        if serving != self._serving and not self._closed:
            self._serving = serving
            self._wake()

    def close(self) -> None:
        """NOT_SERVING for good; watchers are told and their streams end, so that they do not hold a shutdown up."""
        self._serving, self._closed = False, True
        self._wake()

    async def Check(  # noqa: N802  # the name is the protocol's
        self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> health_pb2.HealthCheckResponse:
        """The status of one service now."""
        status = self._status(request.service)
        if status == _UNKNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, "unknown service")
        return health_pb2.HealthCheckResponse(status=status)

    async def Watch(  # noqa: N802
        self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        """The status of one service, now and whenever it changes."""
        while True:
            told = self._status(request.service)
            yield health_pb2.HealthCheckResponse(status=told)
            while self._status(request.service) == told:
                if self._closed:
                    return
                if self._changed is None:
                    self._changed = asyncio.get_running_loop().create_future()
                await asyncio.shield(self._changed)

    def _wake(self) -> None:
        if self._changed is not None:
            self._changed.set_result(None)
            self._changed = None

    def _status(self, service: str) -> int:
        if service == LIVENESS_SERVICE:
            return _SERVING
        if service not in self._services:
            return _UNKNOWN
        return _SERVING if self._serving else _NOT_SERVING
