"""Forerun on the test cluster, installed as docs/install.md says."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.cluster.kubernetes.cluster import Cluster
from tests.cluster.kubernetes.errors import ClusterError
from tests.cluster.kubernetes.network import NODE_ADDRESS
from tests.cluster.kubernetes.places import REPOSITORY

NAMESPACE: Final = "forerun"
RELEASE: Final = "forerun"
NODE_PORT: Final = 30740
CHART: Final = REPOSITORY / "helm" / "forerun"

_POLL_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True)
class Installation:
    """One release.

    Attributes:
        cluster: Where it is.
    """

    cluster: Cluster

    @property
    def address(self) -> str:
        """Where agents outside of the cluster connect."""
        return f"{NODE_ADDRESS}:{NODE_PORT}"

    @property
    def token(self) -> str:
        """The client's token, as NOTES tells to read it."""
        shown = self.kubectl("get", "secret", f"{RELEASE}-client", "--output=jsonpath={.data.token}")
        return base64.b64decode(shown).decode()

    def write_authority(self, file: Path) -> None:
        """Writes the authority of the platform's certificate, as NOTES tells to."""
        shown = self.kubectl("get", "secret", f"{RELEASE}-client", "--output=jsonpath={.data.ca\\.crt}")
        file.write_bytes(base64.b64decode(shown))

    def kubectl(self, *arguments: str) -> str:
        """Runs kubectl in the release's namespace."""
        return self.cluster.plane.kubectl("--namespace", NAMESPACE, *arguments)

    def make_namespace(self) -> None:
        """Makes the namespace, in which only restricted pods may run."""
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}}
        self.cluster.plane.kubectl("apply", "--filename=-", stdin=json.dumps(namespace))

    def helm(self, action: str, *options: str) -> str:
        """Installs or upgrades, and returns when everything is ready."""
        return self.cluster.helm(
            action, RELEASE, str(CHART), "--namespace", NAMESPACE, "--wait", "--wait-for-jobs", "--timeout=5m",
            f"--values={CHART / 'profiles' / 'small.yaml'}",
            "--set=image.repository=localhost/forerun", "--set=sandboxImage.repository=localhost/forerun-sandbox",
            "--set=orchestrator.replicas=2", "--set=orchestrator.service.type=NodePort",
            f"--set=orchestrator.service.nodePort={NODE_PORT}", "--set=demo.enabled=true",
            # As the demo's own platform has them: so many that no authoritative call waits.
            "--set=sandbox.settings.authoritative_slots=40", "--set=sandbox.settings.speculative_slots=16",
            f"--set=tls.names={{{NODE_ADDRESS}}}",
            # The API server is at the node's address here: tools reach the metadata service no more than it.
            f"--set=networkPolicies.blocked={{169.254.0.0/16,{NODE_ADDRESS}/32}}", *options,
        )  # fmt: skip

    def pods(self, component: str | None = None) -> list[dict[str, Any]]:
        """The release's pods, or those of one component."""
        selector = f"app.kubernetes.io/instance={RELEASE}"
        selector += f",app.kubernetes.io/component={component}" if component else ""
        found: list[dict[str, Any]] = json.loads(self.kubectl("get", "pods", f"-l{selector}", "--output=json"))["items"]
        return found

    def what_there_is(self) -> list[str]:
        """Everything in the namespace that a release makes, and what belongs to it outside, by kind and name."""
        kinds = (
            "deployments,statefulsets,replicasets,jobs,pods,services,configmaps,secrets,serviceaccounts,roles,"
            "rolebindings,networkpolicies,poddisruptionbudgets,persistentvolumeclaims,leases"
        )
        here = self.kubectl("get", kinds, "--output=name").split()
        selector = "--selector=app.kubernetes.io/part-of=forerun"
        outside = self.kubectl("get", "clusterroles,clusterrolebindings", selector, "--output=name").split()
        return sorted({*here, *outside} - {"configmap/kube-root-ca.crt", "serviceaccount/default"})

    def connects(self, pod: str, host: str, port: int, *, namespace: str = NAMESPACE) -> bool:
        """Whether a process in a pod gets a TCP connection. What a policy drops is not refused, but never answered."""
        code = f"import socket; socket.create_connection(({host!r}, {port}), 3).close()"
        command = ("--namespace", namespace, "exec", pod, "--", "python", "-c", code)
        try:
            self.cluster.plane.kubectl(*command)
        except ClusterError as error:
            assert "TimeoutError" in str(error) or "timed out" in str(error), error
            return False
        return True

    def resident_bytes(self) -> int:
        """Memory of all processes of all pods, without what is only cached."""
        total = 0
        root = Path("/sys/fs/cgroup/memory") / self.cluster.name
        for line in (root / "memory.stat").read_text().splitlines():
            if line.startswith(("total_rss ", "total_shmem ")):
                total += int(line.split()[1])
        return total

    def wait_for(self, what: str, seconds: float, holds: Callable[[], bool]) -> None:
        """Returns when `holds()`; looks less often than for processes, because each look is a kubectl."""
        deadline = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < deadline, f"{what}: not within {seconds:g} s"
            time.sleep(_POLL_SECONDS)
