"""Where the client's ids and its jitter come from. Replaced in simulations, so that one seed repeats a run."""

from __future__ import annotations

import secrets  # noqa: TID251  (the client's only source of chance)
import time
from collections.abc import Callable
from typing import Protocol
from uuid import UUID

_RANDOM_BITS = 74
_LOW_BITS = 62


class Ids(Protocol):
    """Makes ids and draws."""

    def uuid7(self) -> str:
        """A UUIDv7 (RFC 9562) as text."""
        ...

    def fraction(self) -> float:
        """A uniform draw from [0, 1)."""
        ...


class SystemIds:
    """Ids from the operating system's randomness.

    Args:
        now: Seconds since the Unix epoch.
    """

    def __init__(self, now: Callable[[], float] = time.time) -> None:  # noqa: TID251  (the client's only clock)
        self._now = now

    def uuid7(self) -> str:
        """A UUIDv7 as text."""
        rand = secrets.randbits(_RANDOM_BITS)
        rand_a, rand_b = rand >> _LOW_BITS, rand & ((1 << _LOW_BITS) - 1)
        milliseconds = int(self._now() * 1000) & ((1 << 48) - 1)
        return str(UUID(int=milliseconds << 80 | 0x7 << 76 | rand_a << 64 | 0b10 << 62 | rand_b))

    def fraction(self) -> float:
        """A uniform draw from [0, 1)."""
        return secrets.randbits(53) * 2.0**-53
