"""Where identifiers and chance come from.

A component draws every id and every random decision from the one `Ids` that its `build()` received. Production uses
the operating system's randomness; the simulation uses a seed, so that a run can be repeated exactly.
"""

from __future__ import annotations

import base64
import random
import secrets
import threading
from typing import Protocol

from forerun.runtime.clock import Clock

_RANDOM_BITS = 74
_RANDOM_LIMIT = 1 << _RANDOM_BITS
# Ids made within one millisecond grow by a random step, so that they sort by creation and still cannot be guessed.
_STEP_BITS = 32


class Ids(Protocol):
    """What makes identifiers and random draws for a component."""

    def uuid7(self) -> str:
        """A UUIDv7 (RFC 9562) in its canonical text form; ids of one source sort in the order of their creation."""
        ...

    def token(self, size_bytes: int) -> str:
        """A secret of `size_bytes` random bytes in URL-safe base64 without padding."""
        ...

    def fraction(self) -> float:
        """A uniform draw from [0, 1), for sampling and jitter."""
        ...


class _Uuid7:
    """Builds UUIDv7 values that grow strictly, also within a millisecond and when the clock is set back."""

    __slots__ = ("_lock", "_milliseconds", "_random")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._milliseconds = -1
        self._random = 0

    def make(self, now_seconds: float, fresh_random: int, step: int) -> str:
        with self._lock:
            milliseconds = int(now_seconds * 1000)
            if milliseconds > self._milliseconds:
                self._milliseconds, self._random = milliseconds, fresh_random
            else:
                self._random += step + 1
                if self._random >= _RANDOM_LIMIT:
                    self._milliseconds, self._random = self._milliseconds + 1, fresh_random
            milliseconds, rand = self._milliseconds, self._random
        rand_a, rand_b = rand >> 62, rand & ((1 << 62) - 1)
        value = (milliseconds & ((1 << 48) - 1)) << 80 | 0x7 << 76 | rand_a << 64 | 0b10 << 62 | rand_b
        text = f"{value:032x}"
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


class SystemIds:
    """Ids from the operating system's secure randomness and the given clock. Safe to share between threads."""

    __slots__ = ("_clock", "_uuid7")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._uuid7 = _Uuid7()

    def uuid7(self) -> str:
        """A UUIDv7 that sorts after all earlier ones of this source."""
        drawn = secrets.randbits(_RANDOM_BITS + _STEP_BITS)  # one draw, because each is a system call
        return self._uuid7.make(self._clock.now(), drawn >> _STEP_BITS, drawn & ((1 << _STEP_BITS) - 1))

    def token(self, size_bytes: int) -> str:
        """`size_bytes` random bytes in URL-safe base64 without padding."""
        return secrets.token_urlsafe(size_bytes)

    def fraction(self) -> float:
        """A uniform draw from [0, 1)."""
        return secrets.randbits(53) * 2.0**-53


class SeededIds:
    """Ids that follow from a seed, the clock and the order of the draws: the same run gives the same ids.

    Never for secrets that guard anything.
    """

    __slots__ = ("_clock", "_random", "_uuid7")

    def __init__(self, seed: int, clock: Clock) -> None:
        self._random = random.Random(seed)
        self._clock = clock
        self._uuid7 = _Uuid7()

    def uuid7(self) -> str:
        """A UUIDv7 that sorts after all earlier ones of this source."""
        rand, step = self._random.getrandbits(_RANDOM_BITS), self._random.getrandbits(_STEP_BITS)
        return self._uuid7.make(self._clock.now(), rand, step)

    def token(self, size_bytes: int) -> str:
        """`size_bytes` random bytes in URL-safe base64 without padding."""
        return base64.urlsafe_b64encode(self._random.randbytes(size_bytes)).rstrip(b"=").decode("ascii")

    def fraction(self) -> float:
        """A uniform draw from [0, 1)."""
        return self._random.random()
