"""One handler, one message at a time, a bounded number waiting: what a subscription is on every bus."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

_log = logging.getLogger(__name__)

_Item = TypeVar("_Item")


class Pump(Generic[_Item]):
    """Feeds items to a handler in order. It has a task only while there is something to wait for.

    Args:
        name: For logs and task names; holds no content.
        handler: Called for one item at a time; what it returns is awaited before the next one, unless it is None.
        limit: How many may wait; None: the caller bounds them itself.
        at_once: The handler is called where the item is handed over, if none waits before it. Otherwise in a task.
        on_handled: Called after each item, whatever came of it.
        on_dropped: Called for each item that was dropped.
    """

    def __init__(
        self,
        name: str,
        handler: Callable[[_Item], Coroutine[Any, Any, None] | None],
        *,
        limit: int | None,
        at_once: bool = False,
        on_handled: Callable[[_Item], None] | None = None,
        on_dropped: Callable[[], None] | None = None,
    ) -> None:
        self._name = name
        self._handler = handler
        self._limit = limit
        self._at_once = at_once
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
        if self._task is not None:
            self._pending.append(item)
        elif self._at_once:
            self._hand_over(item)
        else:
            self._pending.append(item)
            self._task = self._work(None)

    def _hand_over(self, item: _Item) -> None:
        try:
            waiting = self._handler(item)
        except Exception as error:
            self._failed(error)
            waiting = None
        if waiting is not None:
            self._task = self._work((item, waiting))
            # Where the task ends before it began, nobody else does this.
            self._task.add_done_callback(lambda _: waiting.close())
        elif self._on_handled is not None:
            self._on_handled(item)

    def _work(self, begun: tuple[_Item, Coroutine[Any, Any, None]] | None) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(self._run(begun), name=f"subscription {self._name}")

    async def _run(self, begun: tuple[_Item, Coroutine[Any, Any, None]] | None) -> None:
        try:
            if begun is not None:
                await self._handle(*begun)
            while self._pending:
                await self._handle(self._pending.popleft(), None)
        finally:
            self._task = None

    async def _handle(self, item: _Item, waiting: Coroutine[Any, Any, None] | None) -> None:
        try:
            waiting = waiting or self._handler(item)
            if waiting is not None:
                await waiting
        except Exception as error:  # one bad message must not end the subscription
            self._failed(error)
        if self._on_handled is not None:
            self._on_handled(item)

    def _failed(self, error: Exception) -> None:
        self.failed += 1
        # The class only: the text of an error may hold content of a session.
        _log.error("subscription %s: handler failed with %s", self._name, type(error).__name__)

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
