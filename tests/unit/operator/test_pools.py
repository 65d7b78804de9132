"""What is known of the load of a pool, and what is made of it."""

from __future__ import annotations

from typing import Any

import pytest

from forerun.core.capacity import Signal
from forerun.operator.engine.conditions import Status, Type
from forerun.operator.engine.loads import Loads
from forerun.operator.engine.pools import Sized, Target, rules_of, size, spec_of, target_of
from forerun.v1 import capacity_pb2, sandbox_pb2


def worker(name: str, *, pool: str = "p", running: int = 0, waiting: int = 0, **more: Any) -> sandbox_pb2.LoadReport:
    return sandbox_pb2.LoadReport(
        worker=name, pool=pool, authoritative_running=running, authoritative_waiting=waiting, **more
    )


def orchestrator(name: str = "o", **more: Any) -> capacity_pb2.DemandReport:
    return capacity_pb2.DemandReport(owner=name, **more)


def test_the_load_of_a_pool_is_the_sum_of_its_workers_that_live() -> None:
    loads = Loads()
    loads.hear_worker(worker("gone", running=50), 0.0)
    loads.hear_worker(worker("one", running=3, waiting=1), 9.0)
    loads.hear_worker(worker("two", running=2), 9.5)
    loads.hear_worker(worker("other", pool="q", running=9), 9.5)
    signal = loads.signal("p", 4, 10.0)
    assert (signal.running, signal.waiting, signal.demand, signal.age_seconds) == (5, 1, 6, 0.5)
    assert loads.workers("p", 10.0) == 2


def test_workers_without_a_pool_say_nothing() -> None:
    loads = Loads()
    loads.hear_worker(worker("w", pool="", running=3), 1.0)
    assert loads.signal("", 1, 1.0).age_seconds is None


def test_silence_of_workers_that_should_be_there_is_unknown_whatever_orchestrators_say() -> None:
    loads = Loads()
    loads.hear_worker(worker("w", running=3), 0.0)
    loads.hear_orchestrator(orchestrator(calls_in_flight=0), 100.0)
    signal = loads.signal("p", 10, 100.0)
    assert signal.age_seconds == 100.0
    assert Loads().signal("p", 10, 100.0).age_seconds is None


def test_a_pool_at_zero_is_woken_by_calls_that_orchestrators_have_in_flight() -> None:
    loads = Loads()
    loads.hear_orchestrator(orchestrator(calls_in_flight=2), 99.0)
    signal = loads.signal("p", 0, 100.0)
    assert (signal.demand, signal.age_seconds) == (2, 1.0)


def test_gain_is_what_speculation_saved_lately_and_unknown_without_evidence() -> None:
    loads = Loads()
    for second in range(0, 100, 5):
        loads.hear_orchestrator(orchestrator(saved_seconds=second * 0.5, speculative_seconds=second), float(second))
        loads.hear_worker(worker("w"), float(second))
    assert loads.signal("p", 1, 95.0).gain == pytest.approx(0.5)
    fresh = Loads()
    fresh.hear_worker(worker("w"), 0.0)
    fresh.hear_orchestrator(orchestrator(saved_seconds=100, speculative_seconds=100), 0.0)
    assert fresh.signal("p", 1, 0.0).gain is None


def test_an_orchestrator_that_began_anew_does_not_turn_the_sums_back() -> None:
    loads = Loads()
    loads.hear_worker(worker("w"), 30.0)
    loads.hear_orchestrator(orchestrator(saved_seconds=0, speculative_seconds=0), 0.0)
    loads.hear_orchestrator(orchestrator(saved_seconds=80, speculative_seconds=40), 10.0)
    loads.hear_orchestrator(orchestrator(saved_seconds=0, speculative_seconds=0), 20.0)
    loads.hear_orchestrator(orchestrator(saved_seconds=0, speculative_seconds=40), 30.0)
    assert loads.signal("p", 1, 30.0).gain == pytest.approx(1.0)


def test_what_found_no_slot_lately_is_wanted() -> None:
    loads = Loads()
    for second, refused in enumerate([0, 0, 5, 9, 9, 9, 9, 9]):
        loads.hear_worker(worker("w", speculative_running=2, speculative_refused=refused), float(second))
        if second == 3:
            assert loads.signal("p", 1, 3.0).speculative_wanted > 2
    assert loads.signal("p", 1, 7.0).speculative_wanted == 2


def pool(**spec: Any) -> dict[str, Any]:
    return {"spec": {"maxReplicas": 20, "target": {"name": "d"}, **spec}}


TEN = Target(asked=10, present=10, ready=10, selector="app=x")


def look(spec: dict[str, Any], signal: Signal, target: Target = TEN) -> Sized:
    return size("p", rules_of(spec_of(spec)), target, signal, None, 2)[1]


def reason(sized: Sized, kind: Type) -> tuple[str, str]:
    return next((one.status.value, one.reason.value) for one in sized.conditions if one.type is kind)


def test_a_pool_whose_load_is_unknown_keeps_its_size() -> None:
    sized = look(pool(), Signal(at=1.0, age_seconds=None))
    assert sized.scale_to is None
    assert sized.status["desiredReplicas"] == 10
    assert reason(sized, Type.SIGNAL_KNOWN) == (Status.FALSE, "NoReports")
    assert reason(sized, Type.SCALING_ACTIVE) == (Status.UNKNOWN, "NoReports")


def test_a_set_size_is_passed_on_whatever_the_load() -> None:
    sized = look(pool(replicas=7), Signal(at=1.0, age_seconds=0.0, running=100, ready_replicas=10))
    assert sized.scale_to == 7
    assert reason(sized, Type.SCALING_ACTIVE) == (Status.FALSE, "ReplicasSet")


def test_a_set_size_of_zero_is_a_size() -> None:
    assert look(pool(replicas=0), Signal(at=1.0, age_seconds=0.0)).scale_to == 0


def test_load_beyond_the_maximum_is_said() -> None:
    sized = look(pool(), Signal(at=1.0, age_seconds=0.0, running=10, waiting=90, ready_replicas=10))
    assert sized.scale_to == 20
    assert reason(sized, Type.READY) == (Status.TRUE, "AtMaximum")


def test_workers_hear_of_their_share_and_models_of_their_cap() -> None:
    quiet = Signal(at=1.0, age_seconds=0.0, running=1, ready_replicas=10)
    sized = look(pool(tokens={"targetModel": "m", "maxDepth": 6}), quiet)
    assert (sized.capacity.workers, sized.capacity.token_depth) == (2, 6)
    assert sized.capacity.speculative_slots == sized.status["speculativeSlots"]
    assert not look(pool(), quiet).capacity.HasField("token_depth")


def test_a_workload_is_read_as_it_is() -> None:
    found = target_of(
        {
            "spec": {"replicas": 3, "selector": {"matchLabels": {"b": "2", "a": "1"}}},
            "status": {"replicas": 2, "readyReplicas": 1},
        }
    )
    assert found == Target(asked=3, present=2, ready=1, selector="a=1,b=2")
    assert target_of({"spec": {"replicas": 0}}).asked == 0
