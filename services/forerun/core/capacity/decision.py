"""The decision itself.

Replicas follow the authoritative work that runs and waits: up at once, down only to what was needed at most during the
last minutes. Speculation gets what authoritative work leaves, less a reserve for its next seconds; that share is based
on an *anchor*, a level of demand that is left only by a clear step, so that a swing of 10 % changes nothing, while a
real rise gives slots back with the next report and a real fall returns them within seven seconds.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from forerun.core.capacity.model import NEED_STEPS, Decision, History, Peaks, Reason, Rules, Signal

# Demand of the last seconds: long enough to see through the noise of single calls, short enough to follow in 15 s.
_LEVEL_SECONDS: Final = 7.0
_LEVEL_STEPS: Final = 7

# How far demand may leave its anchor before slots change, as a share and in standard deviations of random arrivals.
# Upwards is the side on which agents would wait, so it is the narrow one; together they are wider than a 10 % swing.
_RISE: Final = 0.15
_RISE_DEVIATIONS: Final = 1.5
_FALL: Final = 0.30
_FALL_DEVIATIONS: Final = 3.0
_FALL_MOST: Final = 0.6

# What authoritative work may need before the next report is acted on, above the level at which slots are given back.
_RESERVE_DEVIATIONS: Final = 2.5

# How far the replicas that are needed may leave those that there are, as shares; together wider than a 10 % swing, too.
# A pool that grows takes a little more, so that a rise is few steps. Small pools follow by single replicas.
_GROW_FROM: Final = 1.12
_GROW_BEYOND: Final = 1.05
_SHRINK_FROM: Final = 0.75
_SMALL: Final = 4

# Speculation gets replicas of its own where it is worth clearly more than they cost, and keeps them while it is not
# clearly worth less.
_PAYS_FROM: Final = 1.2
_PAYS_UNTIL: Final = 0.9

# Utilisation up to which drafts may have their full depth, and from which there are none.
_DEPTH_FULL_UNTIL: Final = 0.5
_DEPTH_NONE_FROM: Final = 0.9


def decide(history: History, signal: Signal, rules: Rules) -> tuple[History, Decision]:
    """What a pool shall have now.

    Args:
        history: What the last call gave, or `first_history`.
        signal: What was heard.
        rules: Limits and prices.

    Returns:
        The new history, and the decision.
    """
    if signal.age_seconds is None or signal.age_seconds > rules.stale_after_seconds:
        return _held(history, rules)
    history = _heard(history, signal, rules)
    replicas, reason = _replicas(history, signal, rules)
    decision = Decision(
        replicas=replicas,
        speculative_slots=_speculative_slots(history, signal, rules),
        token_depth=_token_depth(history, signal, rules),
        reason=reason,
    )
    return replace(history, last=decision), decision


def _held(history: History, rules: Rules) -> tuple[History, Decision]:
    """Nothing is known: an outage of the signal is no reason to take capacity away, nor to add it."""
    replicas = history.last.replicas if rules.fixed_replicas is None else rules.fixed_replicas
    decision = replace(history.last, replicas=replicas, reason=Reason.UNKNOWN)
    return replace(history, last=decision), decision


def _heard(history: History, signal: Signal, rules: Rules) -> History:
    """The history with what was heard."""
    levels = history.levels.with_value(signal.at, signal.demand, _LEVEL_SECONDS, _LEVEL_STEPS)
    pays, helps = _worth(history, signal, rules)
    need = _replicas_for(signal.demand, rules)
    extra = _replicas_for_speculation(signal, rules, need) if pays else 0
    busy = signal.demand > 0 or signal.speculative_wanted > 0
    return History(
        last=history.last,
        needs=history.needs.with_value(signal.at, need, rules.scale_down_seconds, NEED_STEPS),
        extras=history.extras.with_value(signal.at, extra, rules.scale_down_seconds, NEED_STEPS) if pays else Peaks(),
        levels=levels,
        anchor=_anchor(history.anchor, levels.highest, signal),
        pays=pays,
        helps=helps,
        busy_at=signal.at if busy or history.busy_at is None else history.busy_at,
    )


def _worth(history: History, signal: Signal, rules: Rules) -> tuple[bool, bool]:
    """Whether speculation is worth replicas of its own, and slots that are free anyway. Unknown keeps both answers."""
    if signal.gain is None:
        return history.pays, history.helps
    worth = signal.gain * rules.lambda_per_second
    bound = _PAYS_UNTIL if history.pays else _PAYS_FROM
    return worth >= bound * rules.slot_second_cost and worth > 0, worth > 0


# ---------------------------------------------------------------- replicas


def _replicas_for(demand: int, rules: Rules) -> int:
    """Enough for all of it, and for the utilisation as far as whole replicas allow: one execution needs one."""
    exact = demand / rules.slots_per_replica
    return max(math.ceil(exact), math.floor(exact / rules.target_utilisation))


def _replicas_for_speculation(signal: Signal, rules: Rules, need: int) -> int:
    wanted = min(signal.speculative_wanted, rules.speculative_slots_max)
    return min(math.ceil(wanted / rules.slots_per_replica), math.floor(need * rules.speculative_share))


def _replicas(history: History, signal: Signal, rules: Rules) -> tuple[int, Reason]:
    if rules.fixed_replicas is not None:
        return rules.fixed_replicas, Reason.FIXED
    need = int(history.needs.highest)
    wanted = _steady(history.last.replicas, need + int(history.extras.highest))
    since = signal.at if history.busy_at is None else history.busy_at
    idle = since < signal.at and signal.at - since >= rules.idle_seconds
    if rules.min_replicas == 0 and idle:
        return 0, Reason.IDLE
    # A pool that may go to zero and is not idle yet keeps its last replica: the next call would wait for a new one.
    least = max(rules.min_replicas, 1 if history.last.replicas > 0 else 0)
    if wanted < least:
        return least, Reason.AT_MINIMUM
    if wanted > rules.max_replicas:
        return rules.max_replicas, Reason.AT_MAXIMUM
    return wanted, Reason.SPECULATION if wanted > need else Reason.LOAD


def _steady(present: int, wanted: int) -> int:
    """What is wanted, or what there is while the difference is no more than a swing."""
    small = min(present, wanted) <= _SMALL
    if wanted > present and (small or wanted > present * _GROW_FROM):
        return max(wanted, math.floor(wanted * _GROW_BEYOND))
    if wanted < present and (small or wanted <= present * _SHRINK_FROM - 1):
        return max(wanted, math.floor(wanted * _GROW_BEYOND))
    return present


# ---------------------------------------------------------------- what speculation may have


def _anchor(anchor: float, level: float, signal: Signal) -> float:
    if signal.waiting > 0:
        return max(level, signal.demand)  # agents wait: whatever was lent is given back
    if level > _rise_from(anchor) or level <= _fall_from(anchor):
        return level
    return anchor


def _rise_from(anchor: float) -> float:
    return anchor + max(1.0, _RISE * anchor, _RISE_DEVIATIONS * math.sqrt(anchor))


def _fall_from(anchor: float) -> float:
    # Noise of small numbers is as large as they are; a level that is left by most of itself is left nevertheless.
    noise = min(_FALL_DEVIATIONS * math.sqrt(anchor), _FALL_MOST * anchor)
    return anchor - max(1.0, _FALL * anchor, noise)


def _speculative_slots(history: History, signal: Signal, rules: Rules) -> int:
    if not history.helps or signal.waiting > 0:
        return 0
    reserved = _rise_from(history.anchor) + _RESERVE_DEVIATIONS * math.sqrt(max(1.0, history.anchor))
    free = math.floor(signal.ready_replicas * rules.slots_per_replica - reserved)
    return max(0, min(free, rules.speculative_slots_max))


def _token_depth(history: History, signal: Signal, rules: Rules) -> int | None:
    if rules.token_depth_max is None:
        return None
    slots = signal.ready_replicas * rules.slots_per_replica
    if signal.waiting > 0 or slots == 0:
        return rules.token_depth_max if signal.demand == 0 else 0
    free = (_DEPTH_NONE_FROM - history.anchor / slots) / (_DEPTH_NONE_FROM - _DEPTH_FULL_UNTIL)
    return math.floor(rules.token_depth_max * min(1.0, max(0.0, free)))
