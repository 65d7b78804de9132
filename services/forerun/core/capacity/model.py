"""What goes into a decision on capacity and what comes out of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Reason(StrEnum):
    """Why a pool has the size that was decided."""

    LOAD = "load"
    """It follows the authoritative work that runs and waits."""
    SPECULATION = "speculation"
    """It has more replicas than authoritative work needs, because speculation pays for them."""
    AT_MINIMUM = "at_minimum"
    """The load needs fewer replicas than the minimum."""
    AT_MAXIMUM = "at_maximum"
    """The load needs more replicas than the maximum."""
    IDLE = "idle"
    """Nothing was to be done for so long that the pool is at zero."""
    FIXED = "fixed"
    """A person or another autoscaler has set the size."""
    UNKNOWN = "unknown"
    """The load is not known: everything stays as it was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Limits and prices of a pool.

    Attributes:
        min_replicas: Never fewer; 0 lets an idle pool go to zero.
        max_replicas: Never more.
        fixed_replicas: The size, where somebody else decides it.
        slots_per_replica: Executions that one replica takes.
        target_utilisation: Share of the slots that authoritative work may use before replicas are added.
        scale_down_seconds: The load must have been lower for so long before replicas are taken away.
        idle_seconds: Without any work for so long a pool whose minimum is 0 goes to zero.
        stale_after_seconds: Older signals say nothing.
        speculative_slots_max: Slots for speculation, at most.
        speculative_share: Replicas added for speculation alone, as a share of those for authoritative work.
        lambda_per_second: Worth of a second of an agent's waiting.
        slot_second_cost: Cost of a second of a slot.
        token_depth_max: Drafted tokens at once when there is no load; None where the pool has no model.
    """

    min_replicas: int = 1
    max_replicas: int = 10
    fixed_replicas: int | None = None
    slots_per_replica: int = 1
    target_utilisation: float = 0.8
    scale_down_seconds: float = 300.0
    idle_seconds: float = 600.0
    stale_after_seconds: float = 10.0
    speculative_slots_max: int = 64
    speculative_share: float = 0.2
    lambda_per_second: float = 1.0
    slot_second_cost: float = 1.0
    token_depth_max: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """What was heard of a pool's load.

    Attributes:
        at: When, in seconds of a clock that never goes backwards.
        age_seconds: Age of the oldest report that it is made of; None where there was none: nothing is known.
        running: Authoritative executions that run.
        waiting: Authoritative executions that wait for a slot.
        speculative_wanted: Speculative executions that run, and those that would if there were a slot.
        gain: Seconds of waiting that a second of speculative execution saves; None where that is not known.
        ready_replicas: Replicas that can take work now.
    """

    at: float
    age_seconds: float | None
    running: int = 0
    waiting: int = 0
    speculative_wanted: int = 0
    gain: float | None = None
    ready_replicas: int = 0

    @property
    def demand(self) -> int:
        """Authoritative work, in slots: what runs is work, too, not only what waits."""
        return self.running + self.waiting


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What a pool shall have.

    Attributes:
        replicas: Replicas.
        speculative_slots: Slots that speculation may use, of all workers together.
        token_depth: Tokens that may be drafted at once; None where the pool has no model.
        reason: Why it has this size.
    """

    replicas: int
    speculative_slots: int
    token_depth: int | None
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Peaks:
    """The largest value of a sliding window, in few steps: it forgets at most one step too late, never too early.

    Attributes:
        steps: (number of the step, largest value in it), oldest first.
    """

    steps: tuple[tuple[int, float], ...] = ()

    def with_value(self, at: float, value: float, window_seconds: float, resolution: int) -> Peaks:
        """The window after another value.

        Args:
            at: When.
            value: The value.
            window_seconds: Length of the window.
            resolution: Steps that it is divided into.
        """
        number = int(at / (window_seconds / resolution)) if window_seconds > 0 else int(at)
        kept = [step for step in self.steps if number - resolution <= step[0] < number] if window_seconds > 0 else []
        now = max([value, *(old for step, old in self.steps if step == number and window_seconds > 0)])
        return Peaks(steps=(*kept, (number, now)))

    @property
    def highest(self) -> float:
        """The largest value."""
        return max((value for _, value in self.steps), default=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What later decisions remember.

    Attributes:
        last: The decision that holds.
        needs: Replicas that authoritative work needed, over the time before replicas may be taken away.
        extras: The same of the replicas that speculation would have paid for.
        levels: Authoritative demand of the last seconds.
        anchor: The demand on which the present slots for speculation are based; they change when it is left.
        pays: Speculation was worth replicas of its own.
        helps: Speculation was worth slots that authoritative work leaves free.
        busy_at: When there was work the last time.
    """

    last: Decision
    needs: Peaks = Peaks()
    extras: Peaks = Peaks()
    levels: Peaks = Peaks()
    anchor: float = 0.0
    pays: bool = False
    helps: bool = True
    busy_at: float | None = None


def first_history(replicas: int, rules: Rules, now: float) -> History:
    """What is remembered before the first signal: the size that was found, which stays until the load is known.

    The size that was found counts as needed now, so that a new leader takes nothing away before it has looked as long
    as `scale_down_seconds`.
    """
    found = Decision(replicas=replicas, speculative_slots=0, token_depth=_nothing(rules), reason=Reason.UNKNOWN)
    needs = Peaks().with_value(now, replicas, rules.scale_down_seconds, NEED_STEPS)
    return History(last=found, needs=needs, busy_at=now)


NEED_STEPS = 20
"""Steps of the window before replicas are taken away: 15 s of 5 minutes."""


def _nothing(rules: Rules) -> int | None:
    return None if rules.token_depth_max is None else 0
