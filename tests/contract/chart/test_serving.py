"""Model serving and the gateway in the chart: off unless asked for, and then complete."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from forerun.cli.main import main
from forerun.gateway.settings import GatewaySettings
from forerun.predictor.settings import PredictorSettings
from forerun.runtime.topology import TOPOLOGY
from forerun.serving.backend import metering
from forerun.serving.profile import Profile
from tests.contract.chart.rendering import CHART, container, helm, manifests, named, needs_helm, pods, render

ON = ("--set=serving.enabled=true", "--set=gateway.enabled=true")
SHARED = ("--set=serving.cache.accessMode=ReadWriteMany",)
HPA = (*ON, *SHARED, "--set=serving.autoscaling.enabled=true")
KEDA = (*HPA, "--set=serving.autoscaling.kind=keda", "--set=serving.autoscaling.prometheus=http://prometheus:9090")
MONITORED = (*HPA, "--set=monitoring.podMonitor=true")
OWN = {
    "name": "mine",
    "target": {"kind": "toy"},
    "draft": {"kind": "toy", "agreement": 0.8},
    "speculation": {"kind": "coupled", "drafters": ["recall", "model"]},
}


def own(profile: object = OWN) -> str:
    return f"--set-json=serving.customProfile={json.dumps(profile)}"


def refused(*options: str) -> str:
    """Why it is not rendered."""
    done = helm("template", "forerun", str(CHART), "--kube-version", "1.34.4", *options)
    assert done.returncode != 0
    return done.stderr


@needs_helm
def test_nothing_of_it_is_there_unless_asked_for() -> None:
    components = {one["metadata"]["labels"].get("app.kubernetes.io/component") for one in manifests()}
    assert not components & {"serving", "gateway"}


@needs_helm
@pytest.mark.parametrize("options", [ON, MONITORED, KEDA, (*ON, own())], ids=["on", "hpa", "keda", "own profile"])
def test_it_renders_the_same_bytes_twice_and_lints(options: tuple[str, ...]) -> None:
    assert render(*options) == render(*options)
    done = helm("lint", "--strict", str(CHART), *options)
    assert done.returncode == 0, done.stdout


@needs_helm
def test_its_pods_are_restricted_as_all_others() -> None:
    found = manifests(*ON)
    ours = {name: spec for name, spec in pods(found) if name in ("forerun-serving", "forerun-gateway")}
    assert len(ours) == 2
    for spec in ours.values():
        (one,) = spec["containers"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["automountServiceAccountToken"] is False
        assert one["securityContext"]["readOnlyRootFilesystem"] is True
        assert one["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert one["resources"]["limits"]["memory"]


@needs_helm
def test_a_pod_of_models_has_a_gpu_a_volume_and_probes_by_real_inference() -> None:
    found = manifests(*ON)
    one = container(found, "serving")
    assert one["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert one["startupProbe"]["httpGet"] == {"path": "/ready", "port": "health"}
    assert one["startupProbe"]["periodSeconds"] * one["startupProbe"]["failureThreshold"] == 1_800
    assert one["readinessProbe"]["httpGet"]["path"] == "/ready"
    assert one["livenessProbe"]["httpGet"]["path"] == "/live"
    claim = named(found, "PersistentVolumeClaim", "forerun-serving-models")
    assert claim["spec"]["resources"]["requests"]["storage"] == "100Gi"
    (spec,) = [spec for name, spec in pods(found) if name == "forerun-serving"]
    assert {"models", "tmp", "shared-memory", "nats", "nats-authority"} == {
        volume["name"] for volume in spec["volumes"]
    }
    assert spec["terminationGracePeriodSeconds"] > 60
    assert not [
        one
        for one in manifests(*ON, "--set=serving.cache.existingClaim=mine")
        if one["kind"] == "PersistentVolumeClaim"
    ]


@needs_helm
def test_its_arguments_are_those_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    args = container(manifests(*ON), "serving")["args"]
    with pytest.raises(SystemExit) as ended:
        main([*args, "--help"])
    assert ended.value.code == 0, "argparse reads everything before --help"
    known = capsys.readouterr().out
    assert all(one.partition("=")[0] in known for one in args if one.startswith("--"))
    ports = {one["name"]: one["containerPort"] for one in container(manifests(*ON), "serving")["ports"]}
    assert f"--grpc-address=0.0.0.0:{ports['grpc']}" in args
    assert f"--metrics-address=0.0.0.0:{ports['triton-metrics']}" in args
    assert "--hung-seconds=120" in args
    assert f"--health-address=0.0.0.0:{ports['health']}" in args


@needs_helm
def test_its_pods_follow_the_broker_as_a_user_of_their_own_under_their_own_names() -> None:
    found = manifests(*ON)
    one = container(found, "serving")
    args = set(one["args"])
    assert {
        "--broker=tls://forerun-nats:4222",
        "--broker-password-file=/secrets/nats/serving",
        "--broker-ca-file=/secrets/nats-authority/ca.crt",
        "--name=$(POD_NAME)",
    } <= args
    assert "POD_NAME" in {variable["name"] for variable in one["env"]}
    (spec,) = [spec for name, spec in pods(found) if name == "forerun-serving"]
    (nats,) = [volume["secret"] for volume in spec["volumes"] if volume["name"] == "nats"]
    assert nats["items"] == [{"key": "serving", "path": "serving"}]
    assert "serving" in {user.name for user in TOPOLOGY.users}
    assert {mount["mountPath"] for mount in one["volumeMounts"]} >= {"/secrets/nats", "/secrets/nats-authority"}
    reach = [one["metadata"]["name"] for one in found if one["kind"] == "NetworkPolicy"]
    assert "forerun-serving-to-nats" in reach
    assert "forerun-serving-to-nats" not in [one["metadata"]["name"] for one in manifests()]
    plain = set(container(manifests(*ON, "--set=tls.enabled=false"), "serving")["args"])
    assert "--broker=nats://forerun-nats:4222" in plain
    assert not any(one.startswith("--broker-ca-file") for one in plain)


@needs_helm
def test_the_cap_that_holds_is_that_of_the_workers_pool_or_of_one_that_is_named() -> None:
    def pool(*options: str) -> list[str]:
        return [one for one in container(manifests(*ON, *options), "serving")["args"] if one.startswith("--pool")]

    assert pool() == []
    assert pool("--set=sandbox.pool.enabled=true") == ["--pool=forerun-sandbox"]
    assert pool("--set=serving.pool=mine", "--set=sandbox.pool.enabled=true") == ["--pool=mine"]


@needs_helm
def test_a_profile_of_your_own_is_the_one_that_is_served() -> None:
    found = manifests(*ON, own())
    text = named(found, "ConfigMap", "forerun-serving-profile")["data"]["profile.yaml"]
    assert Profile.model_validate(yaml.safe_load(text)) == Profile.model_validate(OWN)
    assert container(found, "serving")["args"][2] == "/profile/profile.yaml"


@needs_helm
def test_a_changed_profile_of_an_engine_makes_new_pods_and_one_of_ours_is_taken_over_by_the_old() -> None:
    def template(profile: object) -> object:
        return named(manifests(*ON, own(profile)), "Deployment", "forerun-serving")["spec"]["template"]

    assert template(OWN) == template({**OWN, "slots": 2})
    engine = yaml.safe_load((CHART.parents[1] / "gpu-serving/forerun/serving/profiles/one-gpu.yaml").read_text())
    assert template(engine) != template({**engine, "slots": 2})


@needs_helm
def test_pods_that_share_a_cache_need_a_volume_that_can_be_shared() -> None:
    assert "needs serving.cache.accessMode ReadWriteMany" in refused(*ON, "--set=serving.replicas=2")
    found = manifests(*ON, *SHARED, "--set=serving.replicas=2")
    assert named(found, "PodDisruptionBudget", "forerun-serving")


@needs_helm
def test_it_is_sized_by_queue_and_tokens_that_the_loop_exports() -> None:
    exported = {family.name for family in metering.FAMILIES}
    found = manifests(*HPA)
    assert "replicas" not in named(found, "Deployment", "forerun-serving")["spec"]
    metrics = named(found, "HorizontalPodAutoscaler", "forerun-serving")["spec"]["metrics"]
    names = [one["pods"]["metric"]["name"] for one in metrics]
    assert names == ["forerun_decoding_queue_length", "forerun_generated_tokens_per_second"]
    assert {metering.QUEUE.name, metering.TOKENS.name} <= exported
    scaled = named(manifests(*KEDA), "ScaledObject", "forerun-serving")["spec"]
    queries = [one["metadata"]["query"] for one in scaled["triggers"]]
    assert queries == [
        'sum(forerun_decoding_queue_length{namespace="platform",pod=~"forerun-serving-.*"})',
        'sum(rate(forerun_generated_tokens_total{namespace="platform",pod=~"forerun-serving-.*"}[1m]))',
    ]
    assert "serving.autoscaling.prometheus is needed" in refused(*HPA, "--set=serving.autoscaling.kind=keda")


@needs_helm
def test_tritons_metrics_are_scraped() -> None:
    monitor = named(manifests(*MONITORED), "PodMonitor", "forerun-serving")
    assert monitor["spec"]["selector"]["matchLabels"]["app.kubernetes.io/component"] == "serving"
    assert monitor["spec"]["podMetricsEndpoints"] == [
        {"port": port, "interval": "15s"} for port in ("triton-metrics", "health")
    ]


@needs_helm
def test_the_gateway_takes_its_settings_and_offers_the_served_models(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in container(manifests(*ON, "--set=gateway.settings.total_seconds=900"), "gateway")["env"]:
        monkeypatch.setenv(variable["name"], variable["value"])
    settings = GatewaySettings()
    assert [(one.name, one.addresses) for one in settings.models] == [("house", ("forerun-serving:8001",))]
    assert settings.total_seconds == 900
    assert settings.http_address == "0.0.0.0:8080"
    assert "gateway.models is needed" in refused("--set=gateway.enabled=true")


@needs_helm
def test_only_who_asks_models_reaches_them_and_agents_reach_the_gateway() -> None:
    agents = '--set-json=networkPolicies.agents=[{"podSelector":{"matchLabels":{"agent":"yes"}}}]'
    found = manifests(*ON, agents)
    to_models = named(found, "NetworkPolicy", "forerun-to-serving")["spec"]
    assert to_models["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "serving"
    (models, _) = to_models["ingress"]
    callers = {one["podSelector"]["matchLabels"]["app.kubernetes.io/component"] for one in models["from"]}
    assert (models["ports"], callers) == ([{"port": 8001}], {"gateway", "orchestrator", "predictor"})
    for caller in callers:
        leaving = named(found, "NetworkPolicy", f"forerun-{caller}-to-serving")["spec"]
        assert leaving["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == caller
        assert leaving["egress"][0]["ports"] == [{"port": 8001}]
    door = named(found, "NetworkPolicy", "forerun-to-gateway")["spec"]
    assert door["ingress"] == [
        {"ports": [{"port": 8080}], "from": [{"podSelector": {"matchLabels": {"agent": "yes"}}}]}
    ]
    names = {one["metadata"]["name"] for one in found if one["kind"] == "NetworkPolicy"}
    assert "forerun-serving-fetches" not in names, "weights are fetched only where that was allowed"
    fetching = named(manifests(*ON, "--set=serving.fetch=true"), "NetworkPolicy", "forerun-serving-fetches")["spec"]
    assert "169.254.0.0/16" in fetching["egress"][0]["to"][0]["ipBlock"]["except"]


@needs_helm
def test_a_gateway_that_asks_for_expected_calls_reaches_the_predictor_as_a_service(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = manifests(*ON, "--set=gateway.expectedCalls=true")
    one = container(found, "gateway")
    for variable in one["env"]:
        monkeypatch.setenv(variable["name"], variable["value"])
    settings = GatewaySettings()
    assert settings.predictor_targets == ("dns:///forerun-predictor:7420",)
    files = (
        settings.internal_token_file,
        settings.tls_certificate_file,
        settings.tls_key_file,
        settings.tls_ca_file,
        settings.token_file,
    )
    mounts = [mount["mountPath"] for mount in one["volumeMounts"]]
    assert all(file is not None and str(file.parent) in mounts for file in files)
    assert settings.tls_server_name == "forerun-services"
    service = named(found, "Service", "forerun-predictor")["spec"]
    assert (service["clusterIP"], service["ports"][0]["port"]) == ("None", 7420)
    leaving = named(found, "NetworkPolicy", "forerun-gateway-to-predictor")["spec"]
    assert leaving["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "gateway"
    entering = named(found, "NetworkPolicy", "forerun-to-predictor")["spec"]["ingress"]
    assert [one["podSelector"]["matchLabels"]["app.kubernetes.io/component"] for one in entering[0]["from"]] == [
        "gateway"
    ]
    assert leaving["egress"][0]["ports"] == entering[0]["ports"] == [{"port": 7420}]


@needs_helm
def test_a_gateway_that_asks_nobody_holds_no_credentials_of_a_service() -> None:
    found = manifests(*ON)
    mounts = {mount["name"] for mount in container(found, "gateway")["volumeMounts"]}
    assert mounts == {"tmp", "tokens"}
    names = {one["metadata"]["name"] for one in found if one["kind"] in ("NetworkPolicy", "Service")}
    assert not names & {"forerun-predictor", "forerun-to-predictor", "forerun-gateway-to-predictor"}


@needs_helm
@pytest.mark.parametrize(
    ("url", "leaves"),
    [("kserve://forerun-serving:8001", False), ("https://models.example/v1", True)],
)
def test_the_predictor_leaves_the_cluster_only_for_a_small_model_that_is_elsewhere(
    monkeypatch: pytest.MonkeyPatch, url: str, leaves: bool
) -> None:
    small = json.dumps({"name": "small", "url": url, "secret": "key"})
    found = manifests(*ON, f"--set-json=predictor.settings.small_model={small}", "--set=predictor.modelSecrets=mine")
    names = {one["metadata"]["name"] for one in found if one["kind"] == "NetworkPolicy"}
    assert ("forerun-small-model" in names) is leaves
    assert "forerun-predictor-to-serving" in names
    for variable in container(found, "predictor")["env"]:
        if "value" in variable:
            monkeypatch.setenv(variable["name"], variable["value"])
    settings = PredictorSettings()
    assert settings.small_model is not None
    assert settings.small_model.url == url
    mounts = {mount["mountPath"] for mount in container(found, "predictor")["volumeMounts"]}
    assert str(settings.secrets_directory) in mounts
    (spec,) = [spec for name, spec in pods(found) if name == "forerun-predictor"]
    assert {"secretName": "mine", "defaultMode": 0o440} in [one.get("secret") for one in spec["volumes"]]


@needs_helm
@pytest.mark.parametrize(
    "wrong",
    [
        "--set=gateway.expectedCalls=2",
        "--set=serving.profile=none",
        "--set=serving.autoscaling.kind=vpa",
        "--set=serving.cache.size=much",
        "--set=serving.unknown=1",
        "--set=gateway.service.port=0",
    ],
)
def test_what_the_schema_does_not_know_is_refused(wrong: str) -> None:
    field = wrong.removeprefix("--set=").partition("=")[0]
    said = refused(*ON, wrong)
    assert "values don't meet the specifications of the schema" in said
    assert field.rpartition(".")[2] in said


def test_the_image_of_models_is_pinned_by_whoever_builds_it() -> None:
    text = Path(CHART.parents[1] / "images" / "triton.Dockerfile").read_text()
    assert "ARG TRITON_IMAGE\n" in text, (
        "no default: which engine, which release and which digest is the builder's choice"
    )
    assert "*@sha256:*)" in text
