"""The whole way on a real cluster, as docs/install.md says, from images to uninstall.

The tests are one story in the order of this file, on one node. Every command of the page is run as it stands there.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.cluster import measures
from tests.cluster.agents import working
from tests.cluster.desk import REGISTRY, desk
from tests.cluster.installation import CHART, RELEASE, VALUES, Installation, merged
from tests.cluster.kubernetes.cluster import cluster
from tests.cluster.kubernetes.forerun_images import VERSION, build_images
from tests.cluster.kubernetes.places import REPOSITORY
from tests.cluster.page import Reader

NEXT = f"{VERSION}-next"
SESSIONS = 4
INSTALL_SECONDS = 120.0
MEMORY_BYTES = 4 * 2**30


@pytest.fixture(scope="module")
def installation(machine: None) -> Iterator[Installation]:
    with cluster() as node:
        yield Installation(node)


@pytest.fixture(scope="module")
def reader(installation: Installation, tmp_path_factory: pytest.TempPathFactory) -> Reader:
    """Somebody who follows the page from its first command to its last."""
    folder = tmp_path_factory.mktemp("reader")
    environment = desk(installation.cluster, folder)
    return Reader(REPOSITORY / "docs" / "install.md", folder, environment, {"REGISTRY": REGISTRY, "NEXT": NEXT})


@pytest.fixture
def outside(installation: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes this process an agent outside of the cluster."""
    for name, value in installation.agent(tmp_path).items():
        monkeypatch.setenv(name, value)


def report(line: str) -> None:
    """Says a figure in the output, which `make test-cluster` keeps in build/test-cluster.log."""
    print(f"\ncluster: {line}", flush=True)


@pytest.mark.timeout(2_400)
def test_images_are_built_and_pushed(reader: Reader) -> None:
    begun = time.monotonic()
    reader.run("Images", folder=REPOSITORY)
    report(f"images built and loaded in {time.monotonic() - begun:.0f} s")


@pytest.mark.timeout(600)
def test_install_to_a_served_session(installation: Installation, reader: Reader) -> None:
    small = (CHART / "profiles" / "small.yaml").read_text()
    (reader.folder / "values.yaml").write_text(merged(small, reader.text_of("Install", "yaml"), VALUES))
    begun, at = time.monotonic(), time.time()
    said = reader.run("Install")
    ready = time.monotonic() - begun
    tested = reader.run("Install")
    seconds = time.monotonic() - begun
    restarts = {
        pod["metadata"]["name"]: sum(one["restartCount"] for one in pod["status"]["containerStatuses"])
        for pod in installation.pods()
    }
    crashed = {name: count for name, count in restarts.items() if count}
    report(
        f"helm install: ready after {ready:.0f} s, a session of helm test served after {seconds:.0f} s; restarts: "
        f"{crashed}; load {os.getloadavg()[0]:.0f}; its steps:\n" + "\n".join(measures.steps(installation, at))
    )
    assert "helm test" in said
    assert "Phase:          Succeeded" in tested
    assert seconds <= INSTALL_SECONDS


@pytest.mark.timeout(60)
def test_an_agent_outside_is_served(installation: Installation, reader: Reader) -> None:
    reader.run("Connect an agent")  # inside of the cluster
    reader.run("Connect an agent")  # outside
    assert f"a session was served at {installation.address}" in reader.run("Connect an agent")
    assert reader.variables()["FORERUN_TOKEN"] == installation.token


@pytest.mark.timeout(300)
def test_pods_reach_what_they_need_and_nothing_else(installation: Installation) -> None:
    """Strangers are in another namespace; the last line of each pair is the control without a policy in the way."""
    strangers = "strangers"
    installation.cluster.plane.kubectl("create", "namespace", strangers)
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "stranger", "namespace": strangers},
        "spec": {
            "containers": [
                {
                    "name": "python",
                    "image": f"localhost/forerun:{VERSION}",
                    "imagePullPolicy": "Never",
                    "command": ["python", "-c", "import signal; signal.pause()"],
                }
            ]
        },
    }
    plane = installation.cluster.plane
    plane.kubectl("apply", "--filename=-", stdin=json.dumps(pod))
    plane.kubectl("--namespace", strangers, "wait", "--for=condition=Ready", "pod/stranger", "--timeout=60s")
    address = {name: installation.pods(name)[0]["status"]["podIP"] for name in ("nats", "sandbox", "orchestrator")}
    worker = installation.pods("sandbox")[0]["metadata"]["name"]
    assert not installation.connects("stranger", address["nats"], 4222, namespace=strangers)
    assert not installation.connects("stranger", address["sandbox"], 7410, namespace=strangers)
    assert installation.connects("stranger", address["orchestrator"], 7400, namespace=strangers)
    assert not installation.connects(worker, "kubernetes.default.svc", 443)
    assert installation.connects("stranger", "kubernetes.default.svc", 443, namespace=strangers)
    assert not installation.connects(worker, address["orchestrator"], 9401)
    assert installation.connects(worker, address["nats"], 4222)
    plane.kubectl("--namespace", strangers, "delete", "pod", "stranger", "--grace-period=0", "--force")


@pytest.mark.timeout(60)
def test_the_broker_talks_to_nobody_who_does_not_encrypt(installation: Installation) -> None:
    worker = installation.pods("sandbox")[0]["metadata"]["name"]
    code = f"import socket; print(socket.create_connection(('{RELEASE}-nats', 4222), 5).makefile().readline())"
    greeting = json.loads(installation.kubectl("exec", worker, "--", "python", "-c", code).removeprefix("INFO "))
    assert greeting["tls_required"] is True


@pytest.mark.timeout(60)
def test_dashboards_and_rules_are_where_their_sidecars_look(installation: Installation) -> None:
    listed = installation.kubectl("get", "configmaps", "--selector=grafana_dashboard=1", "--output=json")
    found = {one["metadata"]["name"]: one["data"] for one in json.loads(listed)["items"]}
    assert set(found) == {f"{RELEASE}-dashboard-{name}" for name in ("call-sites", "capacity", "overview")}
    for content in found.values():
        (dashboard,) = (json.loads(text) for text in content.values())
        assert dashboard["panels"]
    rules = json.loads(installation.kubectl("get", "configmap", f"{RELEASE}-rules", "--output=json"))["data"]
    assert yaml.safe_load(rules["forerun.yaml"])["groups"]


@pytest.mark.timeout(60)
def test_everything_fits_into_its_memory(installation: Installation) -> None:
    mine, node = measures.pods_bytes(installation), measures.node_bytes(installation)
    pods = measures.all_pods_bytes(installation)
    total = pods + sum(node.values())
    report(
        f"memory: {total / 2**20:.0f} MiB, of which all pods {pods / 2**20:.0f} ({measures.mib(mine)}); "
        f"control plane and node {sum(node.values()) / 2**20:.0f} ({measures.mib(node)})"
    )
    assert {"kube-apiserver", "etcd", "kubelet", "containerd"} <= set(node)
    assert {"orchestrator", "nats", "operator"} <= set(mine)
    assert total <= MEMORY_BYTES


@pytest.mark.timeout(900)
def test_an_agent_outside_becomes_faster(reader: Reader) -> None:
    said = reader.run("Try it with the demo")
    report(f"demo: {said}")
    found = re.search(r"Forerun \(mode exact\)\D+([\d.]+)\D+?([+-][\d.]+) %\D+(\d+)", said)
    assert found is not None, said
    assert float(found[2]) < 0.0
    assert int(found[3]) == 0


@pytest.mark.usefixtures("outside")
@pytest.mark.timeout(300)
async def test_a_killed_pod_fails_no_call(installation: Installation) -> None:
    killed = [installation.pods(component)[0] for component in ("orchestrator", "predictor", "verifier")]
    async with working(SESSIONS) as work:
        await work.until(SESSIONS * 3)
        for pod in killed:
            name = pod["metadata"]["name"]
            await asyncio.to_thread(installation.kubectl, "delete", "pod", name, "--grace-period=0", "--force")
            await work.until(SESSIONS * 3)
    report(f"pods killed: {work.calls} calls, {work.sessions} sessions, {len(work.failed)} failed")
    assert (work.failed, work.differing) == ([], [])


@pytest.mark.usefixtures("outside")
@pytest.mark.timeout(300)
async def test_a_restarted_broker_fails_no_call(installation: Installation) -> None:
    async with working(SESSIONS) as work:
        await work.until(SESSIONS * 3)
        name = f"{RELEASE}-nats-0"
        await asyncio.to_thread(installation.kubectl, "delete", "pod", name, "--grace-period=1")
        await asyncio.to_thread(installation.kubectl, "wait", "--for=condition=Ready", f"pod/{name}", "--timeout=120s")
        await work.until(SESSIONS * 6)
    report(f"broker restarted: {work.calls} calls, {work.sessions} sessions, {len(work.failed)} failed")
    assert (work.failed, work.differing) == ([], [])


@pytest.mark.usefixtures("outside")
@pytest.mark.timeout(600)
async def test_models_are_given_their_keys_and_no_call_fails_meanwhile(
    installation: Installation, reader: Reader
) -> None:
    (reader.folder / "vendor.key").write_text("a key")
    async with working(SESSIONS) as work:
        await work.until(SESSIONS * 3)
        await asyncio.to_thread(reader.run, "Say what may run ahead")
        await work.until(SESSIONS * 3)
    assert (work.failed, work.differing) == ([], [])
    pod = installation.pods("orchestrator")[0]["metadata"]["name"]
    assert installation.kubectl("exec", pod, "--", "cat", "/secrets/models/vendor-key") == "a key"


@pytest.mark.usefixtures("outside")
@pytest.mark.timeout(600)
async def test_workers_follow_the_load_up_and_down_and_no_call_fails(
    installation: Installation, reader: Reader
) -> None:
    pool = f"{RELEASE}-sandbox"
    assert pool in await asyncio.to_thread(reader.run, "Workers by load")
    # Workers of few slots, so that a few agents need several; and seconds of patience before one is taken away.
    await asyncio.to_thread(
        installation.helm, "upgrade", "--reset-then-reuse-values", "--set=sandbox.pool.maxReplicas=3",
        "--set=sandbox.settings.authoritative_slots=1", "--set=sandbox.settings.speculative_slots=1",
    )  # fmt: skip
    patience = json.dumps({"spec": {"scaling": {"scaleDownSeconds": 5}}})
    installation.kubectl("patch", "specpool", pool, "--type=merge", f"--patch={patience}")

    def workers() -> tuple[int, int]:
        found = json.loads(installation.kubectl("get", "deployment", pool, "--output=json"))
        return found["spec"]["replicas"], found["status"].get("readyReplicas", 0)

    async with working(3 * SESSIONS) as busy:
        begun = time.monotonic()
        await asyncio.to_thread(installation.wait_for, "three workers", 120, lambda: workers() == (3, 3))
        up = time.monotonic() - begun
        await busy.until(SESSIONS * 3)
    async with working(1) as quiet:
        begun = time.monotonic()
        await asyncio.to_thread(installation.wait_for, "one worker", 120, lambda: workers() == (1, 1))
        down = time.monotonic() - begun
        await quiet.until(SESSIONS * 3)
    report(
        f"workers by load: 1 to 3 in {up:.0f} s with {3 * SESSIONS} agents, back to 1 in {down:.0f} s with one; "
        f"{busy.calls + quiet.calls} calls, {len(busy.failed) + len(quiet.failed)} failed"
    )
    assert (busy.failed + quiet.failed, busy.differing + quiet.differing) == ([], [])


@pytest.mark.usefixtures("outside")
@pytest.mark.timeout(900)
async def test_a_rolling_upgrade_under_load_fails_no_call(installation: Installation, reader: Reader) -> None:
    token = installation.token
    images = await asyncio.to_thread(build_images, version=NEXT)
    for image in images:
        await asyncio.to_thread(installation.cluster.node.load, image)
    async with working(SESSIONS) as work:
        await work.until(SESSIONS * 3)
        begun = time.monotonic()
        await asyncio.to_thread(reader.run, "Upgrade")
        seconds = time.monotonic() - begun
        await work.until(SESSIONS * 6)
    report(
        f"upgrade in {seconds:.0f} s: {work.calls} calls, {work.sessions} sessions, {len(work.failed)} failed; "
        f"load {os.getloadavg()[0]:.0f}"
    )
    assert (work.failed, work.differing) == ([], [])
    assert installation.token == token, "an upgrade keeps secrets"
    for pod in installation.pods("orchestrator"):
        assert pod["spec"]["containers"][0]["image"].endswith(NEXT)


@pytest.mark.timeout(600)
def test_uninstall_leaves_what_the_page_names(installation: Installation, reader: Reader) -> None:
    reader.run("Remove")
    mine = "secret/models"
    left = [
        f"lease.coordination.k8s.io/{RELEASE}-operator",
        f"persistentvolumeclaim/data-{RELEASE}-nats-0",
        f"persistentvolumeclaim/data-{RELEASE}-snapshots-0",
        mine,
    ]
    installation.wait_for("uninstall", 120, lambda: installation.what_there_is() == left)
    reader.run("Remove")
    installation.wait_for("removal", 60, lambda: installation.what_there_is() == [mine])
    assert installation.cluster.plane.kubectl("get", "customresourcedefinitions", "--output=name") == ""
    assert reader.unread == []
