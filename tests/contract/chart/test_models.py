"""Models behind an installation: their secrets, the way to them, and that they are published."""

from __future__ import annotations

from pathlib import Path

import pytest

from forerun.orchestrator.settings import OrchestratorSettings
from forerun.runtime.policy import policies_of, read_policy_file
from tests.contract.chart.rendering import container, manifests, needs_helm, pods, values_file


@needs_helm
def test_secrets_of_models_are_mounted_where_the_orchestrator_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    found = manifests("--set=orchestrator.modelSecrets=vendors")
    one = container(found, "orchestrator")
    for variable in one["env"]:
        if variable["name"] != "POD_IP":
            monkeypatch.setenv(variable["name"], variable["value"])
    (mount,) = [
        mount for mount in one["volumeMounts"] if mount["mountPath"] == str(OrchestratorSettings().secrets_directory)
    ]
    assert mount["readOnly"] is True
    (spec,) = [spec for _, spec in pods(found) if spec["containers"][0]["name"] == "orchestrator"]
    (volume,) = [volume for volume in spec["volumes"] if volume["name"] == mount["name"]]
    assert volume["secret"] == {"secretName": "vendors", "defaultMode": 0o440}
    elsewhere = [spec for name, spec in pods(found) if "vendors" in str(spec) and name != "forerun-orchestrator"]
    assert not elsewhere, "only who calls models holds their secrets"


@needs_helm
@pytest.mark.parametrize(
    ("option", "let"),
    [
        ("orchestrator.modelSecrets=", False),
        ("orchestrator.modelSecrets=vendors", True),
        ("policy.models[0].name=m", True),
        ("networkPolicies.models=true", True),
    ],
)
def test_the_orchestrator_reaches_models_where_there_are_any(option: str, let: bool) -> None:
    found = {one["metadata"]["name"]: one for one in manifests(f"--set={option}") if one["kind"] == "NetworkPolicy"}
    assert ("forerun-models" in found) is let
    if let:
        spec = found["forerun-models"]["spec"]
        assert spec["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "orchestrator"
        assert spec["egress"] == found["forerun-tools"]["spec"]["egress"], "metadata services are blocked here as well"


@needs_helm
def test_models_of_the_values_are_published(tmp_path: Path) -> None:
    text = "policy: {models: [{name: m, providers: [{name: house, url: 'http://models:8000/v1'}]}]}"
    found = manifests(values_file(tmp_path, text))
    (config,) = [
        one for one in found if one["kind"] == "ConfigMap" and one["metadata"]["name"].startswith("forerun-policy-")
    ]
    file = tmp_path / "policy.yaml"
    file.write_text(config["data"]["policy.yaml"])
    assert [model.name for model in policies_of(read_policy_file(file)).models] == ["m"]
