"""The profiles `ha` and `external-nats` on a real node: three brokers that hold copies, and a broker of one's own."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from forerun.cli.credentials.certificates import issue, new_authority
from forerun.runtime.broker import new_passwords
from forerun.runtime.clock import SystemClock
from forerun.runtime.ids import SystemIds
from tests.cluster.agents import working
from tests.cluster.desk import REGISTRY
from tests.cluster.installation import CHART, NAMESPACE, RELEASE, VALUES, Installation, merged
from tests.cluster.kubernetes.cluster import cluster
from tests.cluster.kubernetes.forerun_images import SERVICES_IMAGE, build_images

SESSIONS = 4
FORERUN = (sys.executable, "-m", "forerun.cli.main")
BROKER_NAMESPACE = "messaging"
BROKER_NAME = f"nats.{BROKER_NAMESPACE}.svc"

pytestmark = pytest.mark.timeout(1_200)


@pytest.fixture(scope="module")
def installation(machine: None) -> Iterator[Installation]:
    images = build_images()
    with cluster() as node:
        for image in images:
            node.node.load(image)
        yield Installation(node)


@pytest.fixture
def namespace(installation: Installation) -> Iterator[None]:
    """The release's namespace, in which only restricted pods may run; it goes with all that is in it."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    made = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}}
    installation.cluster.plane.kubectl("apply", "--filename=-", stdin=json.dumps(made))
    yield
    installation.cluster.helm("uninstall", RELEASE, "--namespace", NAMESPACE, "--wait", "--timeout=3m")
    installation.cluster.plane.kubectl("delete", "namespace", NAMESPACE, "--timeout=100s")


def values(folder: Path, profile: str, *more: str) -> str:
    """An option with the profile's values, and little memory asked for."""
    images = f"image: {{repository: {REGISTRY}/forerun}}\nsandboxImage: {{repository: {REGISTRY}/forerun-sandbox}}"
    small, chosen = ((CHART / "profiles" / f"{name}.yaml").read_text() for name in ("small", profile))
    file = folder / "values.yaml"
    file.write_text(merged(small, VALUES, chosen, images, *more))
    return f"--values={file}"


def report(line: str) -> None:
    """Says a figure in the output, which `make test-cluster` keeps in build/test-cluster.log."""
    print(f"\ncluster: {line}", flush=True)


def copies(installation: Installation) -> dict[str, int]:
    """How many brokers hold each stream, as the first of them says."""
    code = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8222/jsz?streams=true&config=true').read().decode())"
    said = json.loads(installation.kubectl("exec", f"{RELEASE}-nats-0", "--", "python", "-c", code))
    streams = [one for account in said["account_details"] for one in account.get("stream_detail", ())]
    return {one["name"]: one["config"]["num_replicas"] for one in streams}


@pytest.mark.usefixtures("namespace")
async def test_with_everything_several_times_a_lost_broker_fails_no_call(
    installation: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Runners of commands are as many as a small node starts in time; nobody runs commands here.
    option = values(tmp_path, "ha", "demo: {enabled: true}", "runners: {replicas: 3}")
    await asyncio.to_thread(installation.helm, "install", option)
    for name, value in installation.agent(tmp_path).items():
        monkeypatch.setenv(name, value)
    counted = {name: len(installation.pods(name)) for name in ("nats", "orchestrator", "sandbox", "operator")}
    assert counted == {"nats": 3, "orchestrator": 3, "sandbox": 3, "operator": 2}
    assert copies(installation)["EVENTS"] == 3
    async with working(SESSIONS) as work:
        await work.until(SESSIONS * 3)
        for number in range(3):
            name = f"{RELEASE}-nats-{number}"
            await asyncio.to_thread(installation.kubectl, "delete", "pod", name, "--grace-period=0", "--force")
            ready = ("wait", "--for=condition=Ready", f"pod/{name}", "--timeout=120s")
            await asyncio.to_thread(installation.wait_for, name, 30, lambda: len(installation.pods("nats")) == 3)
            await asyncio.to_thread(installation.kubectl, *ready)
            await work.until(SESSIONS * 3)
    report(f"ha: each of three brokers killed in turn: {work.calls} calls, {len(work.failed)} failed")
    assert (work.failed, work.differing) == ([], [])


@pytest.mark.usefixtures("namespace")
def test_a_broker_of_ones_own_is_used_and_encrypts(installation: Installation, tmp_path: Path) -> None:
    authority = own_broker(installation, tmp_path)
    plane = installation.cluster.plane
    plane.kubectl(
        "--namespace", NAMESPACE, "create", "secret", "generic", "broker-ca", f"--from-file=ca.crt={authority}"
    )
    passwords = [f"--from-file={file}" for file in sorted((tmp_path / "passwords").iterdir())]
    plane.kubectl("--namespace", NAMESPACE, "create", "secret", "generic", f"{RELEASE}-nats", *passwords)
    own = yaml.safe_dump({"nats": {"url": f"tls://{BROKER_NAME}:4222", "caSecret": "broker-ca"}})
    installation.helm("install", values(tmp_path, "external-nats", own))
    assert installation.pods("nats") == []
    done = subprocess.run(
        [*FORERUN, "check"], env={**os.environ, **installation.agent(tmp_path)}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    log = plane.kubectl("--namespace", BROKER_NAMESPACE, "exec", "nats", "--", "python", "-c", CONNECTIONS)
    users = {one["authorized_user"] for one in json.loads(log)["connections"]}
    assert users >= {"orchestrator", "predictor", "verifier", "sandbox", "operator"}
    assert all(one.get("tls_version") for one in json.loads(log)["connections"])


CONNECTIONS = (
    "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8222/connz?auth=true&limit=1000').read().decode())"
)


def own_broker(installation: Installation, folder: Path) -> Path:
    """A broker in a namespace of its own, configured by `forerun broker config`; the file of its authority."""
    passwords, tls = folder / "passwords", folder / "tls"
    for made in (passwords, tls):
        made.mkdir()
    for user, password in new_passwords(SystemIds(SystemClock())).items():
        (passwords / user).write_text(password)
    authority = new_authority(datetime.now(UTC))
    pair = issue(authority, [BROKER_NAME], datetime.now(UTC))
    for name, content in (("tls.crt", pair.certificate), ("tls.key", pair.key), ("ca.crt", authority.certificate)):
        (tls / name).write_bytes(content)
    config = folder / "nats-server.conf"
    command = ("broker", "config", "--passwords", str(passwords), "--store=/data", "--tls=/tls", f"--output={config}")
    subprocess.run([*FORERUN, *command], check=True)
    plane = installation.cluster.plane
    plane.kubectl("create", "namespace", BROKER_NAMESPACE)
    files = [f"--from-file={file}" for file in (config, *sorted(tls.iterdir()))]
    plane.kubectl("--namespace", BROKER_NAMESPACE, "create", "secret", "generic", "nats", *files)
    labels = {"app": "nats"}
    mounts = [{"name": name, "mountPath": f"/{name}"} for name in ("tls", "data")]
    secret = {"secretName": "nats", "defaultMode": 0o444}
    pod = {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "nats", "labels": labels},
        "spec": {
            "containers": [{
                "name": "nats", "image": SERVICES_IMAGE, "imagePullPolicy": "Never",
                "command": ["nats-server", "-c", "/tls/nats-server.conf"], "volumeMounts": mounts,
            }],
            "volumes": [{"name": "tls", "secret": secret}, {"name": "data", "emptyDir": {}}],
            "securityContext": {"fsGroup": 65532},
        },
    }  # fmt: skip
    service = {
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "nats"},
        "spec": {"selector": labels, "ports": [{"port": 4222}]},
    }  # fmt: skip
    items = {"apiVersion": "v1", "kind": "List", "items": [pod, service]}
    plane.kubectl("--namespace", BROKER_NAMESPACE, "apply", "--filename=-", stdin=json.dumps(items))
    plane.kubectl("--namespace", BROKER_NAMESPACE, "wait", "--for=condition=Ready", "pod/nats", "--timeout=60s")
    return tls / "ca.crt"
