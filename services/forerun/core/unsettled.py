"""Shared resources that a write may be changing: it runs, or it ended without an answer of its tool.

The index of a tenant is one small value that all sessions see: who registered -> resource -> until when it is not
trusted. A write is registered before its start is counted, so whoever sees that count finds it here. Its registration
outlives whoever runs it: where nobody takes it off, it ends by itself when the write cannot take effect any more.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from forerun.core import limits
from forerun.core.freshness import bumps
from forerun.core.resources import ROOT

_ANYBODY: Final = ""


@dataclass(frozen=True, slots=True)
class Unsettled:
    """An index. Times are epoch seconds.

    Attributes:
        parts: Who registered -> resource key -> when it is trusted again.
    """

    parts: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def with_part(self, owner: str, part: Mapping[str, float], now: float) -> Unsettled:
        """The index with everything that one owner has registered now. What is over is left out.

        Above its bounds a part is everything: first the new one, which its owner can take back, then the others', who
        write theirs again with their next change.
        """
        parts = {name: kept for name, one in self.parts.items() if name != owner and (kept := _lasting(one, now))}
        if mine := _lasting(part, now):
            parts[owner] = mine
        for name in sorted(parts, key=lambda name: (name != owner, -len(parts[name]))):
            if Unsettled(parts)._fits():
                break
            parts[name] = {ROOT: max(parts[name].values())}
        index = Unsettled(parts)
        if not index._fits():
            return Unsettled({_ANYBODY: {ROOT: max(max(one.values()) for one in parts.values())}})
        return index

    def _fits(self) -> bool:
        few = sum(map(len, self.parts.values())) <= limits.UNSETTLED_KEYS
        return few and len(self.encode()) <= limits.UNSETTLED_BYTES

    def marks(self, now: float) -> frozenset[str]:
        """The marks of `core.freshness` that no result may be judged by now."""
        return frozenset(bumps(key for part in self.parts.values() for key, until in part.items() if until > now))

    def next_end(self, now: float) -> float:
        """When `marks` may give less than now; infinity where there is nothing."""
        ends = (until for part in self.parts.values() for until in part.values() if until > now)
        return min(ends, default=math.inf)

    def encode(self) -> bytes:
        """As it is stored."""
        return json.dumps({owner: dict(part) for owner, part in self.parts.items()}, separators=(",", ":")).encode()

    @staticmethod
    def decode(data: bytes, now: float) -> Unsettled:
        """What was stored. What cannot be read may mean anything, so it means everything."""
        try:
            parts = json.loads(data).items()
            return Unsettled({owner: {key: float(until) for key, until in part.items()} for owner, part in parts})
        except (ValueError, TypeError, AttributeError):
            return Unsettled({_ANYBODY: {ROOT: now + limits.UNSETTLED_SECONDS}})


class OwnWrites:
    """Shared writes of one tenant that one replica runs, or that ended there and may go on. Times are epoch seconds."""

    __slots__ = ("_late", "_running")

    def __init__(self) -> None:
        self._running: dict[str, tuple[tuple[str, ...], float]] = {}
        self._late: dict[str, float] = {}

    def begin(self, write: str, keys: Iterable[str], seconds: float, now: float) -> None:
        """A write will start. Without news of its end it is over when it has had its time, and then could be late.

        Args:
            write: Its id.
            keys: What it writes.
            seconds: How long it may run.
            now: The time.
        """
        self._running[write] = (tuple(keys), _over(now + seconds))

    def end(self, write: str) -> bool:
        """A write has ended, and nothing of it can follow; False where it was not running."""
        return self._running.pop(write, None) is not None

    def linger(self, keys: Iterable[str], now: float) -> None:
        """A write of these keys ended without an answer of its tool."""
        self._late |= dict.fromkeys(keys, _over(now))
        if len(self._late) > limits.UNSETTLED_KEYS:
            self._late = {ROOT: max(self._late.values())}

    def part(self, now: float) -> Mapping[str, float]:
        """What is to be registered: resource key -> when it is trusted again. Forgets what is over."""
        self._running = {write: one for write, one in self._running.items() if one[1] > now}
        self._late = _lasting(self._late, now)
        part = dict(self._late)
        for keys, until in self._running.values():
            for key in keys:
                part[key] = max(until, part.get(key, 0.0))
        return part


def _lasting(part: Mapping[str, float], now: float) -> dict[str, float]:
    return {key: until for key, until in part.items() if until > now}


def _over(ends_at: float) -> float:
    """When nothing can follow any more of a write that ends at a time, by whatever clock that is looked at."""
    return ends_at + limits.UNSETTLED_SECONDS + limits.CLOCK_SKEW_SECONDS
