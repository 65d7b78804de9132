"""Workers that are sized by their load: who decides on their number, and who does not any more."""

from __future__ import annotations

from pathlib import Path

import pytest

from forerun.operator.settings import DefaultPoolSettings, OperatorSettings
from forerun.sandbox.settings import SandboxSettings
from tests.contract.chart.rendering import CHART, Manifest, container, helm, manifests, named, needs_helm, values_file

POOL = "--set=sandbox.pool.enabled=true"


def asked_for(found: list[Manifest], monkeypatch: pytest.MonkeyPatch) -> DefaultPoolSettings:
    """The pool that the operator is told to keep."""
    for variable in container(found, "operator")["env"]:
        if variable["name"] != "POD_IP":
            monkeypatch.setenv(variable["name"], variable["value"])
    return OperatorSettings().default_pool


def pool_of_workers(found: list[Manifest], monkeypatch: pytest.MonkeyPatch) -> str:
    """The pool that a worker reports for."""
    for variable in container(found, "sandbox")["env"]:
        if variable["name"] != "POD_IP":
            monkeypatch.setenv(variable["name"], variable["value"])
    return SandboxSettings().pool


@needs_helm
def test_the_operator_sizes_the_workers_that_report_to_their_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    found = manifests(POOL, "--set=sandbox.pool.minReplicas=2", "--set=sandbox.pool.maxReplicas=6")
    asked = asked_for(found, monkeypatch)
    assert (asked.min_replicas, asked.max_replicas) == (2, 6)
    assert asked.name == pool_of_workers(found, monkeypatch)
    assert named(found, "Deployment", asked.target)["spec"]["template"]["spec"]["containers"][0]["name"] == "sandbox"
    assert "speculationpools" not in {one["kind"].lower() + "s" for one in found}, "the first install would fail"


@needs_helm
def test_nobody_but_the_operator_decides_on_their_number() -> None:
    """An upgrade that says a number would take away the workers that the load had asked for."""
    assert "replicas" not in named(manifests(POOL), "Deployment", "forerun-sandbox")["spec"]
    assert named(manifests(), "Deployment", "forerun-sandbox")["spec"]["replicas"] == 1
    assert named(manifests(POOL), "Deployment", "forerun-verifier")["spec"]["replicas"] == 1
    budgets = {one["metadata"]["name"] for one in manifests(POOL) if one["kind"] == "PodDisruptionBudget"}
    assert "forerun-sandbox" in budgets, "there may be several at any time"


@needs_helm
def test_without_a_pool_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    found = manifests()
    assert asked_for(found, monkeypatch).name == ""
    assert pool_of_workers(found, monkeypatch) == ""


@needs_helm
@pytest.mark.parametrize(
    "settings", ["{}", "{speculative_slots: 20}", "{authoritative_slots: 3, speculative_slots: 0}"]
)
def test_all_slots_of_a_worker_count(settings: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = manifests(POOL, values_file(tmp_path, f"sandbox: {{settings: {settings}}}"))
    asked = asked_for(found, monkeypatch)
    pool_of_workers(found, monkeypatch)
    worker = SandboxSettings()
    assert asked.slots_per_replica == worker.authoritative_slots + worker.speculative_slots


@needs_helm
@pytest.mark.parametrize(
    ("option", "complaint"),
    [
        ("operator.enabled=false,runners.enabled=false", "sandbox.pool.enabled needs operator.enabled"),
        ("operator.namespaces={one,two}", "the release's own namespace among operator.namespaces"),
        ("sandbox.pool.max=3", "max"),
    ],
)
def test_a_pool_that_nobody_would_keep_is_refused(option: str, complaint: str) -> None:
    done = helm(
        "template", "forerun", str(CHART), "--namespace=platform", "--kube-version=1.34.4", POOL, f"--set={option}"
    )
    assert done.returncode != 0
    assert complaint in done.stderr
