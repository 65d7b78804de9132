"""Shared resources whose last write ended without an answer of its tool, and may still take effect.

The index of a tenant is one small value that all sessions see: resource -> until when it is not trusted. The resource
is registered before the end of its write is counted, so whoever sees that count finds it here.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from forerun.core import limits
from forerun.core.freshness import bumps
from forerun.core.resources import ROOT


@dataclass(frozen=True, slots=True)
class Unsettled:
    """An index. Times are epoch seconds.

    Attributes:
        until: Resource key -> when it is trusted again.
    """

    until: Mapping[str, float] = field(default_factory=dict)

    def adding(self, keys: Iterable[str], now: float) -> Unsettled:
        """The index with further resources. What is over is left out; above its bounds it is everything."""
        kept = {key: until for key, until in self.until.items() if until > now}
        kept |= dict.fromkeys(keys, now + limits.UNSETTLED_SECONDS)
        index = Unsettled(kept)
        if len(kept) > limits.UNSETTLED_KEYS or len(index.encode()) > limits.UNSETTLED_BYTES:
            return Unsettled({ROOT: max(kept.values())})
        return index

    def marks(self, now: float) -> frozenset[str]:
        """The marks of `core.freshness` that no result may be judged by now."""
        return frozenset(bumps(key for key, until in self.until.items() if until > now))

    def next_end(self, now: float) -> float:
        """When `marks` gives less than now; infinity where there is nothing."""
        return min((until for until in self.until.values() if until > now), default=math.inf)

    def encode(self) -> bytes:
        """As it is stored."""
        return json.dumps(dict(self.until), separators=(",", ":")).encode()

    @staticmethod
    def decode(data: bytes, now: float) -> Unsettled:
        """What was stored. What cannot be read may mean anything, so it means everything."""
        try:
            return Unsettled({str(key): float(until) for key, until in json.loads(data).items()})
        except (ValueError, TypeError, AttributeError):
            return Unsettled({ROOT: now + limits.UNSETTLED_SECONDS})
