"""Open streams to one worker, each of which carries one execution after the other.

A stream of its own for every execution costs both processes more than many an execution does. What a broken, refused or
cancelled stream means is the same either way, because a stream never carries two executions at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Final

import grpc.aio

from forerun.core import limits
from forerun.runtime.errors import (
    NEVER_STARTED,
    STARTED_KEY,
    DeadlineExceeded,
    ErrorReason,
    Unavailable,
)
from forerun.runtime.network import rpc_errors
from forerun.runtime.tracing import current_trace, use_trace
from forerun.v1 import sandbox_pb2, sandbox_pb2_grpc

# Below the grace that a server gives the calls of a connection that has grown old, so that it cuts off nothing.
_AGE_SECONDS: Final = 20.0
_IDLE: Final = 64


class ResultTooLargeError(Exception):
    """A result is longer than RESULT_BYTES.

    Attributes:
        size_bytes: What had come by then.
    """

    def __init__(self, size_bytes: int) -> None:
        super().__init__(size_bytes)
        self.size_bytes = size_bytes


class _Lane:
    """One stream.

    Attributes:
        call: The stream.
        until: Loop time from which it carries no further execution.
    """

    __slots__ = ("call", "until")

    def __init__(self, call: Any) -> None:
        self.call = call
        self.until = asyncio.get_running_loop().time() + _AGE_SECONDS

    @property
    def usable(self) -> bool:
        """It can carry another execution."""
        return not self.call.done() and asyncio.get_running_loop().time() < self.until


class Lanes:
    """The streams to one worker.

    Args:
        stub: The worker.
    """

    def __init__(self, stub: sandbox_pb2_grpc.SandboxServiceStub) -> None:
        self._stub = stub
        self._idle: deque[_Lane] = deque()

    async def execute(
        self, request: sandbox_pb2.ExecuteRequest, timeout_seconds: float
    ) -> tuple[sandbox_pb2.ExecutionFinished, bytes]:
        """Runs one action; how it ended, and the content that came in chunks. To be cancelled stops the tool.

        Raises:
            ForerunError: what the worker refused, or what broke; see `never_started`.
            ResultTooLargeError: more than RESULT_BYTES came.
        """
        message = sandbox_pb2.ExecuteInTurnRequest(request=request, traceparent=current_trace() or "")
        lane, given_back = await self._begin(message), False
        chunks: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(timeout_seconds):
                while True:
                    response = await self._read(lane)
                    if response.HasField("finished"):
                        given_back = True
                        self._give_back(lane)
                        return response.finished, b"".join(chunks)
                    size += len(response.chunk.data)
                    if size > limits.RESULT_BYTES:
                        raise ResultTooLargeError(size)
                    chunks.append(response.chunk.data)
        except TimeoutError:
            raise DeadlineExceeded(
                ErrorReason.DEADLINE_EXCEEDED, "the worker did not answer within the call's time"
            ) from None
        finally:
            if not given_back:
                lane.call.cancel()

    async def _begin(self, message: sandbox_pb2.ExecuteInTurnRequest) -> _Lane:
        while (lane := self._take()) is not None:
            if await self._written(lane, message):
                return lane
        lane = self._open()
        if not await self._written(lane, message):
            await self._read(lane)  # tells why it could not even begin
        return lane

    async def _written(self, lane: _Lane, message: sandbox_pb2.ExecuteInTurnRequest) -> bool:
        """Sends a request; False where the stream had ended before, so that nothing has left this process."""
        try:
            with rpc_errors():
                await lane.call.write(message)
        except Unavailable as error:
            if isinstance(error.__cause__, asyncio.InvalidStateError):
                return False
            raise
        except asyncio.CancelledError:
            lane.call.cancel()
            raise
        return True

    async def _read(self, lane: _Lane) -> sandbox_pb2.ExecuteResponse:
        with rpc_errors():
            response = await lane.call.read()
        if response is grpc.aio.EOF:
            # The worker ends a stream with OK only where it has not read another request from it.
            raise Unavailable(
                ErrorReason.SHUTTING_DOWN, "the worker has ended the stream", metadata={STARTED_KEY: NEVER_STARTED}
            )
        step: sandbox_pb2.ExecuteResponse = response.response
        return step

    def _take(self) -> _Lane | None:
        while self._idle:
            lane = self._idle.pop()
            if lane.usable:
                return lane
            lane.call.cancel()
        return None

    def _open(self) -> _Lane:
        # The stream outlives what it is opened for, so it is no part of that one's trace.
        trace = current_trace()
        use_trace(None)
        try:
            return _Lane(self._stub.ExecuteInTurn())
        finally:
            use_trace(trace)

    def _give_back(self, lane: _Lane) -> None:
        self._idle.append(lane)
        # The oldest are at the front: those that few need at once end here.
        while self._idle and (len(self._idle) > _IDLE or not self._idle[0].usable):
            self._idle.popleft().call.cancel()
