"""Commands of tools on a real node: in pods of their session alone, without credentials, which are replaced."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forerun.client import AsyncClient, AsyncSession, Call, Mode, Status
from tests.cluster.installation import CHART, NAMESPACE, VALUES, Installation, merged
from tests.cluster.kubernetes.cluster import cluster
from tests.cluster.kubernetes.forerun_images import build_images

RUNNERS = 3

POLICY = {
    "policies": [
        {
            "name": "shell",
            "mode": "MODE_EXACT",
            "tools": [
                {
                    "tool": "sh",
                    "effect": "EFFECT_WRITE",
                    "staged": True,
                    "writes": [{"template": "files", "scope": "RESOURCE_SCOPE_SESSION"}],
                    "timeout_seconds": 60,
                }
            ],
        }
    ],
    "servers": [
        {
            "name": "shell",
            # What `bubblewrap` gives is what a pod of its own has to give.
            "min_isolation": "bubblewrap",
            "tools": [
                {
                    "name": "sh",
                    "input_schema": json.dumps({
                        "type": "object", "properties": {"script": {"type": "string"}}, "required": ["script"],
                    }),
                    "command": {"argv": ["/bin/sh", "-c", "{script}"]},
                }
            ],
        }
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def installation(machine: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    values = tmp_path_factory.mktemp("values") / "values.yaml"
    ours = {
        "image": {"repository": "localhost/forerun"},
        "sandboxImage": {"repository": "localhost/forerun-sandbox"},
        "policy": POLICY,
        "runners": {"replicas": RUNNERS},
    }
    small = (CHART / "profiles" / "small.yaml").read_text()
    values.write_text(merged(small, VALUES, json.dumps(ours)))
    images = build_images()
    with cluster() as node:
        for image in images:
            node.node.load(image)
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}}
        node.plane.kubectl("apply", "--filename=-", stdin=json.dumps(namespace))
        made = Installation(node)
        made.helm("install", f"--values={values}")
        yield made


@pytest.fixture
def outside(installation: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes this process an agent outside of the cluster."""
    for name, value in installation.agent(tmp_path).items():
        monkeypatch.setenv(name, value)


async def sh(session: AsyncSession, script: str) -> str:
    """What a command says."""
    await session.model_started()
    await session.assistant_message("asking")
    (result,) = await session.call_tools([Call("sh", {"script": script})])
    assert result.status is Status.OK, result.failure
    assert isinstance(result.content, bytes)
    return result.content.decode()


def runners(installation: Installation) -> dict[str, dict[str, Any]]:
    """The pods of runners that are not on their way out, by name."""
    found = installation.pods("runner")
    return {one["metadata"]["name"]: one for one in found if "deletionTimestamp" not in one["metadata"]}


def free(installation: Installation) -> set[str]:
    """Those that no session has taken."""
    return {
        name
        for name, pod in runners(installation).items()
        if any(one["type"] == "Ready" and one["status"] == "True" for one in pod["status"].get("conditions", ()))
    }


@pytest.mark.usefixtures("outside")
@pytest.mark.timeout(1_800)
async def test_each_session_has_a_pod_of_its_own_which_is_replaced(installation: Installation) -> None:
    await asyncio.to_thread(installation.wait_for, "warm runners", 60, lambda: len(free(installation)) == RUNNERS)
    before = await asyncio.to_thread(free, installation)
    async with AsyncClient(connect_timeout_seconds=60.0) as client:
        async with (
            client.session("ann", mode=Mode.EXACT) as ann,
            client.session("bob", mode=Mode.EXACT) as bob,
        ):
            begun = time.monotonic()
            assert await sh(ann, "echo secret > mine; cat mine; hostname > host; echo left > /tmp/left") == "secret\n"
            first = time.monotonic() - begun
            begun = time.monotonic()
            hosts = [(await sh(ann, "cat mine host; ls /tmp")).split()]
            again = time.monotonic() - begun
            hosts.append((await sh(bob, "cat mine 2>/dev/null; ls /tmp /scratch/runner; hostname")).split())
            assert hosts[0][0] == "secret", "the workspace is the session's"
            assert "left" not in hosts[0], "what is outside of it is gone with its command"
            assert "secret" not in hosts[1]
            taken = {hosts[0][1], hosts[1][-1]}
            assert len(taken) == 2
            assert taken <= before
            await asyncio.to_thread(
                installation.wait_for, "taken runners are not ready", 30, lambda: not taken & free(installation)
            )
        begun = time.monotonic()

        def replaced() -> bool:
            now = free(installation)
            return len(now) == RUNNERS and not now & taken

        await asyncio.to_thread(installation.wait_for, "new runners", 120, replaced)
    print(
        f"\ncluster: runners: first command {first:.2f} s, second {again:.2f} s after the call; "
        f"two used pods replaced in {time.monotonic() - begun:.0f} s",
        flush=True,
    )


@pytest.mark.usefixtures("outside")
@pytest.mark.timeout(300)
async def test_a_command_has_no_credentials_and_reaches_nothing(installation: Installation) -> None:
    address = {name: installation.pods(name)[0]["status"]["podIP"] for name in ("nats", "sandbox", "orchestrator")}
    probe = (
        "import socket, sys\n"
        "for place in sys.argv[1:]:\n"
        "    host, port = place.rsplit(':', 1)\n"
        "    try:\n"
        "        socket.create_connection((host, int(port)), 3).close(); print('reached', place)\n"
        "    except OSError as error: pass\n"
    )
    places = [
        f"{address['nats']}:4222", f"{address['orchestrator']}:7400", f"{address['sandbox']}:7410",
        "kubernetes.default.svc:443", "10.96.0.1:443", "169.254.169.254:80", "1.1.1.1:53",
    ]  # fmt: skip
    async with AsyncClient(connect_timeout_seconds=60.0) as client, client.session("ann", mode=Mode.EXACT) as session:
        found = await sh(
            session, "grep -rlsaE 'BEGIN (EC |RSA )?PRIVATE KEY' /run /etc /scratch /tmp /home /var 2>/dev/null; true"
        )
        assert found == ""
        assert "No such file" in await sh(session, "ls /var/run/secrets/kubernetes.io /secrets 2>&1; true")
        said = await sh(
            session, "cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n' | grep -E 'TOKEN|PASSWORD|NATS'; true"
        )
        assert said == ""
        assert "denied" in await sh(session, "cat /proc/1/environ 2>&1; true")
        assert await sh(session, f'python3 -c "{probe}" {" ".join(places)}; echo done') == "done\n"
    # The control: a worker, which may, reaches the broker and a runner; nobody else reaches a runner.
    (worker,) = (pod["metadata"]["name"] for pod in installation.pods("sandbox")[:1])
    await asyncio.to_thread(installation.wait_for, "a free runner", 120, lambda: bool(free(installation)))
    runner = runners(installation)[next(iter(free(installation)))]["status"]["podIP"]
    assert installation.connects(worker, address["nats"], 4222)
    assert installation.connects(worker, runner, 7470)
    for component in ("orchestrator", "verifier"):
        assert not installation.connects(installation.pods(component)[0]["metadata"]["name"], runner, 7470)
    assert not installation.connects(worker, runner, 9401)


@pytest.mark.usefixtures("outside")
@pytest.mark.timeout(300)
async def test_a_killed_runner_is_an_end_and_the_session_goes_on(installation: Installation) -> None:
    async with AsyncClient(connect_timeout_seconds=60.0) as client, client.session("ann", mode=Mode.EXACT) as session:
        host = (await sh(session, "echo kept > file; hostname")).strip()
        await asyncio.to_thread(installation.kubectl, "delete", "pod", host, "--grace-period=0", "--force")
        assert (await sh(session, "cat file; hostname")).split()[0] == "kept"
    await asyncio.to_thread(installation.wait_for, "warm runners", 120, lambda: len(free(installation)) == RUNNERS)
