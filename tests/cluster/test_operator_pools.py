"""Pools on a real API server: sizes by load, by hand, through the scale subresource, and what workers are told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from forerun.operator.crds.kinds import POOL
from forerun.runtime import subjects
from forerun.v1 import capacity_pb2, sandbox_pb2
from tests.cluster.kubernetes.control_plane import ControlPlane, control_plane
from tests.cluster.operator_stage import Stage, eventually, install_definitions, stage

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with control_plane(tmp_path_factory.mktemp("plane")) as running:
        install_definitions(running)
        yield running


@pytest.fixture
async def without_operator(plane: ControlPlane, tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Stage]:
    name = request.node.name.replace("_", "-").replace("test-", "")[:40].strip("-")
    async with stage(plane, tmp_path, name) as made:
        made.deployment("d", 2)
        made.ready("d", 2)
        yield made


@pytest.fixture
async def st(without_operator: Stage) -> Stage:
    without_operator.operator()
    return without_operator


@asynccontextmanager
async def reporting(st: Stage, *, running: int = 0, waiting: int = 0, calls: int | None = None) -> AsyncIterator[None]:
    """A worker (or, with `calls`, an orchestrator alone) reports so much load, again and again."""

    async def report() -> None:
        while True:
            if calls is None:
                load = sandbox_pb2.LoadReport(
                    worker="w", pool="pool", authoritative_running=running, authoritative_waiting=waiting
                )
                await st.bus.notify(subjects.load("w"), load.SerializeToString())
            else:
                demand = capacity_pb2.DemandReport(owner="o", calls_in_flight=calls)
                await st.bus.notify(subjects.demand("o"), demand.SerializeToString())
            await asyncio.sleep(0.2)

    task = asyncio.create_task(report())
    try:
        yield
    finally:
        task.cancel()


async def until_size(st: Stage, size: int) -> None:
    async def reached() -> bool:
        return await st.replicas("d") == size

    await eventually(reached, f"{size} replicas", st.tell)


async def test_a_pool_follows_its_load_up_and_down_and_tells_its_workers(st: Stage) -> None:
    scaling = {"scaleDownSeconds": 3, "slotsPerReplica": 2}
    st.apply(POOL, "pool", {"target": {"name": "d"}, "minReplicas": 1, "maxReplicas": 9, "scaling": scaling})
    async with reporting(st, running=4, waiting=6):
        await until_size(st, 6)
        await st.condition(POOL, "pool", "ScalingActive", reason="FollowsLoad")
        capacity = await st.capacity("pool")
        assert capacity is not None
        assert (capacity.replicas, capacity.speculative_slots) == (6, 0)
    st.ready("d", 6)
    async with reporting(st, running=1):
        await until_size(st, 1)

        async def lent() -> bool:
            found = await st.capacity("pool")
            return found is not None and found.speculative_slots > 0

        await eventually(lent, "slots for speculation", st.tell)
    assert any(one["reason"] == "Scaled" and "to 6 replicas" in one["note"] for one in st.events())


async def test_silence_keeps_the_size_and_is_said(st: Stage) -> None:
    rules = {"scaleDownSeconds": 0, "idleSeconds": 0, "staleAfterSeconds": 2}
    st.apply(POOL, "pool", {"target": {"name": "d"}, "minReplicas": 0, "maxReplicas": 9, "scaling": rules})
    async with reporting(st, running=4, waiting=0):
        await until_size(st, 5)
    st.ready("d", 5)
    await st.condition(POOL, "pool", "SignalKnown", reason="NoReports")
    await st.condition(POOL, "pool", "ScalingActive", reason="NoReports")
    assert await st.replicas("d") == 5


async def test_a_pool_goes_to_zero_and_is_woken_by_a_call_that_waits(st: Stage) -> None:
    rules = {"scaleDownSeconds": 1, "idleSeconds": 2}
    st.apply(POOL, "pool", {"target": {"name": "d"}, "minReplicas": 0, "maxReplicas": 9, "scaling": rules})
    async with reporting(st):
        await until_size(st, 0)
    st.ready("d", 0)
    await st.condition(POOL, "pool", "SignalKnown", reason="NoReports")
    async with reporting(st, calls=1):
        await until_size(st, 1)


async def test_a_set_size_switches_the_operators_own_sizing_off_and_is_never_reset(
    st: Stage, plane: ControlPlane
) -> None:
    st.apply(POOL, "pool", {"target": {"name": "d"}, "minReplicas": 1, "maxReplicas": 9})
    await st.condition(POOL, "pool", "ScalingActive", reason="NoReports")
    plane.kubectl("scale", "speculationpool", "pool", "-n", st.namespace, "--replicas=7")
    async with reporting(st, running=1):
        await until_size(st, 7)
        await st.condition(POOL, "pool", "ScalingActive", reason="ReplicasSet")
        # What a chart's upgrade or a person writes again leaves the size alone, since neither says one.
        st.apply(POOL, "pool", {"target": {"name": "d"}, "minReplicas": 1, "maxReplicas": 8})
        for _ in range(20):
            await st.client.merge(
                f"/apis/forerun.dev/v1alpha1/namespaces/{st.namespace}/speculationpools/pool",
                {"metadata": {"annotations": {"touched": str(_)}}},
            )
        await st.condition(POOL, "pool", "ScalingActive", reason="ReplicasSet", generation=3)
        assert await st.replicas("d") == 7
    found = await st.get(POOL, "pool")
    assert found["spec"]["replicas"] == 7
    assert not any(
        "f:replicas" in json.dumps(one.get("fieldsV1", {}).get("f:spec", {}))
        for one in found["metadata"]["managedFields"]
        if one["manager"] == "forerun-operator"
    )
    scale = await st.client.get(f"/apis/forerun.dev/v1alpha1/namespaces/{st.namespace}/speculationpools/pool/scale")
    assert (scale["spec"]["replicas"], scale["status"]["selector"]) == (7, "app=d")


async def test_of_two_pools_with_one_target_the_older_has_it(st: Stage) -> None:
    st.apply(POOL, "pool", {"target": {"name": "d"}, "replicas": 4, "maxReplicas": 9})
    await st.condition(POOL, "pool", "Ready", reason="Sized")
    await asyncio.sleep(1.1)  # ages are whole seconds
    st.apply(POOL, "another", {"target": {"name": "d"}, "replicas": 8, "maxReplicas": 9})
    condition = await st.condition(POOL, "another", "Ready", reason="TargetTaken")
    assert "pool" in condition["message"]
    assert await st.replicas("d") == 4


async def test_a_deleted_pool_leaves_its_target_and_takes_its_capacity_back(st: Stage, plane: ControlPlane) -> None:
    st.apply(POOL, "pool", {"target": {"name": "d"}, "replicas": 4, "maxReplicas": 9})
    await until_size(st, 4)
    plane.kubectl("delete", "speculationpool", "pool", "-n", st.namespace, "--timeout=20s")

    async def taken_back() -> bool:
        return await st.capacity("pool") is None

    await eventually(taken_back, "capacity taken back", st.tell)
    assert await st.replicas("d") == 4


async def test_a_pool_that_went_while_no_operator_ran_is_found_by_the_next_one(st: Stage, plane: ControlPlane) -> None:
    st.apply(POOL, "pool", {"target": {"name": "d"}, "replicas": 4, "maxReplicas": 9})

    async def told() -> bool:
        return await st.capacity("pool") is not None

    await eventually(told, "the workers' capacity", st.tell)
    st.processes.stop("operator", kill=True)
    plane.kubectl("delete", "speculationpool", "pool", "-n", st.namespace, "--timeout=20s")
    st.operator("next")

    async def taken_back() -> bool:
        return await st.capacity("pool") is None

    await eventually(taken_back, "capacity taken back", st.tell)


OWN = {
    "DEFAULT_POOL__NAME": "own", "DEFAULT_POOL__TARGET": "d", "DEFAULT_POOL__MIN_REPLICAS": "1",
    "DEFAULT_POOL__MAX_REPLICAS": "5", "DEFAULT_POOL__SLOTS_PER_REPLICA": "4",
}  # fmt: skip


async def test_the_pool_of_the_settings_is_made_kept_and_taken_back(
    without_operator: Stage, plane: ControlPlane
) -> None:
    st = without_operator
    st.apply(POOL, "theirs", {"target": {"name": "d2"}, "maxReplicas": 3})
    st.operator("first", settings=OWN)

    async def pools() -> list[str]:
        listed = await st.client.list(f"/apis/forerun.dev/v1alpha1/namespaces/{st.namespace}/speculationpools")
        return sorted(one["metadata"]["name"] for one in listed[0])

    async def made() -> bool:
        return await pools() == ["own", "theirs"]

    await eventually(made, "the pool", st.tell)
    await st.condition(POOL, "own", "ScalingActive", reason="NoReports")
    plane.kubectl("scale", "speculationpool", "own", "-n", st.namespace, "--replicas=4")
    theirs = {"spec": {"maxReplicas": 50, "speculation": {"slotSecondCost": 2.5}}}
    plane.kubectl(
        "patch", "speculationpool", "own", "-n", st.namespace, "--type=merge", f"--patch={json.dumps(theirs)}"
    )

    async def put_right() -> bool:
        return bool((await st.get(POOL, "own"))["spec"]["maxReplicas"] == 5)

    await eventually(put_right, "the maximum of the settings", st.tell)
    await until_size(st, 4)
    spec = (await st.get(POOL, "own"))["spec"]
    assert (spec["replicas"], spec["speculation"]["slotSecondCost"]) == (4, 2.5), "what is a person's stays"
    st.processes.stop("first")
    st.operator("second")

    async def gone() -> bool:
        return await pools() == ["theirs"]

    await eventually(gone, "the end of the pool", st.tell)
    assert await st.replicas("d") == 4
