"""Who decodes now and who waits: a bounded number of slots and a bounded queue before them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from forerun.serving.backend.sequences import Refused

_LOOK_SECONDS: Final = 0.05
"""A waiting request looks so often whether its client has left: the server does not tell it."""

FULL: Final = "Exceeds maximum queue size"
"""How the server itself says that a queue is full; clients know it as that."""


class Left(Exception):
    """The client has left while its request waited."""


class Admission:
    """Slots of one loop, given in order of arrival.

    Args:
        slots: Texts that are decoded at the same time.
        queued: Requests that may wait; more are refused.
        changed: Told of every change, with slots in use and requests waiting.
    """

    def __init__(self, slots: int, queued: int, changed: Callable[[int, int], None]) -> None:
        self._slots = slots
        self._queued = queued
        self._changed = changed
        self._waiting: deque[asyncio.Future[None]] = deque()
        self.live = 0

    async def enter(self, has_left: Callable[[], bool]) -> None:
        """Waits for a slot. Whoever gets one has to `leave`.

        Raises:
            Refused: The queue is full.
            Left: The client has left; there is no slot to leave.
        """
        if self.live < self._slots and not self._waiting:
            self._take(1)
            return
        if len(self._waiting) >= self._queued:
            raise Refused(f"{FULL} {self._queued} (queued of the profile)")
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(mine)
        self._changed(self.live, len(self._waiting))
        try:
            while not (await asyncio.wait([mine], timeout=_LOOK_SECONDS))[0]:
                if has_left():
                    raise Left
        except BaseException:
            if mine.done():
                self.leave()
            else:
                self._waiting.remove(mine)
                self._changed(self.live, len(self._waiting))
            raise

    def leave(self) -> None:
        """Frees a slot; who waits longest gets it."""
        self._take(-1)
        if self._waiting:
            self._waiting.popleft().set_result(None)
            self._take(1)

    def _take(self, count: int) -> None:
        self.live += count
        self._changed(self.live, len(self._waiting))
