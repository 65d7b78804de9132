"""A real Kubernetes of one node on this machine: control plane, node, DNS, enforced network policies."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.cluster.kubernetes import packages
from tests.cluster.kubernetes.control_plane import ControlPlane, Place
from tests.cluster.kubernetes.errors import ClusterError
from tests.cluster.kubernetes.images import base_image, program_image
from tests.cluster.kubernetes.network import NODE_ADDRESS, Network, run
from tests.cluster.kubernetes.node import NODE, PAUSE_IMAGE, Node
from tests.cluster.kubernetes.places import TOOLS
from tests.cluster.kubernetes.processes import Processes, wait_until
from tests.cluster.kubernetes.programs import HELM, KUBE, PAUSE

STATE: Final = TOOLS / "state"
"""Where the one cluster of a machine keeps its state while it is up."""

_DNS: Final = Path(__file__).with_name("dns.yaml")
_KUBE_IMAGE: Final = "localhost/kube:1"
_NAME: Final = "forerun"
# Of the machine, as the cluster's name and addresses are; the lock goes with the process that has it.
_LOCK: Final = Path("/run/lock/forerun-test-cluster")
_TURN_SECONDS: Final = 2_400.0
_VOLUMES: Final = 12
_READY_SECONDS: Final = 120.0
_HELM_SECONDS: Final = 600.0
_REMOVE_SECONDS: Final = 600.0


class Cluster:
    """The cluster of this machine. There is one at a time: it has a name and addresses of its own.

    Args:
        directory: Everything it keeps.
        tethered: See `Processes`.
    """

    def __init__(self, directory: Path = STATE, *, tethered: bool) -> None:
        self._directory = directory
        self._network = Network(_NAME)
        self._processes = Processes(directory, tethered=tethered)
        place = Place(NODE_ADDRESS, 6443, 2379, 2380, self._network.enter)
        self.plane = ControlPlane(directory, place, tethered=tethered, controllers=True)
        self.node = Node(directory / "node", self._network, self.plane, self._processes)

    @property
    def name(self) -> str:
        """Its name, which its cgroups have, too."""
        return self._network.name

    @property
    def network_inode(self) -> int:
        """What says of a process, in /proc/PID/ns/net, that it is in this cluster's network and in no pod's own."""
        return self._network.path.stat().st_ino

    @property
    def kubeconfig(self) -> Path:
        """For kubectl and clients on this machine, as cluster administrator."""
        return self.plane.kubeconfig

    def up(self) -> None:
        """Builds what is not built and starts everything; returns when pods can be made.

        Raises:
            ClusterError: something is missing, or did not come up; what was started is ended again.
        """
        packages.install()
        for program in (KUBE, PAUSE, HELM):
            program.build()
        base_image()
        pause = program_image(PAUSE_IMAGE, PAUSE, ["/pause"])
        kube = program_image(_KUBE_IMAGE, KUBE, ["/kube"])
        if self._network.exists():
            raise ClusterError("a cluster runs on this machine: end it with `make cluster-down`")
        try:
            self._network.up()
            self.plane.start()
            self.node.start()
            self.node.wait_for_runtime()
            for archive in (pause, kube):
                self.node.load(archive)
            wait_until("node Ready", _READY_SECONDS, self._is_node_ready)
            self.plane.kubectl("apply", "--filename", str(_DNS))
            self.plane.kubectl("apply", "--filename=-", stdin=json.dumps(volumes(self._directory / "volumes")))
            self.plane.kubectl("--namespace=kube-system", "rollout", "status", "deployment/coredns", "--timeout=90s")
        except BaseException:
            self.down()
            raise

    def down(self) -> None:
        """Ends everything and removes what it kept, except programs and images. May be repeated."""
        self.node.stop()
        self.plane.stop()
        self._network.down()
        # Several unpacked images: many thousand files, for which Python's own way takes minutes on a busy machine.
        run("rm", "-rf", str(self._directory), seconds=_REMOVE_SECONDS)

    def helm(self, *arguments: str, check: bool = True) -> str:
        """Runs helm as cluster administrator; what it prints.

        Raises:
            ClusterError: it failed; holds what it said.
        """
        done = subprocess.run(
            [HELM.path, *arguments], env={**os.environ, "KUBECONFIG": str(self.kubeconfig)}, capture_output=True,
            text=True, check=False, timeout=_HELM_SECONDS,
        )  # fmt: skip
        if check and done.returncode != 0:
            raise ClusterError(f"helm {' '.join(arguments)}: {done.stderr.strip()} {done.stdout.strip()}")
        return done.stdout

    def _is_node_ready(self) -> bool:
        self._processes.require("node")
        shown = self.plane.kubectl("get", "node", NODE, "--output=json", check=False)
        conditions = json.loads(shown)["status"].get("conditions", []) if shown else []
        return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def volumes(directory: Path) -> dict[str, object]:
    """A default storage class with volumes below a directory: there is nothing here that makes them when asked."""
    items: list[dict[str, object]] = [
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": "local", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
            "provisioner": "kubernetes.io/no-provisioner",
            "volumeBindingMode": "WaitForFirstConsumer",
        }
    ]
    here = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [NODE]}]}
    for number in range(_VOLUMES):
        folder = directory / str(number)
        folder.mkdir(parents=True, exist_ok=True)
        items.append(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": f"local-{number}"},
                "spec": {
                    "capacity": {"storage": "50Gi"},
                    "accessModes": ["ReadWriteOnce"],
                    "persistentVolumeReclaimPolicy": "Retain",
                    "storageClassName": "local",
                    "local": {"path": str(folder)},
                    "nodeAffinity": {"required": {"nodeSelectorTerms": [here]}},
                },
            }
        )
    return {"apiVersion": "v1", "kind": "List", "items": items}


@contextmanager
def cluster() -> Iterator[Cluster]:
    """A cluster for a test. Another test's is waited for; what an earlier one left behind is removed first.

    Raises:
        ClusterError: it did not come up.
    """
    with _LOCK.open("w") as lock:
        wait_until(f"end of another test's cluster ({_LOCK})", _TURN_SECONDS, lambda: _is_locked(lock.fileno()))
        Cluster(tethered=True).down()
        fresh = Cluster(tethered=True)
        try:
            fresh.up()
            yield fresh
        finally:
            fresh.down()


def _is_locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
