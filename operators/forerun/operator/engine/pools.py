"""What a pool shall have: its object, its target and its load in, a decision and the pool's status out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf import json_format

from forerun.core.capacity import Decision, History, Rules, Signal, decide, first_history
from forerun.core.capacity import Reason as Why
from forerun.operator.engine.conditions import Condition, Reason, Status, Type
from forerun.v1 import capacity_pb2

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Target:
    """The Deployment or StatefulSet of a pool, as it is.

    Attributes:
        asked: Replicas that it was asked to have.
        present: Replicas that it has.
        ready: Those that can take work.
        selector: Label selector of its pods, as text.
    """

    asked: int
    present: int
    ready: int
    selector: str


@dataclass(frozen=True, slots=True)
class Sized:
    """What one look at a pool gave.

    Attributes:
        decision: What it shall have.
        scale_to: Replicas that the target has to be asked for; None where it was asked already.
        capacity: For the workers.
        status: Fields of the object's status, without conditions.
        conditions: What holds.
    """

    decision: Decision
    scale_to: int | None
    capacity: capacity_pb2.PoolCapacity
    status: Mapping[str, Any]
    conditions: tuple[Condition, ...]


def target_of(workload: Object) -> Target:
    """A Deployment or StatefulSet as a target."""
    status = workload.get("status", {})
    labels = workload["spec"].get("selector", {}).get("matchLabels", {})
    return Target(
        asked=int(workload["spec"].get("replicas", 1)),
        present=int(status.get("replicas", 0)),
        ready=int(status.get("readyReplicas", 0)),
        selector=",".join(f"{name}={value}" for name, value in sorted(labels.items())),
    )


def spec_of(pool: Object) -> capacity_pb2.SpeculationPool:
    """The `spec` of a pool. The API server has filled in defaults and kept everything within bounds."""
    return json_format.ParseDict(pool["spec"], capacity_pb2.SpeculationPool(), ignore_unknown_fields=True)


def rules_of(spec: capacity_pb2.SpeculationPool) -> Rules:
    """The rules that a pool's `spec` means; absent fields mean what `Rules` says."""
    usual, scaling, share = Rules(), spec.scaling, spec.speculation
    depth = None
    if spec.HasField("tokens"):
        depth = spec.tokens.max_depth if spec.tokens.HasField("max_depth") else 8
    return Rules(
        min_replicas=spec.min_replicas if spec.HasField("min_replicas") else usual.min_replicas,
        max_replicas=spec.max_replicas if spec.HasField("max_replicas") else usual.max_replicas,
        fixed_replicas=spec.replicas if spec.HasField("replicas") else None,
        slots_per_replica=scaling.slots_per_replica or usual.slots_per_replica,
        target_utilisation=(scaling.target_utilisation_percent or 80) / 100,
        scale_down_seconds=_or(scaling, "scale_down_seconds", usual.scale_down_seconds),
        idle_seconds=_or(scaling, "idle_seconds", usual.idle_seconds),
        stale_after_seconds=_or(scaling, "stale_after_seconds", usual.stale_after_seconds),
        speculative_slots_max=int(_or(share, "max_slots", usual.speculative_slots_max)),
        speculative_share=_or(share, "max_share_percent", usual.speculative_share * 100) / 100,
        lambda_per_second=_or(share, "lambda_per_second", usual.lambda_per_second),
        slot_second_cost=_or(share, "slot_second_cost", usual.slot_second_cost),
        token_depth_max=depth,
    )


def _or(message: capacity_pb2.ScalingRules | capacity_pb2.SpeculativeShare, field: str, default: float) -> float:
    return float(getattr(message, field)) if message.HasField(field) else default  # type: ignore[arg-type]


def size(
    name: str, rules: Rules, target: Target, signal: Signal, history: History | None, workers: int
) -> tuple[History, Sized]:
    """One look at a pool.

    Args:
        name: The pool's name.
        rules: Of its `spec`.
        target: As it is now.
        signal: Its load.
        history: Of the last look; None at the first one.
        workers: That report for it.
    """
    if history is None:
        history = first_history(target.asked, rules, signal.at)
    history, decision = decide(history, signal, rules)
    capacity = capacity_pb2.PoolCapacity(
        pool=name,
        replicas=decision.replicas,
        speculative_slots=decision.speculative_slots,
        workers=workers,
        reason=decision.reason.value,
    )
    status: dict[str, Any] = {
        "replicas": target.present,
        "readyReplicas": target.ready,
        "desiredReplicas": decision.replicas,
        "selector": target.selector,
        "speculativeSlots": decision.speculative_slots,
    }
    if decision.token_depth is not None:
        capacity.token_depth = status["tokenDepth"] = decision.token_depth
    known = _known(signal, rules)
    if known:
        status["demand"] = signal.demand
    return history, Sized(
        decision=decision,
        scale_to=None if decision.replicas == target.asked else decision.replicas,
        capacity=capacity,
        status=status,
        conditions=(_ready(decision), _signal_known(known, rules), _active(rules, decision)),
    )


def without_target(reason: Reason, message: str) -> tuple[Condition, ...]:
    """The conditions of a pool whose target cannot be sized."""
    return (
        Condition(Type.READY, Status.FALSE, reason, message),
        Condition(Type.SCALING_ACTIVE, Status.FALSE, reason, message),
    )


def _known(signal: Signal, rules: Rules) -> bool:
    return signal.age_seconds is not None and signal.age_seconds <= rules.stale_after_seconds


def _ready(decision: Decision) -> Condition:
    if decision.reason is Why.AT_MAXIMUM:
        return Condition(Type.READY, Status.TRUE, Reason.AT_MAXIMUM, "the load needs more than maxReplicas")
    return Condition(Type.READY, Status.TRUE, Reason.SIZED, "the target has been asked for the decided size")


def _signal_known(known: bool, rules: Rules) -> Condition:
    if known:
        return Condition(Type.SIGNAL_KNOWN, Status.TRUE, Reason.REPORTED, "workers report their load")
    message = f"no worker has reported for {rules.stale_after_seconds:g} s; the pool keeps its size"
    return Condition(Type.SIGNAL_KNOWN, Status.FALSE, Reason.NO_REPORTS, message)


def _active(rules: Rules, decision: Decision) -> Condition:
    if rules.fixed_replicas is not None:
        message = "spec.replicas is set, so somebody else decides on the size"
        return Condition(Type.SCALING_ACTIVE, Status.FALSE, Reason.REPLICAS_SET, message)
    if decision.reason is Why.UNKNOWN:
        return Condition(Type.SCALING_ACTIVE, Status.UNKNOWN, Reason.NO_REPORTS, "the load is not known")
    return Condition(Type.SCALING_ACTIVE, Status.TRUE, Reason.FOLLOWS_LOAD, "the size follows the load")
