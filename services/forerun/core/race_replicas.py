"""One model request over the replicas of its model: where it goes, when it is tried again, when it is raced. Pure.

All retries of a model request are decided here, in one layer: the client of a provider never repeats anything. A
retry goes to the next replica that is well, at once; to the same one only after the wait that it asked for, and not
where it was too slow. Once a replica has sent a token the request is its own: what fails then has failed.

A second attempt (see `race`) is extra traffic, so the breakers of speculative traffic decide whether it may go, and its
failure touches only these.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from forerun.core import limits
from forerun.core.providers import BreakerState, Health
from forerun.core.race import Pace, Race

_FIRST: Final = 0


class Fault(StrEnum):
    """What a failed attempt says of its provider and of the request."""

    REFUSED = "refused"
    """The provider has judged the request: it would refuse it again, and is well."""
    BUSY = "busy"
    """It has not begun, and asks to come back later."""
    FULL = "full"
    """As many requests as allowed go there already: nothing was sent, and that says nothing of the provider."""
    AWAY = "away"
    """No connection: nothing has begun."""
    BROKEN = "broken"
    """It failed on the way, and may have begun."""
    SLOW = "slow"
    """A deadline passed while it had the request. Asking it again would only give it more to do: another one may."""
    STOPPED = "stopped"
    """It was stopped from here, by a cancellation or the request's own deadline: nobody is to blame."""


@dataclass(frozen=True, slots=True)
class Failed:
    """How an attempt has failed.

    Attributes:
        fault: What it says.
        retry_after_seconds: What the provider asked for, or None.
    """

    fault: Fault
    retry_after_seconds: float | None = None

    @property
    def began(self) -> bool:
        """The provider may have begun with it."""
        return self.fault in (Fault.BROKEN, Fault.SLOW, Fault.STOPPED)


@dataclass(frozen=True, slots=True)
class StartAttempt:
    """Send the request.

    Attributes:
        attempt: Number of the attempt, from 0.
        replica: Which replica.
        second: It is a second attempt beside one that runs.
    """

    attempt: int
    replica: int
    second: bool = False


@dataclass(frozen=True, slots=True)
class StopAttempt:
    """Stop an attempt that another one has beaten, down to the connection."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Won:
    """An attempt has sent its first token: its stream is the answer.

    Attributes:
        attempt: Which.
        raced: Another one ran at that moment, or had run beside it.
    """

    attempt: int
    raced: bool


@dataclass(frozen=True, slots=True)
class GaveUp:
    """No attempt will answer; the failure of this one says why."""

    attempt: int


Step = StartAttempt | StopAttempt | Won | GaveUp


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTerms:
    """What holds for one request.

    Attributes:
        repeatable: It may be sent again although an attempt may have begun, and twice at a time.
        speculative: Nobody waits for it: it goes only where the speculative breaker admits it, and is never repeated.
        deadline: When it has to have ended.
        race: When a second attempt is worth it; None never races.
        second_cost: Price of a second attempt.
        second_worth: What a second of waiting is worth, in the same money.
        alpha: The operator's dial between cost (0) and speed (1).
        affords: Asked before what may have begun, and so may have cost its price, is sent again: whether there is
            money for that. True takes it. None where money does not matter.
    """

    repeatable: bool = True
    speculative: bool = False
    deadline: float = math.inf
    race: Race | None = None
    second_cost: float = 0.0
    second_worth: float = 1.0
    alpha: float = 0.0
    affords: Callable[[], bool] | None = None


@dataclass(slots=True)
class ReplicaRace:
    """The state of one request.

    Attributes:
        terms: What holds for it.
        replicas: The health of each replica, in the order of preference.
        pace: Times to the first token of the model.
    """

    terms: RequestTerms
    replicas: Sequence[Health]
    pace: Pace
    winner: int | None = None
    over: bool = False
    attempts: int = 0
    _running: dict[int, StartAttempt] = field(default_factory=dict)
    _began_at: dict[int, float] = field(default_factory=dict)
    _second_at: float = math.inf
    _retry_at: float = math.inf
    _retry_replica: int = 0
    _last_failed: int = 0
    _raced: bool = False
    _due_at: float = math.inf
    _probes: dict[int, Health] = field(default_factory=dict)
    _slow: set[int] = field(default_factory=set)

    def begin(self, now: float) -> list[Step]:
        """Sends the first attempt; a speculative request gives up where no replica admits it."""
        speculative = self.terms.speculative
        order = range(len(self.replicas))
        if speculative:
            fit = [one for one in order if self.replicas[one].breaker(speculative=True).admits(now)]
            if not fit:
                self.over = True
                return [GaveUp(0)]
            return self._start(fit[0], now)
        replica = next((one for one in order if self._fit(one, now)), 0)
        self.replicas[replica].retries.earn()
        self.pace.calls += 1
        steps = self._start(replica, now)
        race = self.terms.race
        delay = self.pace.delay(race) if race is not None and self.terms.repeatable and len(order) > 1 else None
        if delay is not None:
            self._second_at = self._due_at = now + delay
        return steps

    def next_time(self) -> float:
        """When `tick` is due; infinite where nothing is."""
        return min(self._second_at, self._retry_at)

    def retry_after(self, now: float) -> float | None:
        """Seconds until the first breaker tries its replica again; None where one of them does already."""
        left = min(one.authoritative.pause_left(now) for one in self.replicas)
        return left if left > 0.0 else None

    def tick(self, now: float) -> list[Step]:
        """Time has passed."""
        if self.over:
            return []
        if now >= self._retry_at:
            self._retry_at = math.inf
            return self._start(self._retry_replica, now)
        if now >= self._second_at:
            self._second_at = math.inf
            return self._race(now)
        return []

    def first_token(self, attempt: int, now: float) -> list[Step]:
        """An attempt has sent something. The first one to do so has won."""
        if self.over or self.winner is not None or attempt not in self._running:
            return []
        self.winner = attempt
        self._second_at = self._retry_at = math.inf
        steps: list[Step] = [Won(attempt, self._raced)]
        if not self.terms.speculative:
            self._learn(attempt, now)
        steps += [StopAttempt(one) for one in sorted(self._running) if one != attempt]
        return steps

    def finished(self, attempt: int, now: float) -> list[Step]:
        """An attempt has ended well."""
        started = self._ended(attempt)
        if started is not None:
            self._record(started, ok=True, now=now)
        if attempt == self.winner:
            self.over = True
        return []

    def failed(self, attempt: int, failed: Failed, now: float) -> list[Step]:
        """An attempt has failed, or was stopped."""
        started = self._ended(attempt)
        if started is None:
            return []
        if attempt == _FIRST and self.winner is None and now > self._due_at:
            # It was waited for in vain, which teaches what a second attempt would have hidden.
            self.pace.outlived(now - self._due_at, seen_to_end=failed.fault is not Fault.STOPPED)
        if failed.fault is Fault.SLOW:
            self._slow.add(started.replica)
        if failed.fault is Fault.REFUSED:
            self._record(started, ok=True, now=now)
        elif failed.fault not in (Fault.STOPPED, Fault.FULL):
            self._record(started, ok=False, now=now)
        if self.over or (self.winner is not None and attempt != self.winner):
            return []
        if attempt == self.winner:
            return self._give_up(attempt)
        if not started.second:
            self._last_failed = attempt
        if self._running:
            return []  # the other attempt decides
        self._second_at = math.inf
        if started.second:
            attempt = self._last_failed
        again = self._retry(started, failed, now)
        return self._give_up(attempt) if again is None else again

    # ------------------------------------------------------------ inside

    def _start(self, replica: int, now: float, *, second: bool = False) -> list[Step]:
        step = StartAttempt(self.attempts, replica, second)
        health = self.replicas[replica]
        if not second and not self.terms.speculative and health.authoritative.state(now) is BreakerState.HALF_OPEN:
            health.probed = True
            self._probes[step.attempt] = health
        self._running[step.attempt] = step
        self._began_at[step.attempt] = now
        self.attempts += 1
        return [step]

    def _ended(self, attempt: int) -> StartAttempt | None:
        probed = self._probes.pop(attempt, None)
        if probed is not None:
            probed.probed = False
        return self._running.pop(attempt, None)

    def _learn(self, attempt: int, now: float) -> None:
        """A beaten first attempt counts with the time that it had: it is longer than the quantile (see `Pace`)."""
        first = min(self._running)
        self.pace.observe(now - self._began_at[first])
        if first == _FIRST and now > self._due_at:
            self.pace.outlived(now - self._due_at, seen_to_end=attempt == first)

    def _race(self, now: float) -> list[Step]:
        race = self.terms.race
        if race is None or len(self._running) != 1 or not self.pace.may_add(race) or not self._pays():
            return []
        (running,) = self._running.values()
        for offset in range(1, len(self.replicas)):
            replica = (running.replica + offset) % len(self.replicas)
            if self.replicas[replica].breaker(speculative=True).admits(now):
                self.pace.extra += 1
                self._raced = True
                return self._start(replica, now, second=True)
        return []

    def _pays(self) -> bool:
        """The governor's rule with all of the cost as extra: what it hides is worth (2 - alpha) times its price."""
        price = (2.0 - self.terms.alpha) * self.terms.second_cost
        return price <= 0.0 or self.terms.second_worth * self.pace.hidden_seconds() >= price

    def _retry(self, last: StartAttempt, failed: Failed, now: float) -> list[Step] | None:
        """Tries again, now or at `next_time`; None where it may not or must not."""
        if self.terms.speculative or failed.fault in (Fault.REFUSED, Fault.STOPPED):
            return None
        if self.attempts >= limits.CALL_ATTEMPTS or (failed.began and not self.terms.repeatable):
            return None
        others = ((last.replica + offset) % len(self.replicas) for offset in range(1, len(self.replicas)))
        replica = next((one for one in others if one not in self._slow and self._fit(one, now)), last.replica)
        wait = 0.0
        if replica == last.replica:
            well = self.replicas[replica].authoritative.state(now) is BreakerState.CLOSED
            if replica in self._slow or not well:
                return None
            backoff = limits.RETRY_BACKOFF_INITIAL_SECONDS * 2.0 ** (self.attempts - 1)
            wait = max(min(backoff, limits.RETRY_BACKOFF_MAX_SECONDS), failed.retry_after_seconds or 0.0)
        if now + wait >= self.terms.deadline or (failed.began and not self._affords()):
            return None
        if not self.replicas[replica].retries.spend():
            return None
        if not wait:
            return self._start(replica, now)
        self._retry_replica, self._retry_at = replica, now + wait
        return []

    def _affords(self) -> bool:
        return self.terms.affords is None or self.terms.affords()

    def _fit(self, replica: int, now: float) -> bool:
        """It is well, or may be back and nobody has asked it yet."""
        health = self.replicas[replica]
        state = health.authoritative.state(now)
        return state is BreakerState.CLOSED or (state is BreakerState.HALF_OPEN and not health.probed)

    def _record(self, started: StartAttempt, *, ok: bool, now: float) -> None:
        speculative = started.second or self.terms.speculative
        self.replicas[started.replica].breaker(speculative=speculative).record(ok, now)

    def _give_up(self, attempt: int) -> list[Step]:
        self.over = True
        return [GaveUp(attempt)]
