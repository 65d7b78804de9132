"""Runners as the chart makes them: what is in their pods, who reaches them, and who uses them."""

from __future__ import annotations

from typing import Any

import pytest

from forerun.operator.settings import OperatorSettings
from forerun.sandbox.isolation.levels import Choice
from forerun.sandbox.runners.settings import RunnerSettings
from forerun.sandbox.settings import SandboxSettings, names
from tests.contract.chart.rendering import CHART, container, helm, manifests, named, needs_helm

Manifest = dict[str, Any]


def template(found: list[Manifest]) -> Manifest:
    made: Manifest = named(found, "Deployment", "forerun-runners")["spec"]["template"]
    return made


def worker(found: list[Manifest], monkeypatch: pytest.MonkeyPatch) -> SandboxSettings:
    """The settings that the worker is given."""
    with monkeypatch.context() as patch:
        for variable in container(found, "sandbox")["env"]:
            if variable["name"] != "POD_IP":
                patch.setenv(variable["name"], variable["value"])
        return SandboxSettings()


@needs_helm
def test_a_runner_s_pod_holds_no_credentials() -> None:
    spec = template(manifests())["spec"]
    assert spec["automountServiceAccountToken"] is False
    (runner,), (key,) = spec["containers"], spec["initContainers"]
    secret = {volume["name"] for volume in spec["volumes"] if "emptyDir" not in volume}
    assert secret == {"authority"}
    assert secret.isdisjoint(mount["name"] for mount in runner["volumeMounts"]), "only what makes its key sees it"
    assert "authority" in {mount["name"] for mount in key["volumeMounts"]}
    # What is written by a session is in volumes that go with the pod, and are empty when the runner begins.
    emptied = {one.removeprefix("--empty=") for one in key["args"] if one.startswith("--empty=")}
    written = {mount["mountPath"] for mount in runner["volumeMounts"]}
    assert written - emptied == {"/run/forerun/key"}
    assert all("sizeLimit" in volume["emptyDir"] for volume in spec["volumes"] if "emptyDir" in volume)


@needs_helm
def test_a_runner_takes_the_settings_that_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    (runner,) = template(manifests("--set=runners.settings.max_free_seconds=3600"))["spec"]["containers"]
    for variable in runner["env"]:
        monkeypatch.setenv(variable["name"], variable["value"])
    settings = RunnerSettings()
    assert (str(settings.key_directory), settings.max_free_seconds) == ("/run/forerun/key", 3600.0)
    mounted = {mount["mountPath"] for mount in runner["volumeMounts"]} | {"/dev/shm"}
    assert set(names(settings.emptied)) | {str(settings.key_directory), "/scratch"} == mounted
    assert settings.token_file is settings.internal_token_file is settings.nats_password_file is None


@needs_helm
def test_workers_use_runners_and_nothing_weaker(monkeypatch: pytest.MonkeyPatch) -> None:
    found = manifests()
    settings = worker(found, monkeypatch)
    assert settings.isolation is Choice.POD
    assert settings.runners == "forerun-runners:7470"
    assert settings.runners_tls() is not None
    assert (settings.runners_own_kernel, settings.runners_reach_out, settings.trusted_servers) == (False, False, "")
    service = named(found, "Service", "forerun-runners")["spec"]
    assert service["clusterIP"] == "None"
    assert "publishNotReadyAddresses" not in service, "those that are taken have no name"
    assert service["selector"].items() <= template(found)["metadata"]["labels"].items()


@needs_helm
def test_what_values_say_of_runners_reaches_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    found = manifests(
        "--set=runners.runtimeClassName=kata", "--set=runners.ownKernel=true", "--set=runners.trustedServers={mine}",
        "--set-json=runners.egress=[{\"to\": [{\"ipBlock\": {\"cidr\": \"10.9.0.0/16\"}}]}]", "--set=demo.enabled=true",
    )  # fmt: skip
    assert template(found)["spec"]["runtimeClassName"] == "kata"
    settings = worker(found, monkeypatch)
    assert (settings.runners_own_kernel, settings.runners_reach_out) == (True, True)
    assert names(settings.trusted_servers) == ("mine", "workbench"), "the demo's tools are the platform's own"
    policy = named(found, "NetworkPolicy", "forerun-runners")["spec"]
    assert policy["egress"] == [{"to": [{"ipBlock": {"cidr": "10.9.0.0/16"}}]}]


@needs_helm
def test_only_workers_reach_runners_which_reach_nothing() -> None:
    found = manifests()
    labels = template(found)["metadata"]["labels"]
    policies = [
        one["spec"]
        for one in found
        if one["kind"] == "NetworkPolicy" and one["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
    ]
    (policy,) = policies  # those of the services, which let them ask names and be asked for metrics, are not theirs
    assert (policy["policyTypes"], policy["egress"]) == (["Ingress", "Egress"], [])
    (rule,) = policy["ingress"]
    assert rule["ports"] == [{"port": 7470}]
    (peer,) = rule["from"]
    assert peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "sandbox"


@needs_helm
def test_the_operator_replaces_exactly_the_runners_of_its_release(monkeypatch: pytest.MonkeyPatch) -> None:
    found = manifests()
    for variable in container(found, "operator")["env"]:
        if variable["name"] != "POD_IP":
            monkeypatch.setenv(variable["name"], variable["value"])
    selector = dict(part.split("=") for part in OperatorSettings().runners_selector.split(","))
    assert selector.items() <= template(found)["metadata"]["labels"].items()
    for deployment in (one for one in found if one["kind"] == "Deployment"):
        if deployment["metadata"]["name"] != "forerun-runners":
            assert not selector.items() <= deployment["spec"]["template"]["metadata"]["labels"].items()


@needs_helm
def test_without_runners_commands_run_in_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    found = manifests("--set=runners.enabled=false")
    assert not [one for one in found if one["metadata"]["name"] == "forerun-runners"]
    settings = worker(found, monkeypatch)
    assert (settings.runners, settings.isolation) == ("", Choice.AUTO)
    refused = helm("template", "forerun", str(CHART), "--kube-version=1.34.4", "--set=operator.enabled=false")
    assert refused.returncode != 0
    assert "runners.enabled needs operator.enabled" in refused.stderr
