"""Dashboards and alert rules of an installation: the generated files, where Grafana and Prometheus look for them."""

from __future__ import annotations

import json

import pytest
import yaml

from tests.contract.chart.rendering import CHART, Manifest, helm, manifests, needs_helm

DASHBOARDS = {path.stem: path.read_text() for path in (CHART / "files" / "dashboards").glob("*.json")}
RULES = (CHART / "files" / "rules" / "forerun.yaml").read_text()
# What a cluster with Prometheus' operator says that it has.
PROMETHEUS = ("--api-versions=monitoring.coreos.com/v1", "--api-versions=monitoring.coreos.com/v1/PrometheusRule")


def metrics(*options: str) -> dict[str, Manifest]:
    """What is installed for monitoring, by kind and name."""
    found = [
        one for one in manifests(*options) if one["metadata"]["labels"].get("app.kubernetes.io/component") == "metrics"
    ]
    return {f"{one['kind']}/{one['metadata']['name']}": one for one in found}


@needs_helm
def test_each_dashboard_is_where_grafanas_sidecar_looks() -> None:
    found = metrics("--set=monitoring.dashboards.annotations.folder=Forerun")
    assert DASHBOARDS
    for name, text in DASHBOARDS.items():
        config = found[f"ConfigMap/forerun-dashboard-{name}"]
        assert config["data"] == {f"forerun-{name}.json": text}, "byte for byte what was generated and tested"
        assert json.loads(text)["uid"] == f"forerun-{name}"
        assert config["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert config["metadata"]["annotations"] == {"folder": "Forerun"}
    assert not [name for name in metrics("--set=monitoring.dashboards.enabled=false") if "dashboard" in name]


@needs_helm
def test_rules_are_a_resource_of_prometheus_operator_where_there_is_one() -> None:
    found = metrics(*PROMETHEUS, "--set=monitoring.labels.release=prometheus")
    rule = found["PrometheusRule/forerun"]
    assert rule["spec"] == yaml.safe_load(RULES)
    assert rule["metadata"]["labels"]["release"] == "prometheus"
    assert "ConfigMap/forerun-rules" not in found


@needs_helm
def test_rules_are_a_config_map_where_there_is_none() -> None:
    found = metrics("--set-string=monitoring.rules.labels.prometheus_rule=1")
    config = found["ConfigMap/forerun-rules"]
    assert config["data"] == {"forerun.yaml": RULES}
    assert config["metadata"]["labels"]["prometheus_rule"] == "1"
    assert not [name for name in found if name.startswith("PrometheusRule/")]


@needs_helm
@pytest.mark.parametrize(
    ("kind", "expected"),
    [("prometheusRule", ["PrometheusRule/forerun"]), ("configMap", ["ConfigMap/forerun-rules"]), ("none", [])],
)
def test_whoever_knows_better_says_what_holds_the_rules(kind: str, expected: list[str]) -> None:
    for cluster in ((), PROMETHEUS):
        found = metrics(f"--set=monitoring.rules.kind={kind}", "--set=monitoring.dashboards.enabled=false", *cluster)
        assert [name for name in found if not name.startswith("PodMonitor/")] == expected


@needs_helm
def test_a_kind_that_there_is_not_is_refused_with_its_name() -> None:
    done = helm("template", "forerun", str(CHART), "--set=monitoring.rules.kind=secret")
    assert done.returncode != 0
    assert "kind" in done.stderr
