"""A sandbox worker whose tool answers what a test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from forerun.runtime.auth import current_caller
from forerun.runtime.errors import ErrorReason, ResourceExhausted
from forerun.v1 import common_pb2, sandbox_pb2, sandbox_pb2_grpc

DIGEST = "sha256:" + "11" * 32


class Worker(sandbox_pb2_grpc.SandboxServiceServicer):
    """Executes nothing."""

    def __init__(self) -> None:
        self.digest = DIGEST
        self.status = common_pb2.CALL_STATUS_OK
        self.version = "v1"
        self.busy_times = 0
        self.refused = asyncio.Event()
        self.preempted_times = 0
        self.during: Callable[[], Awaitable[object]] | None = None
        self.requests: list[sandbox_pb2.ExecuteRequest] = []
        self.callers: list[tuple[str, str, str]] = []

    async def Execute(self, request: sandbox_pb2.ExecuteRequest, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        if self.busy_times:
            self.busy_times -= 1
            self.refused.set()
            raise ResourceExhausted(ErrorReason.NO_FREE_SLOT, "full")
        caller = current_caller()
        self.requests.append(request)
        self.callers.append((caller.tenant, caller.principal, caller.credential_scope))
        yield sandbox_pb2.ExecuteResponse(started=sandbox_pb2.ExecutionStarted(worker="w", tool_version=self.version))
        if self.during is not None:
            await self.during()
        finished = sandbox_pb2.ExecutionFinished(
            status=self.status, observation=common_pb2.Observation(digest=self.digest), seconds=0.25
        )
        if self.preempted_times:
            self.preempted_times -= 1
            finished.preempted = True
        yield sandbox_pb2.ExecuteResponse(finished=finished)
