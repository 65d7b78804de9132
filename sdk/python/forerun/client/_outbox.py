"""What a session has to say to the platform, in the order in which a connection says it.

Messages wait in two lanes: what belongs to the running connection (answers of client tools, cancellations) goes first
and is dropped when that breaks; what belongs to the session (events, batches) waits while the platform says goodbye.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Any

import grpc
import grpc.aio

from forerun.client._calls import Batch, OpenCall
from forerun.v1 import common_pb2, session_pb2

Outgoing = session_pb2.ConnectRequest | Batch


class Outbox:
    """The two lanes.

    Args:
        session: Id of the session.

    Attributes:
        leaving: The connection will end: the session's messages wait for the next one.
        closing: The session ends: its last messages go out whatever the connection does.
    """

    def __init__(self, session: str) -> None:
        self.leaving = False
        self.closing = False
        self._session = session
        self._urgent: deque[session_pb2.ConnectRequest] = deque()
        self._ordinary: deque[Outgoing] = deque()
        self._wake = asyncio.Event()

    def add(self, item: Outgoing) -> None:
        """What is said when its turn comes. A complete message says all that its parts would have said."""
        if isinstance(item, Batch):
            while self._ordinary and _is_part_of(item, self._ordinary[-1]):
                self._ordinary.pop()
        self._ordinary.append(item)
        self._wake.set()

    def add_now(self, message: session_pb2.ConnectRequest) -> None:
        """What only means something to the running connection."""
        self._urgent.append(message)
        self._wake.set()

    def cancel(self, one: OpenCall) -> None:
        """Tells the platform to stop a call."""
        self.add_now(self._cancellation(one))

    def disconnected(self, batches: Iterable[Batch]) -> None:
        """After a break open batches are said again, before everything that was not said yet."""
        self.leaving = False
        self._urgent.clear()
        waiting = {id(one) for one in self._ordinary}
        self._ordinary.extendleft(reversed([batch for batch in batches if id(batch) not in waiting]))

    def clear(self) -> None:
        """Nobody will hear it."""
        self._ordinary.clear()

    async def until_something_waits(self) -> None:
        """Returns when there is something to say for which a connection is worth opening."""
        while not self._ordinary:
            self._wake.clear()
            await self._wake.wait()

    async def write_all(self, call: Any) -> None:
        """Writes what is there and what comes, until the stream is over."""
        while True:
            self._wake.clear()
            while self._urgent:
                if not await write(call, self._urgent.popleft()):
                    return
            if self._ordinary and (not self.leaving or self.closing):
                if not await self._write_ordinary(call, self._ordinary.popleft()):
                    return
            elif not self._urgent:
                await self._wake.wait()

    async def _write_ordinary(self, call: Any, item: Outgoing) -> bool:
        if isinstance(item, Batch):
            batch = item.render(asyncio.get_running_loop().time())
            if batch is None:
                return True
            for one in item.open:
                one.written = one.on_its_way = True
            if not await write(call, session_pb2.ConnectRequest(batch=batch)):
                return False
            # A call that was taken back while no connection was open: only now the platform can find it.
            return all([await write(call, self._cancellation(one)) for one in item.open if one.taken_back])
        if await write(call, item):
            return True
        # The stream was over before: it certainly did not leave.
        self._ordinary.appendleft(item)
        return False

    def _cancellation(self, one: OpenCall) -> session_pb2.ConnectRequest:
        key = common_pb2.CallKey(session=self._session, turn=one.turn, index=one.message.index)
        return session_pb2.ConnectRequest(cancel=key)


def _is_part_of(batch: Batch, item: Outgoing) -> bool:
    return isinstance(item, session_pb2.ConnectRequest) and item.partial.turn == batch.turn


async def write(call: Any, message: session_pb2.ConnectRequest) -> bool:
    """Writes a message; False where the stream is over, and whoever reads it learns why."""
    try:
        await call.write(message)
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
        return False
    return True
