"""Open streams to one worker, each of which carries one execution after the other.

A stream of its own for every execution costs both processes more than many an execution does. What a broken, refused or
cancelled stream means is the same either way, because a stream never carries two executions at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine
from typing import Any, Final

import grpc
import grpc.aio

from forerun.core import limits
from forerun.runtime.errors import (
    NEVER_STARTED,
    STARTED_KEY,
    DeadlineExceeded,
    ErrorReason,
    ForerunError,
    Unavailable,
    from_rpc_error,
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


class _End:
    """How a stream has ended, taken down in the moment when it does.

    grpc puts "Internal error from Core" over the status that the worker sent, when a write meets the end of its stream;
    whether the request was never started would be lost with it.
    """

    __slots__ = ("status",)

    def __init__(self) -> None:
        self.status: grpc.aio.AioRpcError | None = None

    def __call__(self, call: Any) -> None:
        """The stream has ended."""
        if self.status is None:
            self.status = _at_once(_status_of(call))


class _Lane:
    """One stream.

    Attributes:
        call: The stream.
        end: How it has ended.
        until: Loop time from which it carries no further execution.
    """

    __slots__ = ("call", "end", "until")

    def __init__(self, call: Any) -> None:
        self.call = call
        self.end = _End()
        call.add_done_callback(self.end)
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
        try:
            # The sending is part of it: a worker that takes nothing any more would keep it for as long as it likes.
            async with asyncio.timeout(timeout_seconds):
                return await self._result(await self._begin(message))
        except TimeoutError:
            raise DeadlineExceeded(
                ErrorReason.DEADLINE_EXCEEDED, "the worker did not answer within the call's time"
            ) from None

    async def _result(self, lane: _Lane) -> tuple[sandbox_pb2.ExecutionFinished, bytes]:
        given_back = False
        chunks: list[bytes] = []
        size = 0
        try:
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
        finally:
            if not given_back:
                lane.call.cancel()

    async def _begin(self, message: sandbox_pb2.ExecuteInTurnRequest) -> _Lane:
        while (lane := self._take()) is not None:
            if await self._written(lane, message):
                return lane
        lane = self._open()
        if not await self._written(lane, message):
            raise _why_ended(lane.end.status or await _status_of(lane.call))
        return lane

    async def _written(self, lane: _Lane, message: sandbox_pb2.ExecuteInTurnRequest) -> bool:
        """Sends a request; False where the stream had ended before, so that the worker has not read it."""
        try:
            await lane.call.write(message)
        except asyncio.InvalidStateError:
            return False
        except grpc.aio.AioRpcError as error:
            status = lane.end.status or error
            if status.code() is grpc.StatusCode.OK:
                return False
            raise _why_ended(status) from error
        except asyncio.CancelledError:
            lane.call.cancel()
            raise
        return True

    async def _read(self, lane: _Lane) -> sandbox_pb2.ExecuteResponse:
        with rpc_errors():
            response = await lane.call.read()
        if response is grpc.aio.EOF:
            raise _ended_well()
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


def _why_ended(status: grpc.aio.AioRpcError) -> ForerunError:
    return _ended_well() if status.code() is grpc.StatusCode.OK else from_rpc_error(status)


def _ended_well() -> Unavailable:
    """The worker ends a stream with OK only where it has not read another request from it."""
    return Unavailable(
        ErrorReason.SHUTTING_DOWN, "the worker has ended the stream", metadata={STARTED_KEY: NEVER_STARTED}
    )


async def _status_of(call: Any) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(
        await call.code(), grpc.aio.Metadata(), await call.trailing_metadata(), await call.details()
    )


def _at_once(status: Coroutine[Any, Any, grpc.aio.AioRpcError]) -> grpc.aio.AioRpcError | None:
    """What a coroutine gives that has nothing to wait for; None where it has."""
    try:
        status.send(None)
    except StopIteration as done:
        found: grpc.aio.AioRpcError = done.value
        return found
    status.close()
    return None
