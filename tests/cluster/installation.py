"""Forerun on the test cluster, installed as docs/install.md says."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from tests.cluster.kubernetes.cluster import Cluster
from tests.cluster.kubernetes.errors import ClusterError
from tests.cluster.kubernetes.network import NODE_ADDRESS
from tests.cluster.kubernetes.places import REPOSITORY

NAMESPACE: Final = "forerun"
RELEASE: Final = "forerun"
NODE_PORT: Final = 30740
CHART: Final = REPOSITORY / "helm" / "forerun"

_POLL_SECONDS: Final = 0.5


VALUES: Final = f"""
orchestrator: {{replicas: 2, service: {{type: NodePort, nodePort: {NODE_PORT}}}}}
# As the demo's own platform has them: so many that no authoritative call waits.
sandbox: {{settings: {{authoritative_slots: 40, speculative_slots: 16}}}}
tls: {{names: [{NODE_ADDRESS}]}}
# The API server is at the node's address here: tools reach the metadata service no more than it.
networkPolicies: {{blocked: [169.254.0.0/16, {NODE_ADDRESS}/32]}}
"""
"""What is ours beside what docs/install.md has in `values.yaml`, and beside the profile `small`."""


def merged(*documents: str) -> str:
    """Values on top of each other, as helm puts them together."""

    def onto(below: object, above: object) -> object:
        if not isinstance(below, dict) or not isinstance(above, dict):
            return above
        return {key: onto(below.get(key), above[key]) if key in above else below[key] for key in {**below, **above}}

    total: object = {}
    for document in documents:
        total = onto(total, yaml.safe_load(document))
    return yaml.safe_dump(total)


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

    def agent(self, folder: Path) -> dict[str, str]:
        """The environment of an agent outside of the cluster, as NOTES tells to make it."""
        shown = self.kubectl("get", "secret", f"{RELEASE}-client", "--output=jsonpath={.data.ca\\.crt}")
        authority = folder / "ca.crt"
        authority.write_bytes(base64.b64decode(shown))
        return {"FORERUN_ADDRESS": self.address, "FORERUN_TOKEN": self.token, "FORERUN_CA_FILE": str(authority)}

    def kubectl(self, *arguments: str) -> str:
        """Runs kubectl in the release's namespace."""
        return self.cluster.plane.kubectl("--namespace", NAMESPACE, *arguments)

    def helm(self, action: str, *options: str) -> str:
        """Installs or upgrades, and returns when everything is ready."""
        return self.cluster.helm(
            action, RELEASE, str(CHART), "--namespace", NAMESPACE, "--wait", "--wait-for-jobs", "--timeout=5m", *options
        )

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

    def wait_for(self, what: str, seconds: float, holds: Callable[[], bool]) -> None:
        """Returns when `holds()`; looks less often than for processes, because each look is a kubectl."""
        deadline = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < deadline, f"{what}: not within {seconds:g} s"
            time.sleep(_POLL_SECONDS)
