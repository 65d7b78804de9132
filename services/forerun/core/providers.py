"""The health of providers: breakers and retry budgets, apart for the agents' own calls and for speculative ones. Pure.

A breaker of speculative traffic stops guesses while a provider fails; a failing guess never touches the breaker of the
agents' own calls. That one never refuses a call, which would change what an agent gets: while it is open a call has one
attempt and no retries, so that a provider that is down is not kept down by a storm (M. Nygard, "Release It!", 2007).
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from forerun.core import limits

_WINDOW: Final = 20
_FAILURES: Final = 5
_SHARE: Final = 0.5
_RETRY_SHARE: Final = 0.1
_RETRIES_AT_MOST: Final = 10.0


class BreakerState(StrEnum):
    """Where a breaker stands."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@dataclass(slots=True)
class Breaker:
    """Opens when at least five, and half, of the last twenty attempts failed; tries again after a growing pause."""

    _recent: deque[bool] = field(default_factory=lambda: deque(maxlen=_WINDOW))
    _open_until: float = 0.0
    _pause: float = 0.0

    def state(self, now: float) -> BreakerState:
        """Open, half open once its pause is over, or closed."""
        if not self._pause:
            return BreakerState.CLOSED
        return BreakerState.OPEN if now < self._open_until else BreakerState.HALF_OPEN

    def pause_left(self, now: float) -> float:
        """Seconds until it tries again; 0 where it does already."""
        return max(0.0, self._open_until - now) if self._pause else 0.0

    def admits(self, now: float) -> bool:
        """An attempt may go: it is not open. The first end of a half-open one decides how it goes on."""
        return self.state(now) is not BreakerState.OPEN

    def record(self, ok: bool, now: float) -> None:
        """Takes the end of an attempt."""
        state = self.state(now)
        if ok:
            self._recent.append(True)
            if state is not BreakerState.CLOSED:
                self._recent.clear()
                self._pause = 0.0
        elif state is BreakerState.HALF_OPEN:
            self._open(now)
        elif state is BreakerState.CLOSED:
            self._recent.append(False)
            failures = sum(not one for one in self._recent)
            if failures >= _FAILURES and failures >= _SHARE * len(self._recent):
                self._open(now)

    def _open(self, now: float) -> None:
        initial, most = limits.BREAKER_PAUSE_INITIAL_SECONDS, limits.BREAKER_PAUSE_MAX_SECONDS
        self._pause = min(most, self._pause * 2.0) if self._pause else initial
        self._open_until = now + self._pause
        self._recent.clear()


@dataclass(slots=True)
class RetryBudget:
    """Retries that a provider may get: each first attempt earns a tenth of one, a few are there at the start."""

    tokens: float = _RETRIES_AT_MOST

    def earn(self) -> None:
        """A first attempt was made."""
        self.tokens = min(_RETRIES_AT_MOST, self.tokens + _RETRY_SHARE)

    def spend(self) -> bool:
        """Takes one retry; False where there is none left."""
        if self.tokens < 1.0:
            return False
        self.tokens -= 1.0
        return True


@dataclass(slots=True)
class Health:
    """What is known of one provider.

    Attributes:
        authoritative: The breaker of the agents' own calls.
        speculative: The breaker of guesses and second attempts.
        retries: What may be tried again.
        probed: A request is on its way that finds out whether the provider is back. One is enough.
    """

    authoritative: Breaker = field(default_factory=Breaker)
    speculative: Breaker = field(default_factory=Breaker)
    retries: RetryBudget = field(default_factory=RetryBudget)
    probed: bool = False

    def breaker(self, *, speculative: bool) -> Breaker:
        """The breaker of one kind of traffic."""
        return self.speculative if speculative else self.authoritative


@dataclass(slots=True)
class Providers:
    """The providers of a replica, bounded: the least recently used one is forgotten."""

    bound: int = limits.PROVIDERS
    table: OrderedDict[tuple[str, str], Health] = field(default_factory=OrderedDict)

    def of(self, tenant: str, provider: str) -> Health:
        """The health of a tenant's provider, made new where there is none."""
        key = (tenant, provider)
        health = self.table.pop(key, None) or Health()
        self.table[key] = health
        if len(self.table) > self.bound:
            self.table.popitem(last=False)
        return health
