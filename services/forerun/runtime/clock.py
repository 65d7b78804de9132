"""Where time comes from.

Nothing outside this module and the CLI's edges asks the operating system for the time: a process gets one `Clock` in
its `build()`, so that the simulation can run the production wiring under virtual time. To *wait*, code uses asyncio
itself (`asyncio.sleep`, `asyncio.timeout`), which follows the running loop and therefore the same virtual time.
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """What tells the time to a component."""

    def now(self) -> float:
        """Seconds since the Unix epoch. May jump when the machine's clock is set: for records, never for durations."""
        ...

    def monotonic(self) -> float:
        """Seconds since an arbitrary start that never go backwards: for durations, ages and deadlines."""
        ...


class SystemClock:
    """The operating system's clocks."""

    def now(self) -> float:
        """Seconds since the Unix epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds since an arbitrary start, never going backwards."""
        return time.monotonic()


class LoopClock:
    """A clock that follows the running event loop, so that it is virtual exactly when the loop is.

    A thread that works for the loop sees the time of the loop in which the clock was last read.

    Args:
        epoch: Seconds since the Unix epoch at loop time `origin`.
        origin: The loop's time at the epoch. A `VirtualLoop` starts at 0.
    """

    __slots__ = ("_epoch", "_loop", "_origin")

    def __init__(self, epoch: float, origin: float = 0.0) -> None:
        self._epoch = epoch
        self._origin = origin
        self._loop: asyncio.AbstractEventLoop | None = None

    def now(self) -> float:
        """Seconds since the Unix epoch."""
        return self._epoch + self.monotonic() - self._origin

    def monotonic(self) -> float:
        """Seconds since an arbitrary start, never going backwards."""
        try:
            self._loop = asyncio.get_running_loop()
        except RuntimeError:
            if self._loop is None:
                raise
        return self._loop.time()
