"""How long a broken stream stays broken: pauses that grow, and shrink again after a connection that was good."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

BACKOFF_INITIAL_SECONDS: Final = 0.05
"""First pause before a stream is opened again."""
BACKOFF_MAX_SECONDS: Final = 2.0
"""Longest pause, unless the platform asks for a longer one."""
# A connection that lived for so long was a good one: the next break starts with a short pause again.
_STABLE_SECONDS: Final = 5.0
# Without anything to send, an unreachable platform is given up for so long, until there is something: by then it has
# ended the session itself.
_IDLE_RETRY_SECONDS: Final = 60.0


class Backoff:
    """The pauses between the connections of one session.

    Args:
        now: Time of the first try, in seconds of the caller's clock.
        fraction: Draws from [0, 1), for jitter.
    """

    def __init__(self, now: float, fraction: Callable[[], float]) -> None:
        self._fraction = fraction
        self._pause = BACKOFF_INITIAL_SECONDS
        self._broken_at = now

    def broke(self, started_at: float, now: float) -> None:
        """A connection, or a try at one, has ended."""
        if now - started_at >= _STABLE_SECONDS:
            self._pause, self._broken_at = BACKOFF_INITIAL_SECONDS, now

    def idle(self, now: float) -> bool:
        """Broken for so long that only something to say is worth another try."""
        return now - self._broken_at > _IDLE_RETRY_SECONDS

    def pause(self, asked_seconds: float | None) -> float:
        """Seconds until the next try; the platform may ask for more."""
        pause, self._pause = self._pause, min(self._pause * 2, BACKOFF_MAX_SECONDS)
        return max(pause * (0.5 + self._fraction() / 2), asked_seconds or 0.0)
