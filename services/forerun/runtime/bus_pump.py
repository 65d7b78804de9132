"""One handler, one message at a time, a bounded number waiting: what a subscription is on every bus."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

_log = logging.getLogger(__name__)

_Item = TypeVar("_Item")


class Pump(Generic[_Item]):
    """Feeds items to a coroutine in order. It has a task only while there is something to do.

    Args:
        name: For logs and task names; holds no content.
        handler: Called for one item at a time.
        limit: How many may wait; None: the caller bounds them itself.
        on_handled: Called after each item, whatever came of it.
        on_dropped: Called for each item that was dropped.
    """

    def __init__(
        self,
        name: str,
        handler: Callable[[_Item], Awaitable[None]],
        *,
        limit: int | None,
        on_handled: Callable[[_Item], None] | None = None,
        on_dropped: Callable[[], None] | None = None,
    ) -> None:
        self._name = name
        self._handler = handler
        self._limit = limit
        self._on_handled = on_handled
        self._on_dropped = on_dropped
        self._pending: deque[_Item] = deque()
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self.dropped = 0
        self.failed = 0
        self.gaps = 0

    @property
    def waiting(self) -> int:
        """Items that no handler has begun with."""
        return len(self._pending)

    def offer(self, item: _Item) -> None:
        """Hands an item over; drops and counts it when too many wait."""
        if self._closed:
            return
        if self._limit is not None and len(self._pending) >= self._limit:
            if not self.dropped:
                _log.warning("subscription %s: handler is too slow, messages are dropped", self._name)
            self.dropped += 1
            self.gaps += 1
            if self._on_dropped is not None:
                self._on_dropped()
            return
        self._pending.append(item)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name=f"subscription {self._name}")

    async def _run(self) -> None:
        try:
            while self._pending:
                item = self._pending.popleft()
                try:
                    await self._handler(item)
                except Exception as error:  # one bad message must not end the subscription
                    self.failed += 1
                    # The class only: the text of an error may hold content of a session.
                    _log.error("subscription %s: handler failed with %s", self._name, type(error).__name__)
                if self._on_handled is not None:
                    self._on_handled(item)
        finally:
            self._task = None

    def stop(self) -> None:
        """Throws away what waits and cancels the handler that runs."""
        self._closed = True
        self._pending.clear()
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()

    async def stopped(self) -> None:
        """Waits until the handler has ended; from within the handler there is nothing to wait for."""
        task = self._task
        if task is not None and task is not asyncio.current_task():
            await asyncio.wait([task], timeout=1.0)
