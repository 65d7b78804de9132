"""Policies and tool servers from custom resources to the services, on a real API server and a real broker."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import yaml

from forerun.operator.crds.kinds import POLICY, TOOL_SERVER
from tests.cluster.kubernetes.control_plane import ControlPlane, control_plane
from tests.cluster.kubernetes.errors import ClusterError
from tests.cluster.operator_stage import CRDS, Stage, eventually, install_definitions, stage

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


def test_bounds_and_rules_are_enforced_when_somebody_writes(plane: ControlPlane) -> None:
    def refused(kind: str, spec: object, what: str) -> None:
        body = {"apiVersion": "forerun.dev/v1alpha1", "kind": kind, "metadata": {"name": "x", "namespace": "default"}}
        with pytest.raises(ClusterError, match=what):
            plane.kubectl("create", "--filename=-", stdin=json.dumps({**body, "spec": spec}))

    refused("SpeculationPolicy", {"holdOut": 1.5}, "holdOut")
    refused("SpeculationPolicy", {"tools": [{"tool": "t"}]}, "effect: Required")
    refused("SpeculationPolicy", {"tools": [{"tool": "t", "effect": "EFFECT_READ"}] * 2}, "Duplicate value")
    pure = {"tool": "t", "effect": "EFFECT_PURE", "reads": [{"template": "x"}]}
    refused("SpeculationPolicy", {"tools": [pure]}, "something pure reads and writes nothing")
    refused("SpeculationPolicy", {"maxWatse": 1}, "unknown field")
    refused("ToolServer", {"tools": [{"name": "t"}]}, "give each tool one of")
    refused("ToolServer", {"mcp": {"url": "http://x", "command": ["y"]}}, "either a command or a url")
    refused("SpeculationPool", {"target": {"name": "d"}, "minReplicas": 5, "maxReplicas": 2}, "must not be above")
    refused("SpeculationPool", {"target": {"name": "d"}, "maxReplicas": 100_000}, "maxReplicas")


async def test_an_edit_reaches_the_services_within_a_second_and_the_object_says_so(st: Stage) -> None:
    st.operator()
    st.apply(POLICY, "p", {"mode": "MODE_EXACT", "holdOut": 0.1})
    await st.condition(POLICY, "p", "Ready", reason="InForce")
    body = {"spec": {"holdOut": 0.2}}
    began = time.monotonic()
    await st.client.merge(f"/apis/forerun.dev/v1alpha1/namespaces/{st.namespace}/speculationpolicies/p", body)

    async def arrived() -> bool:
        found = await st.published(POLICY, "p")
        return found is not None and found.policies[0].hold_out == 0.2

    await eventually(arrived, "the edit at the services", st.tell)
    assert time.monotonic() - began < 1.0
    await st.condition(POLICY, "p", "Ready", reason="InForce")
    found = await st.get(POLICY, "p")
    published = await st.published(POLICY, "p")
    assert published is not None
    assert found["status"]["publishedVersion"] == published.policies[0].version
    assert found["status"]["observedGeneration"] == found["metadata"]["generation"] == 2
    managers = {one["manager"]: one for one in found["metadata"]["managedFields"] if one.get("subresource") == "status"}
    assert managers["forerun-operator"]["operation"] == "Apply"


async def test_a_broken_policy_keeps_the_good_one_and_a_repair_takes_over(st: Stage) -> None:
    st.operator()
    st.apply(POLICY, "p", {"holdOut": 0.25})
    await st.condition(POLICY, "p", "Ready", reason="InForce")
    broken = {"tool": "t", "effect": "EFFECT_READ", "speculate": True, "openWorld": True, "nfcFields": ["a"]}
    st.apply(POLICY, "p", {"holdOut": 0.5, "tools": [{**broken, "insensitiveFields": ["a"]}]})
    condition = await st.condition(POLICY, "p", "Valid", reason="Invalid")
    assert "nfc_fields" in condition["message"]
    await st.condition(POLICY, "p", "Published", reason="EarlierVersion")
    published = await st.published(POLICY, "p")
    assert published is not None
    assert published.policies[0].hold_out == 0.25
    assert any(one["reason"] == "Invalid" and one["type"] == "Warning" for one in st.events())
    st.apply(POLICY, "p", {"holdOut": 0.5})
    await st.condition(POLICY, "p", "Ready", reason="InForce")
    published = await st.published(POLICY, "p")
    assert published is not None
    assert published.policies[0].hold_out == 0.5


async def test_a_hundred_quick_edits_end_in_the_last_one(st: Stage) -> None:
    st.operator()
    st.apply(POLICY, "p", {})
    await st.condition(POLICY, "p", "Ready", reason="InForce")
    path = f"/apis/forerun.dev/v1alpha1/namespaces/{st.namespace}/speculationpolicies/p"
    for number in range(100):
        await st.client.merge(path, {"spec": {"priority": number + 1}})
    await st.condition(POLICY, "p", "Ready", reason="InForce", generation=101)
    published = await st.published(POLICY, "p")
    assert published is not None
    assert published.policies[0].priority == 100


async def test_a_resource_of_200_kilobytes_is_published(st: Stage) -> None:
    st.operator()
    schema = json.dumps({"type": "object", "description": "x" * 100_000})
    tools = [{"name": f"t{n}", "inputSchema": schema, "http": {"url": "http://tools/x"}} for n in range(2)]
    st.plane.kubectl(
        "create", "--filename=-",
        stdin=json.dumps({"apiVersion": "forerun.dev/v1alpha1", "kind": "ToolServer",
                          "metadata": {"name": "big", "namespace": st.namespace}, "spec": {"tools": tools}}),
    )  # fmt: skip
    await st.condition(TOOL_SERVER, "big", "Ready", reason="InForce")
    published = await st.published(TOOL_SERVER, "big")
    assert published is not None
    assert len(published.servers[0].tools[1].input_schema) > 100_000


async def test_what_is_deleted_is_taken_back_also_while_no_operator_runs(st: Stage) -> None:
    st.operator("first")
    for name in ("gone", "gone-later", "stays"):
        st.apply(POLICY, name, {})
        await st.condition(POLICY, name, "Ready", reason="InForce")
    st.plane.kubectl("delete", "speculationpolicy", "gone", "-n", st.namespace)

    async def taken_back() -> bool:
        return await st.published(POLICY, "gone") is None

    await eventually(taken_back, "taken back", st.tell)
    st.processes.stop("first")
    st.plane.kubectl("delete", "speculationpolicy", "gone-later", "-n", st.namespace, "--timeout=20s")
    assert await st.published(POLICY, "gone-later") is not None
    st.operator("second")

    async def taken_back_later() -> bool:
        return await st.published(POLICY, "gone-later") is None

    await eventually(taken_back_later, "taken back by the next operator", st.tell)
    assert await st.published(POLICY, "stays") is not None


async def test_a_deletion_while_the_broker_is_away_ends_and_is_said_and_made_good(st: Stage) -> None:
    st.operator()
    st.apply(POLICY, "p", {})
    await st.condition(POLICY, "p", "Ready", reason="InForce")
    await st.broker.stop()
    st.plane.kubectl("delete", "speculationpolicy", "p", "-n", st.namespace, "--timeout=20s")

    async def said() -> bool:
        return any(one["reason"] == "BrokerUnavailable" and "still in force" in one["note"] for one in st.events())

    await eventually(said, "the event", st.tell, 60.0)
    await st.broker_back()

    async def taken_back() -> bool:
        return await st.published(POLICY, "p") is None

    await eventually(taken_back, "taken back", st.tell)


async def test_an_edit_while_the_broker_is_away_says_so_and_arrives_later(st: Stage) -> None:
    st.operator()
    st.apply(POLICY, "p", {"priority": 1})
    await st.condition(POLICY, "p", "Ready", reason="InForce")
    await st.broker.stop()
    st.apply(POLICY, "p", {"priority": 2})
    await st.condition(POLICY, "p", "Published", reason="BrokerUnavailable")
    await st.broker_back()
    await st.condition(POLICY, "p", "Ready", reason="InForce")
    published = await st.published(POLICY, "p")
    assert published is not None
    assert published.policies[0].priority == 2


async def test_somebody_elses_fields_in_the_status_are_left_alone(st: Stage) -> None:
    st.operator()
    st.apply(POLICY, "p", {})
    await st.condition(POLICY, "p", "Ready", reason="InForce")
    mine = {"type": "Reviewed", "status": "True", "reason": "ByHand", "message": "", "observedGeneration": 1,
            "lastTransitionTime": "2026-01-01T00:00:00Z"}  # fmt: skip
    found = await st.get(POLICY, "p")
    del found["metadata"]["managedFields"]
    found["status"]["conditions"].append(mine)
    path = f"/apis/forerun.dev/v1alpha1/namespaces/{st.namespace}/speculationpolicies/p/status"
    await st.client._request("PUT", path, found, parameters={"fieldManager": "a-person"})
    st.apply(POLICY, "p", {"priority": 3})
    await st.condition(POLICY, "p", "Ready", reason="InForce", generation=2)
    found = await st.get(POLICY, "p")
    assert "Reviewed" in {one["type"] for one in found["status"]["conditions"]}


async def test_an_old_definition_is_found_out_and_switches_its_policies_off(
    plane: ControlPlane, tmp_path: Path
) -> None:
    old = (CRDS / "speculationpolicies.yaml").read_text()
    definition = yaml.safe_load(old)
    spec = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    del spec["budget"]["properties"]["creditsPerCall"]
    async with stage(plane, tmp_path, "old-definition") as st:
        try:
            plane.kubectl("replace", "--filename=-", stdin=json.dumps(definition))
            st.operator()
            st.apply(POLICY, "p", {"mode": "MODE_EXACT"})
            condition = await st.condition(POLICY, "p", "Ready", reason="DefinitionTooOld")
            assert "spec.budget.creditsPerCall" in condition["message"]
            published = await st.published(POLICY, "p")
            assert published is not None
            assert published.policies[0].off
        finally:
            install_definitions(plane)
        st.processes.stop("operator")
        st.operator("restarted")
        await st.condition(POLICY, "p", "Ready", reason="InForce")
        published = await st.published(POLICY, "p")
        assert published is not None
        assert not published.policies[0].off
