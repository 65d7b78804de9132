"""One call over the memory network: what flows between the two ends, and how it ends.

Both ends speak bytes, so serialisers run as on a real network. Time is the loop's, hence virtual in the simulation.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import grpc

Metadata = tuple[tuple[str, str | bytes], ...]

LOCALLY_CANCELLED: Final = "Locally cancelled by application!"
DEADLINE_TEXT: Final = "Deadline Exceeded"


class PipeClosedError(Exception):
    """The call ended while one side wanted to write."""


class Pipe:
    """One direction of a call: ordered, bounded, each message readable after the network's delay.

    Args:
        capacity: Messages in flight; a writer waits beyond it.
        delay_seconds: How long a message travels.
    """

    __slots__ = ("_capacity", "_closed", "_delay", "_ended", "_items", "_loop", "_waiters")

    def __init__(self, capacity: int, delay_seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._capacity = capacity
        self._delay = delay_seconds
        self._items: deque[tuple[float, bytes]] = deque()
        self._ended = False
        self._closed = False
        self._waiters: deque[asyncio.Future[None]] = deque()

    def put_now(self, data: bytes) -> None:
        """Writes without regard to the capacity, for the one message of a unary side."""
        self._items.append((self._loop.time() + self._delay, data))
        self._wake()

    async def put(self, data: bytes) -> None:
        """Writes, waiting while the pipe is full.

        Raises:
            PipeClosedError: the call ended.
        """
        while len(self._items) >= self._capacity and not self._closed:
            await self._changed()
        if self._closed:
            raise PipeClosedError
        self.put_now(data)

    async def get(self) -> bytes | None:
        """The next message; None at the end of the stream or of the call."""
        while not self._closed:
            if self._items:
                arrives_at, data = self._items[0]
                if arrives_at > self._loop.time():
                    timer = self._loop.call_at(arrives_at, self._wake)
                    try:
                        await self._changed()
                    finally:
                        timer.cancel()
                    continue
                self._items.popleft()
                self._wake()
                return data
            if self._ended:
                return None
            await self._changed()
        return None

    def end(self) -> None:
        """No more is written; what was written can still be read."""
        self._ended = True
        self._wake()

    def close(self) -> None:
        """The call is over: what was not read is lost."""
        self._closed = True
        self._items.clear()
        self._wake()

    async def _changed(self) -> None:
        waiter = self._loop.create_future()
        self._waiters.append(waiter)
        await waiter

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, deque()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


@dataclass(frozen=True, slots=True)
class CallStatus:
    """How a call ended."""

    code: grpc.StatusCode
    details: str = ""
    trailing: Metadata = ()


class Exchange:
    """The state that the client's call object and the server's context share.

    Args:
        method: Full name of the method.
        metadata: What the client sent along.
        timeout_seconds: The deadline from now; None for none.
        capacity: Messages in flight per direction.
        delay_seconds: How long anything travels.
        peer: Name of the calling process.
    """

    def __init__(
        self,
        method: str,
        metadata: Metadata,
        *,
        timeout_seconds: float | None,
        capacity: int,
        delay_seconds: float,
        peer: str,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.method = method
        self.metadata = metadata
        self.peer = peer
        self.delay_seconds = delay_seconds
        self.requests = Pipe(capacity, delay_seconds)
        self.responses = Pipe(capacity, delay_seconds)
        self.initial_metadata: asyncio.Future[Metadata] = self._loop.create_future()
        self.locally_cancelled = False
        self.client_gone = False
        self._finished = False
        self._status: asyncio.Future[CallStatus] = self._loop.create_future()
        self._server_task: asyncio.Task[None] | None = None
        self._deadline = None if timeout_seconds is None else self._loop.time() + timeout_seconds
        self._timer = (
            None
            if self._deadline is None
            else self._loop.call_at(self._deadline, self._break, grpc.StatusCode.DEADLINE_EXCEEDED, DEADLINE_TEXT)
        )

    @property
    def done(self) -> bool:
        """Whether the call has a status."""
        return self._status.done()

    def time_remaining(self) -> float | None:
        """Seconds to the deadline, None without one."""
        return None if self._deadline is None else max(0.0, self._deadline - self._loop.time())

    def served_by(self, task: asyncio.Task[None]) -> None:
        """Ties the handler to the call: when the client goes, the handler is cancelled."""
        self._server_task = task
        if self.client_gone:
            task.cancel()

    def finish(self, status: CallStatus) -> None:
        """The server's end: what was written before arrives first, then the status. The first end counts."""
        if self._finished:
            return
        self._finished = True
        self.responses.end()
        self.requests.close()
        if self.delay_seconds > 0:
            self._loop.call_later(self.delay_seconds, self._settle, status)
        else:
            self._settle(status)

    def cancel(self) -> bool:
        """The client's cancellation; False if the call had ended."""
        if self.done:
            return False
        self.locally_cancelled = True
        self._break(grpc.StatusCode.CANCELLED, LOCALLY_CANCELLED)
        return True

    def fail(self, code: grpc.StatusCode, details: str) -> None:
        """The transport ends the call: the client gets this status, the handler is cancelled."""
        self._break(code, details)

    async def status(self) -> CallStatus:
        """Waits for the end of the call."""
        return await asyncio.shield(self._status)

    def when_done(self, callback: Callable[[], None]) -> None:
        """Calls back once the call has ended."""
        self._status.add_done_callback(lambda _: callback())

    def _break(self, code: grpc.StatusCode, details: str) -> None:
        if not self._settle(CallStatus(code, details)):
            return
        self.client_gone = True
        self.requests.close()
        self.responses.close()
        if self._server_task is not None:
            self._server_task.cancel()

    def _settle(self, status: CallStatus) -> bool:
        if self._status.done():
            return False
        self._status.set_result(status)
        if not self.initial_metadata.done():
            self.initial_metadata.set_result(())
        if self._timer is not None:
            self._timer.cancel()
        return True
