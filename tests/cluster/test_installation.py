"""The whole way on a real cluster: install, an agent outside becomes faster, faults, an upgrade, uninstall.

The tests are one story in the order of this file, on one node.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.agents import working
from tests.cluster.installation import NAMESPACE, RELEASE, Installation
from tests.cluster.kubernetes.cluster import cluster
from tests.cluster.kubernetes.forerun_images import VERSION, build_images

NEXT = f"{VERSION}-next"
SESSIONS = 4
FORERUN = (sys.executable, "-m", "forerun.cli.main")

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="a node needs root: namespaces, mounts, cgroups")


@pytest.fixture(scope="module")
def installation() -> Iterator[Installation]:
    images = [*build_images(), *build_images(version=NEXT)]
    with cluster() as node:
        for image in images:
            node.node.load(image)
        made = Installation(node)
        made.make_namespace()
        yield made


def agent(installation: Installation, folder: Path) -> dict[str, str]:
    """The environment of an agent outside of the cluster, as NOTES tells to make it."""
    authority = folder / "ca.crt"
    installation.write_authority(authority)
    return {
        **os.environ,
        "FORERUN_ADDRESS": installation.address,
        "FORERUN_TOKEN": installation.token,
        "FORERUN_CA_FILE": str(authority),
    }


@pytest.fixture
def outside(installation: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes this process such an agent."""
    for name, value in agent(installation, tmp_path).items():
        monkeypatch.setenv(name, value)


def report(line: str) -> None:
    """Says a figure in the output, which `make test-cluster` keeps in build/test-cluster.log."""
    print(f"\ncluster: {line}", flush=True)


@pytest.mark.timeout(2_400)
def test_install_to_a_served_session(installation: Installation, tmp_path_factory: pytest.TempPathFactory) -> None:
    begun = time.monotonic()
    said = installation.helm("install")
    ready = time.monotonic() - begun
    environment = agent(installation, tmp_path_factory.getbasetemp())
    done = subprocess.run([*FORERUN, "check"], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    seconds = time.monotonic() - begun
    restarts = {
        pod["metadata"]["name"]: sum(one["restartCount"] for one in pod["status"]["containerStatuses"])
        for pod in installation.pods()
    }
    crashed = {name: count for name, count in restarts.items() if count}
    report(
        f"helm install: ready after {ready:.0f} s, a session from outside after {seconds:.0f} s; restarts: {crashed}"
    )
    assert "helm test" in said


@pytest.mark.timeout(300)
def test_helm_test_sends_one_session_through(installation: Installation) -> None:
    said = installation.cluster.helm("test", RELEASE, "--namespace", NAMESPACE, "--timeout=2m")
    assert "Phase:          Succeeded" in said


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
def test_everything_fits_into_its_memory(installation: Installation) -> None:
    pods = installation.resident_bytes()
    report(f"memory of all pods: {pods / 2**20:.0f} MiB")
    assert pods <= 4 * 2**30


@pytest.mark.timeout(900)
def test_an_agent_outside_becomes_faster(installation: Installation, tmp_path: Path) -> None:
    environment = agent(installation, tmp_path)
    done = subprocess.run(
        [*FORERUN, "demo", "--fast", "--json", "--target", installation.address],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    report(f"demo: {json.dumps(made)}")
    assert made["diverged"] == 0
    assert made["saved_pct"] > 0


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
async def test_a_rolling_upgrade_under_load_fails_no_call(installation: Installation) -> None:
    token = installation.token
    async with working(SESSIONS) as work:
        await work.until(SESSIONS * 3)
        begun = time.monotonic()
        await asyncio.to_thread(
            installation.helm, "upgrade", f"--set=image.tag={NEXT}", f"--set=sandboxImage.tag={NEXT}"
        )
        seconds = time.monotonic() - begun
        await work.until(SESSIONS * 6)
    report(f"upgrade in {seconds:.0f} s: {work.calls} calls, {work.sessions} sessions, {len(work.failed)} failed")
    assert (work.failed, work.differing) == ([], [])
    assert installation.token == token, "an upgrade keeps secrets"
    for pod in installation.pods("orchestrator"):
        assert pod["spec"]["containers"][0]["image"].endswith(NEXT)


@pytest.mark.timeout(300)
def test_uninstall_leaves_what_the_notes_name(installation: Installation) -> None:
    installation.cluster.helm("uninstall", RELEASE, "--namespace", NAMESPACE, "--wait", "--timeout=3m")
    left = [
        f"lease.coordination.k8s.io/{RELEASE}-operator",
        f"persistentvolumeclaim/data-{RELEASE}-nats-0",
        f"persistentvolumeclaim/data-{RELEASE}-snapshots-0",
    ]
    installation.wait_for("uninstall", 120, lambda: installation.what_there_is() == left)
    installation.kubectl("delete", "persistentvolumeclaims", f"--selector=app.kubernetes.io/instance={RELEASE}")
    installation.kubectl("delete", "lease", f"{RELEASE}-operator")
    definitions = "--selector=app.kubernetes.io/part-of=forerun"
    installation.cluster.plane.kubectl("delete", "customresourcedefinitions", definitions)
    assert installation.what_there_is() == []
    assert installation.cluster.plane.kubectl("get", "customresourcedefinitions", "--output=name") == ""
