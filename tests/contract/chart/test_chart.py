"""What the chart installs, and what it refuses."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from forerun.operator.kubernetes.rights import Right, needed
from forerun.operator.settings import OperatorSettings
from forerun.orchestrator.settings import OrchestratorSettings
from forerun.predictor.settings import PredictorSettings
from forerun.runtime.settings import ServiceSettings
from forerun.runtime.topology import TOPOLOGY
from forerun.sandbox.settings import SandboxSettings
from forerun.snapshots.settings import SnapshotsSettings
from forerun.verifier.settings import VerifierSettings
from tests.contract.chart.rendering import (
    CHART,
    PROFILES,
    container,
    helm,
    manifests,
    named,
    needs_helm,
    pods,
    render,
    values_file,
)

SERVICES: dict[str, type[ServiceSettings]] = {
    "orchestrator": OrchestratorSettings,
    "predictor": PredictorSettings,
    "verifier": VerifierSettings,
    "snapshots": SnapshotsSettings,
    "sandbox": SandboxSettings,
    "operator": OperatorSettings,
}
EVERYTHING = ("--set=demo.enabled=true", "--set=monitoring.podMonitor=true")


def labels_match(selector: dict[str, str], labels: dict[str, str]) -> bool:
    return selector.items() <= labels.items()


@needs_helm
@pytest.mark.parametrize("profile", [None, *PROFILES])
def test_it_renders_the_same_bytes_twice(profile: str | None) -> None:
    assert render(*EVERYTHING, profile=profile) == render(*EVERYTHING, profile=profile)


@needs_helm
@pytest.mark.parametrize("profile", [None, *PROFILES])
def test_helm_finds_nothing_to_complain_about(profile: str | None) -> None:
    values = [] if profile is None else [f"--values={CHART / 'profiles' / f'{profile}.yaml'}"]
    done = helm("lint", "--strict", str(CHART), *values)
    assert done.returncode == 0, done.stdout


@needs_helm
@pytest.mark.parametrize("profile", [None, *PROFILES])
def test_every_pod_is_restricted(profile: str | None) -> None:
    """The pod security standard `restricted`, and a read-only root beyond it."""
    for name, spec in pods(manifests(*EVERYTHING, profile=profile)):
        assert spec["securityContext"]["runAsNonRoot"] is True, name
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec), name
        assert not any("hostPath" in volume for volume in spec.get("volumes", ())), name
        for one in [*spec.get("initContainers", ()), *spec["containers"]]:
            context = one["securityContext"]
            assert context["allowPrivilegeEscalation"] is False, (name, one["name"])
            assert context["readOnlyRootFilesystem"] is True, (name, one["name"])
            assert context["capabilities"] == {"drop": ["ALL"]}, (name, one["name"])
            assert one["resources"]["limits"]["memory"], (name, one["name"])


@needs_helm
def test_only_operator_and_credentials_may_ask_the_api_server() -> None:
    found = manifests(*EVERYTHING)
    asking = [name for name, spec in pods(found) if spec.get("automountServiceAccountToken") is not False]
    jobs = ["forerun-credentials-make", "forerun-credentials-remove"]
    assert sorted(asking) == [*jobs, "forerun-operator"]
    role = named(found, "Role", "forerun-credentials")
    assert {verb for rule in role["rules"] for verb in rule["verbs"]} == {"create", "get", "patch", "delete"}
    assert not [one for one in found if one["kind"].startswith("Cluster")]


@needs_helm
@pytest.mark.parametrize(
    ("options", "watched"),
    [
        ((), ("platform",)),
        (("--set=operator.namespaces={one,two}",), ("one", "two")),
        (("--set=operator.allNamespaces=true",), None),
        (("--set=runners.enabled=false",), ("platform",)),
        (("--set=sandbox.pool.enabled=true",), ("platform",)),
        (("--set=sandbox.pool.enabled=true", "--set=operator.allNamespaces=true"), None),
    ],
)
def test_the_operator_may_do_what_it_does_and_nothing_else(
    options: tuple[str, ...], watched: tuple[str, ...] | None
) -> None:
    found = manifests(*options)
    granted = set()
    for role in found:
        if role["kind"] in ("Role", "ClusterRole") and role["metadata"]["name"] != "forerun-credentials":
            namespace = role["metadata"].get("namespace", "platform") if role["kind"] == "Role" else ""
            granted |= {
                Right(namespace, group, resource, verb)
                for rule in role["rules"]
                for group in rule["apiGroups"]
                for resource in rule["resources"]
                for verb in rule["verbs"]
            }
    default_pool = "--set=sandbox.pool.enabled=true" in options
    runners = "--set=runners.enabled=false" not in options
    assert granted == set(needed(watched, "platform", default_pool=default_pool, runners=runners))
    variables = {one["name"]: one.get("value") for one in container(found, "operator")["env"]}
    assert variables["FORERUN_OPERATOR_NAMESPACES"] == ",".join(watched or ())


@needs_helm
@pytest.mark.parametrize("service", SERVICES)
def test_a_service_takes_the_settings_that_it_is_given(service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = SERVICES[service]
    for variable in container(manifests("--set=sandbox.toolSecrets=mine"), service)["env"]:
        if variable["name"] != "POD_IP":
            monkeypatch.setenv(variable["name"], variable["value"])
    settings = kind()
    assert settings.nats_url == "tls://forerun-nats:4222"
    assert str(settings.nats_ca_file) == "/secrets/nats-authority/ca.crt"
    assert settings.listen_address.startswith("0.0.0.0:")
    assert settings.drain_seconds == 5.0


@needs_helm
def test_further_settings_reach_their_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "orchestrator: {settings: {max_sessions: 7, sandbox_targets: ['a:1', 'b:2'], replica: one}}"
    for variable in container(manifests(values_file(tmp_path, text)), "orchestrator")["env"]:
        if variable["name"] != "POD_IP":
            monkeypatch.setenv(variable["name"], variable["value"])
    settings = OrchestratorSettings()
    assert (settings.max_sessions, settings.sandbox_targets, settings.replica) == (7, ("a:1", "b:2"), "one")


@needs_helm
def test_a_pod_has_time_for_its_orderly_stop() -> None:
    found = manifests("--set=drainSeconds=30")
    for service, kind in SERVICES.items():
        (spec,) = [spec for _, spec in pods(found) if spec["containers"][0]["name"] == service]
        bound = kind.model_fields["shutdown_seconds"].default
        assert spec["terminationGracePeriodSeconds"] >= 30 + bound + 10.0, service


@needs_helm
def test_a_pod_that_waits_for_the_broker_is_not_begun_again_meanwhile() -> None:
    found = manifests()
    for service, kind in SERVICES.items():
        one = container(found, service)
        (seconds,) = [float(v["value"]) for v in one["env"] if v["name"] == kind.variable("nats_connect_seconds")]
        probe = one["startupProbe"]
        assert kind.model_fields["nats_connect_seconds"].default < seconds, service
        assert seconds < probe["periodSeconds"] * probe["failureThreshold"], service


@needs_helm
def test_each_service_gets_its_own_password_only() -> None:
    found = manifests()
    for service in SERVICES:
        (spec,) = [spec for _, spec in pods(found) if spec["containers"][0]["name"] == service]
        (secret,) = [volume["secret"] for volume in spec["volumes"] if volume["name"] == "nats"]
        assert secret["items"] == [{"key": service, "path": service}]
        assert service in {user.name for user in TOPOLOGY.users}


@needs_helm
def test_agents_prove_themselves_by_token_and_services_by_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    found = manifests()
    for service, kind in SERVICES.items():
        for variable in container(found, service)["env"]:
            if variable["name"] != "POD_IP":
                monkeypatch.setenv(variable["name"], variable["value"])
        tls = kind().tls()
        assert tls is not None
        assert tls.server_name == "forerun-services"
        assert tls.ask_clients is (service != "orchestrator")
    (job,) = [spec for name, spec in pods(found) if name == "forerun-credentials-make"]
    names = [one.removeprefix("--name=") for one in job["containers"][0]["args"] if one.startswith("--name=")]
    assert names[:3] == ["forerun-services", "forerun", "forerun.platform"]
    plain = [one["name"] for one in container(manifests("--set=tls.enabled=false"), "sandbox")["env"]]
    assert [one for one in plain if "TLS" in one or "CA_FILE" in one] == ["FORERUN_SANDBOX_RUNNERS_CA_FILE"]


def secrets_of(spec: dict[str, Any]) -> dict[str, list[str]]:
    """Keys of the Secrets that a pod mounts; `*` is all."""
    mounted = [volume["secret"] for volume in spec["volumes"] if "secret" in volume]
    return {one["secretName"]: [item["key"] for item in one.get("items", ({"key": "*"},))] for one in mounted}


def url_and_authority(arguments: list[str]) -> tuple[str, str | None]:
    """How a command connects to the broker."""
    found = dict(itertools.pairwise(arguments))
    return found["--server"], found.get("--ca-file")


@needs_helm
def test_the_broker_encrypts_by_a_certificate_of_its_own_name() -> None:
    found = manifests(profile="ha")
    (job,) = [spec for name, spec in pods(found) if name == "forerun-credentials-make"]
    names = {one.removeprefix("--name=") for one in job["containers"][0]["args"] if one.startswith("--name=")}
    assert names >= {"forerun-nats", *(f"forerun-nats-{number}.forerun-nats-peers" for number in range(3))}
    broker = named(found, "StatefulSet", "forerun-nats")["spec"]["template"]["spec"]
    assert "--tls=/secrets/tls" in broker["initContainers"][0]["args"]
    assert secrets_of(broker)["forerun-tls"] == ["*"]
    (setup,) = [spec for name, spec in pods(found) if name.startswith("forerun-setup-")]
    assert secrets_of(setup)["forerun-tls"] == ["ca.crt"], "a Job needs no key to know whom it talks to"
    for one in (setup["initContainers"][0], *setup["containers"]):
        assert url_and_authority(one["args"]) == ("tls://forerun-nats:4222", "/secrets/nats-authority/ca.crt")
    plain = manifests("--set=tls.enabled=false")
    assert (
        "--tls=/secrets/tls"
        not in named(plain, "StatefulSet", "forerun-nats")["spec"]["template"]["spec"]["initContainers"][0]["args"]
    )
    (setup,) = [spec for name, spec in pods(plain) if name.startswith("forerun-setup-")]
    assert url_and_authority(setup["initContainers"][0]["args"]) == ("nats://forerun-nats:4222", None)


@needs_helm
def test_a_job_has_another_name_when_it_does_something_else() -> None:
    def jobs(*options: str) -> set[str]:
        found = [one["metadata"] for one in manifests(*options) if one["kind"] == "Job"]
        return {one["name"] for one in found if "annotations" not in one}

    assert jobs() == jobs("--set=orchestrator.replicas=2")
    assert not jobs() & jobs("--set=image.tag=0.2.0")
    assert not jobs() & jobs('--set-json=policy={"policies":[{"name":"mine"}]}'), "a changed policy is published"


@needs_helm
def test_an_upgrade_changes_nothing_that_cannot_be_changed() -> None:
    """Selectors, volume claims and names of Services stay over versions and replicas."""

    def fixed(*options: str) -> dict[str, Any]:
        found = manifests(*options)
        kept = {}
        for one in found:
            spec = one.get("spec", {})
            if one["kind"] in ("Deployment", "StatefulSet"):
                claims = spec.get("volumeClaimTemplates")
                kept[f"{one['kind']}/{one['metadata']['name']}"] = [spec["selector"], claims, spec.get("serviceName")]
            if one["kind"] == "Service":
                kept[f"Service/{one['metadata']['name']}"] = [spec["selector"], spec.get("clusterIP")]
        return kept

    assert fixed() == fixed("--set=image.tag=9.9.9", "--set=orchestrator.replicas=3", "--set=nats.replicas=3")


@needs_helm
@pytest.mark.parametrize("profile", [None, *PROFILES])
def test_policies_let_each_connection_through_on_both_sides_and_no_other(profile: str | None) -> None:
    found = manifests("--set=demo.enabled=true", profile=profile)
    policies = [one["spec"] for one in found if one["kind"] == "NetworkPolicy"]

    def labels(component: str) -> dict[str, str]:
        return {
            "app.kubernetes.io/name": "forerun",
            "app.kubernetes.io/instance": "forerun",
            "app.kubernetes.io/component": component,
        }

    def allows(direction: str, subject: str, peer: str, port: int) -> bool:
        key, peers = ("Ingress", "from") if direction == "in" else ("Egress", "to")
        for policy in policies:
            if key not in policy["policyTypes"] or not labels_match(
                policy["podSelector"]["matchLabels"], labels(subject)
            ):
                continue
            for rule in policy.get(key.lower(), ()):
                ports = {one["port"] for one in rule.get("ports", ())}
                if ports and port not in ports:
                    continue
                selected = rule.get(peers)
                if selected is None or any(
                    labels_match(one["podSelector"]["matchLabels"], labels(peer))
                    for one in selected
                    if "podSelector" in one
                ):
                    return True
        return False

    def passes(caller: str, callee: str, port: int) -> bool:
        return allows("out", caller, callee, port) and allows("in", callee, caller, port)

    assert passes("orchestrator", "sandbox", 7410)
    assert passes("orchestrator", "verifier", 7430)
    assert passes("verifier", "sandbox", 7410)
    assert passes("sandbox", "demo", 8080)
    assert passes("test", "orchestrator", 7400)
    for service in ("orchestrator", "predictor", "verifier", "snapshots", "sandbox", "setup", "operator"):
        if profile != "external-nats":
            assert passes(service, "nats", 4222)
        assert not passes(service, "nats", 6222)
        assert not passes(service, "predictor", 7420)
    assert not passes("demo", "sandbox", 7410)
    assert not passes("test", "sandbox", 7410)
    assert not passes("test", "nats", 4222)


@needs_helm
def test_the_metadata_service_is_in_no_range_that_tools_reach() -> None:
    policy = named(manifests(), "NetworkPolicy", "forerun-tools")
    blocks = [peer["ipBlock"] for rule in policy["spec"]["egress"] for peer in rule["to"]]
    assert "169.254.0.0/16" in blocks[0]["except"]


@needs_helm
def test_the_brokers_collector_of_garbage_knows_how_much_memory_there_is() -> None:
    (server,) = named(manifests(), "StatefulSet", "forerun-nats")["spec"]["template"]["spec"]["containers"]
    variables = {one["name"]: one for one in server["env"]}
    assert variables["GOGC"]["value"] == "25", "as the broker of `forerun up`"
    assert variables["GOMEMLIMIT"]["valueFrom"] == {"resourceFieldRef": {"resource": "limits.memory"}}
    assert server["resources"]["limits"]["memory"]


@needs_helm
def test_three_brokers_know_each_other_and_keep_three_copies() -> None:
    found = manifests(profile="ha")
    spec = named(found, "StatefulSet", "forerun-nats")["spec"]
    routes = [one for one in spec["template"]["spec"]["initContainers"][0]["args"] if one.startswith("--route=")]
    assert routes == [f"--route=forerun-nats-{number}.forerun-nats-peers:6222" for number in range(3)]
    (setup,) = [spec for name, spec in pods(found) if name.startswith("forerun-setup-")]
    args = setup["initContainers"][0]["args"]
    assert args[args.index("--replicas") + 1] == "3"
    budgets = {one["metadata"]["name"] for one in found if one["kind"] == "PodDisruptionBudget"}
    assert budgets == {f"forerun-{name}" for name in ("nats", "operator", "orchestrator", "sandbox", "verifier")}


@needs_helm
def test_a_broker_of_your_own_is_used() -> None:
    found = manifests(profile="external-nats")
    assert not [one for one in found if one["metadata"]["name"].startswith("forerun-nats")]
    variables = {one["name"]: one.get("value") for one in container(found, "predictor")["env"]}
    assert variables["FORERUN_PREDICTOR_NATS_URL"] == "tls://nats.messaging.svc:4222"
    assert "FORERUN_PREDICTOR_NATS_CA_FILE" not in variables, "what the image trusts is trusted"
    (setup,) = [spec for name, spec in pods(found) if name.startswith("forerun-setup-")]
    assert url_and_authority(setup["containers"][0]["args"]) == ("tls://nats.messaging.svc:4222", None)


@needs_helm
def test_the_authority_of_a_broker_of_your_own_is_trusted() -> None:
    found = manifests("--set=nats.caSecret=mine", profile="external-nats")
    for name, spec in pods(found):
        service = spec["containers"][0]["name"]
        if service in SERVICES or name.startswith("forerun-setup-"):
            assert secrets_of(spec)["mine"] == ["ca.crt"], name
        if service in SERVICES:
            variables = {one["name"]: one.get("value") for one in spec["containers"][0]["env"]}
            assert variables[SERVICES[service].variable("nats_ca_file")] == "/secrets/nats-authority/ca.crt"


@needs_helm
@pytest.mark.parametrize(
    ("option", "complaint"),
    [
        ("orchestrator.replica=2", "replica"),
        ("nats.replicas=2", "replicas"),
        ("nats.url=nats://me:secret@broker:4222", "url"),
        ("drainSeconds=soon", "drainSeconds"),
        ("nats.enabled=false", "nats.url is needed"),
    ],
)
def test_wrong_values_are_refused_with_their_name(option: str, complaint: str) -> None:
    done = helm("template", "forerun", str(CHART), "--kube-version=1.34.4", f"--set={option}")
    assert done.returncode != 0
    assert complaint in done.stderr


def test_the_schema_knows_every_value() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    def compare(value: Any, known: dict[str, Any], path: str) -> None:
        if known.get("additionalProperties") is False:
            assert set(value) <= set(known["properties"]), path
            for key, inner in value.items():
                compare(inner, known["properties"][key], f"{path}.{key}")

    assert schema["additionalProperties"] is False
    assert set(schema["properties"]) - {"global"} == set(values)
    compare(values, schema, "")
