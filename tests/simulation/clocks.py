"""Clocks of the processes of a run: they differ, and jump."""

from __future__ import annotations

from forerun.runtime.clock import Clock


class ShiftedClock:
    """One process's clock: its wall time is wrong by some seconds, its monotonic time is everybody's.

    Attributes:
        shift_seconds: How much it is ahead.
    """

    def __init__(self, true: Clock) -> None:
        self._true = true
        self.shift_seconds = 0.0

    def now(self) -> float:
        """Seconds since the Unix epoch, as this process believes."""
        return self._true.now() + self.shift_seconds

    def monotonic(self) -> float:
        """Seconds since the start."""
        return self._true.monotonic()
