"""One operator acts, another takes over, and none needs more rights than it says: on a real API server."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from forerun.operator.crds.kinds import POLICY, POOL
from tests.cluster.kubernetes.control_plane import ControlPlane, control_plane
from tests.cluster.operator_stage import Stage, eventually, install_definitions, stage

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with control_plane(tmp_path_factory.mktemp("plane")) as running:
        install_definitions(running)
        yield running


@pytest.fixture
async def st(plane: ControlPlane, tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Stage]:
    name = request.node.name.replace("_", "-").replace("test-", "")[:40].strip("-")
    async with stage(plane, tmp_path, name) as made:
        yield made


async def holder(st: Stage) -> str:
    lease = await st.client.get(f"/apis/coordination.k8s.io/v1/namespaces/{st.namespace}/leases/forerun-operator")
    return str(lease["spec"]["holderIdentity"])


def leading(st: Stage, name: str) -> bool:
    """What an operator's own log says last of its leadership."""
    said = [line for line in st.processes.log(name).read_text().splitlines() if "leadership changed" in line]
    return bool(said) and '"forerun.leading": true' in said[-1]


async def test_of_two_operators_one_acts_and_the_other_takes_over_within_thirty_seconds(st: Stage) -> None:
    st.operator("one")
    st.apply(POLICY, "p", {"priority": 1})
    await st.condition(POLICY, "p", "Ready", reason="InForce")
    first = await holder(st)
    st.operator("two")

    async def both_run() -> bool:
        return '"ready"' in st.processes.log("two").read_text()

    await eventually(both_run, "the second one", st.tell)
    st.apply(POLICY, "p", {"priority": 2})
    await st.condition(POLICY, "p", "Ready", reason="InForce", generation=2)
    assert await holder(st) == first
    assert leading(st, "one")
    assert not leading(st, "two")

    st.processes.stop("one", kill=True)
    died = time.monotonic()
    st.apply(POLICY, "p", {"priority": 3})
    await st.condition(POLICY, "p", "Ready", reason="InForce", generation=3)
    assert time.monotonic() - died < 30.0
    assert await holder(st) != first
    published = await st.published(POLICY, "p")
    assert published is not None
    assert published.policies[0].priority == 3


async def test_an_operator_that_stops_in_order_hands_over_at_once(st: Stage) -> None:
    st.operator("one")
    st.apply(POLICY, "p", {"priority": 1})
    await st.condition(POLICY, "p", "Ready", reason="InForce")
    st.operator("two")

    async def both_run() -> bool:
        return '"ready"' in st.processes.log("two").read_text()

    await eventually(both_run, "the second one", st.tell)
    st.processes.stop("one", seconds=20.0)
    stopped = time.monotonic()
    st.apply(POLICY, "p", {"priority": 2})
    await st.condition(POLICY, "p", "Ready", reason="InForce", generation=2)
    assert time.monotonic() - stopped < 8.0, "longer than a Lease takes to be noticed free"


async def test_a_frozen_leader_that_wakes_up_writes_nothing_old(st: Stage) -> None:
    pid = st.operator("one")
    st.apply(POLICY, "p", {"priority": 1})
    await st.condition(POLICY, "p", "Ready", reason="InForce")
    first = await holder(st)
    os.kill(pid, signal.SIGSTOP)
    try:
        st.operator("two")

        async def taken_over() -> bool:
            return await holder(st) not in ("", first)

        await eventually(taken_over, "take-over", st.tell)
        st.apply(POLICY, "p", {"priority": 2})
        await st.condition(POLICY, "p", "Ready", reason="InForce", generation=2)
        entry = await st.policies.get(f"speculationpolicies/{st.namespace}/p")
    finally:
        os.kill(pid, signal.SIGCONT)

    async def stepped_down() -> bool:
        return not leading(st, "one")

    await eventually(stepped_down, "the first one sees that it does not lead", st.tell)
    assert await st.policies.get(f"speculationpolicies/{st.namespace}/p") == entry
    assert await holder(st) != first


async def test_a_role_in_its_namespaces_is_enough_and_a_third_one_is_untouched(
    st: Stage, tmp_path: Path, plane: ControlPlane
) -> None:
    plane.kubectl("create", "namespace", "untouched")
    try:
        st.role("namespaced-operator", st.rights(), tmp_path / "kubeconfig")
        st.operator(kubeconfig=tmp_path / "kubeconfig")
        st.apply(POLICY, "theirs", {}, namespace="untouched")
        st.apply(POLICY, "ours", {})
        st.deployment("d", 1)
        st.apply(POOL, "pool", {"target": {"name": "d"}, "replicas": 3, "maxReplicas": 5})
        await st.condition(POLICY, "ours", "Ready", reason="InForce")
        await st.condition(POOL, "pool", "Ready", reason="Sized")

        async def sized() -> bool:
            return await st.replicas("d") == 3

        await eventually(sized, "the Deployment's size", st.tell)
        found = await st.get(POLICY, "theirs", namespace="untouched")
        assert "status" not in found
        assert "lacks a right" not in st.processes.log("operator").read_text()
    finally:
        plane.kubectl("delete", "namespace", "untouched", "--wait=false")


async def test_a_missing_right_is_named_by_log_and_condition(st: Stage, tmp_path: Path) -> None:
    rights = tuple(right for right in st.rights() if right.resource != "deployments/scale")
    assert len(rights) == len(st.rights()) - 1
    st.role("poor-operator", rights, tmp_path / "kubeconfig")
    st.operator(kubeconfig=tmp_path / "kubeconfig")
    st.deployment("d", 1)
    st.apply(POOL, "pool", {"target": {"name": "d"}, "replicas": 3, "maxReplicas": 5})
    condition = await st.condition(POOL, "pool", "Ready", reason="PermissionMissing")
    assert "patch" in condition["message"]
    assert "deployments/scale" in condition["message"]

    async def logged() -> bool:
        wanted = '"forerun.verb": "patch", "forerun.resource": "deployments/scale.apps"'
        return wanted in st.processes.log("operator").read_text()

    await eventually(logged, "the log", st.tell)


async def test_namespace_with_operator_and_objects_goes_in_one_go(st: Stage, plane: ControlPlane) -> None:
    """Nothing holds an object back: the API server removes each at once, whether or not an operator lives."""
    st.operator()
    st.apply(POLICY, "p", {})
    st.apply(POOL, "pool", {"target": {"name": "d"}, "maxReplicas": 5})
    await st.condition(POLICY, "p", "Ready", reason="InForce")
    await st.condition(POOL, "pool", "Ready", reason="TargetNotFound")
    for kind in (POLICY, POOL):
        for one in (await st.client.list(f"/apis/forerun.dev/v1alpha1/namespaces/{st.namespace}/{kind.plural}"))[0]:
            assert "finalizers" not in one["metadata"]
    st.processes.stop("operator", kill=True)
    plane.kubectl("delete", "speculationpolicies,toolservers,speculationpools", "--all", "-n", st.namespace,
                  "--timeout=20s")  # fmt: skip
    items, _ = await st.client.list(f"/apis/forerun.dev/v1alpha1/namespaces/{st.namespace}/speculationpolicies")
    assert items == []
