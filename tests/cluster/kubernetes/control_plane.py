"""A real etcd and kube-apiserver, and where asked for controllers and scheduler: no node, so no pod ever runs.

Enough for everything that is about the API: custom resources and their validation, server-side apply, status and scale
subresources, watches, roles, Leases. Several run side by side.
"""

from __future__ import annotations

import base64
import json
import ssl
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx

from forerun.cli.up.ports import free_ports
from forerun.runtime.clock import SystemClock
from forerun.runtime.ids import SystemIds
from tests.cluster.kubernetes.errors import ClusterError
from tests.cluster.kubernetes.keys import Authority, KeyPair
from tests.cluster.kubernetes.processes import Processes, wait_until
from tests.cluster.kubernetes.programs import KUBE

SERVICE_RANGE: Final = "10.96.0.0/16"
FIRST_SERVICE: Final = "10.96.0.1"

_READY_SECONDS: Final = 90.0
_KUBECTL_SECONDS: Final = 120.0


@dataclass(frozen=True, slots=True)
class Place:
    """Where a control plane listens.

    Attributes:
        address: IP address of the API server.
        api_port: Its port.
        etcd_port: etcd's port for clients, on loopback.
        peer_port: etcd's port for peers, on loopback.
        prefix: Command before each program's own, which it becomes: enters a network namespace.
    """

    address: str
    api_port: int
    etcd_port: int
    peer_port: int
    prefix: tuple[str, ...] = ()


def on_loopback() -> Place:
    """Free ports on this machine's loopback interface."""
    api, etcd, peer = free_ports(3, SystemIds(SystemClock()))
    return Place("127.0.0.1", api, etcd, peer)


class ControlPlane:
    """One control plane in a directory of its own.

    Args:
        directory: Keys, data and logs.
        place: Where it listens.
        tethered: See `Processes`.
        controllers: With controller manager and scheduler. Without them namespaces are not finished deleting, nothing
            is garbage collected, and Deployments make no pods; it starts faster and takes half of the memory.
    """

    def __init__(self, directory: Path, place: Place, *, tethered: bool = True, controllers: bool = False) -> None:
        self._directory = directory
        self._place = place
        self._controllers = controllers
        self._processes = Processes(directory, tethered=tethered)
        self.authority = Authority(directory / "keys")
        self.kubeconfig = directory / "admin.kubeconfig"
        """For kubectl and clients, as cluster administrator. Self-contained."""

    @property
    def api_server_pid(self) -> int:
        """The API server's process."""
        self._processes.require("kube-apiserver")
        pid = self._processes.pid("kube-apiserver")
        assert pid is not None
        return pid

    @property
    def url(self) -> str:
        """Address of the API server."""
        return f"https://{self._place.address}:{self._place.api_port}"

    def start(self) -> None:
        """Starts everything and returns when the API server is ready.

        Raises:
            ClusterError: something ended or was not ready in time.
        """
        self.write_kubeconfig(self.kubeconfig, "admin", "system:masters")
        # Where a kept cluster comes up again its parts may still run.
        if self._processes.pid("etcd") is None:
            self._processes.start("etcd", [*self._place.prefix, KUBE.path, *self._etcd()])
        if self._processes.pid("kube-apiserver") is None:
            self._processes.start("kube-apiserver", [*self._place.prefix, KUBE.path, *self._api_server()])
        wait_until("kube-apiserver ready", _READY_SECONDS, self._is_ready)
        if self._controllers:
            for name, command in (
                ("kube-controller-manager", self._controller_manager()),
                ("kube-scheduler", self._scheduler()),
            ):
                if self._processes.pid(name) is None:
                    self._processes.start(name, [*self._place.prefix, KUBE.path, *command])
            wait_until("service account of the default namespace", _READY_SECONDS, self._has_default_account)

    def stop(self) -> None:
        """Ends everything. May be repeated, and by another process than the one that started it."""
        # An orderly stop of the API server takes more than a minute, and nothing of it is needed here.
        for name in ("kube-scheduler", "kube-controller-manager", "kube-apiserver", "etcd"):
            self._processes.stop(name, kill=True)

    def kubectl(self, *arguments: str, stdin: str | None = None, check: bool = True) -> str:
        """Runs kubectl as cluster administrator; what it prints.

        Raises:
            ClusterError: it failed; holds what it said.
        """
        command = [str(KUBE.path), "kubectl", "--kubeconfig", str(self.kubeconfig), *arguments]
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, check=False, timeout=_KUBECTL_SECONDS
        )
        if check and done.returncode != 0:
            raise ClusterError(f"kubectl {' '.join(arguments)}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def write_kubeconfig(self, path: Path, user: str, group: str = "") -> None:
        """Writes a self-contained kubeconfig of a user with a certificate of ours."""
        pair = self.authority.issue(f"user-{user.rpartition(':')[2]}", user, group=group)
        path.touch(mode=0o600)
        path.write_text(json.dumps(self._kubeconfig(pair)))

    def _kubeconfig(self, user: KeyPair) -> dict[str, object]:
        def inline(file: Path) -> str:
            return base64.b64encode(file.read_bytes()).decode()

        cluster = {"server": self.url, "certificate-authority-data": inline(self.authority.pair.certificate)}
        keys = {"client-certificate-data": inline(user.certificate), "client-key-data": inline(user.key)}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "cluster", "cluster": cluster}],
            "users": [{"name": "user", "user": keys}],
            "contexts": [{"name": "context", "context": {"cluster": "cluster", "user": "user"}}],
            "current-context": "context",
        }

    def _etcd(self) -> Sequence[str]:
        clients, peers = (f"http://127.0.0.1:{port}" for port in (self._place.etcd_port, self._place.peer_port))
        return (
            "etcd",
            f"--data-dir={self._directory / 'etcd'}",
            f"--listen-client-urls={clients}", f"--advertise-client-urls={clients}",
            f"--listen-peer-urls={peers}", f"--initial-advertise-peer-urls={peers}",
            f"--initial-cluster=default={peers}",
            "--unsafe-no-fsync",  # what it holds is thrown away
            "--log-level=warn",
        )  # fmt: skip

    def _api_server(self) -> Sequence[str]:
        place, authority = self._place, self.authority
        names = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost")
        addresses = tuple(dict.fromkeys(("127.0.0.1", place.address, FIRST_SERVICE)))
        server = authority.issue("kube-apiserver", "kube-apiserver", names=names, addresses=addresses)
        kubelets = authority.issue("kubelet-client", "apiserver-kubelet-client", group="system:masters")
        front = authority.issue("front-proxy", "front-proxy")
        accounts = authority.signing_key("service-accounts")
        trusted = authority.pair.certificate
        return (
            "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{place.etcd_port}",
            f"--bind-address={place.address}",
            f"--secure-port={place.api_port}",
            f"--advertise-address={place.address}",
            f"--service-cluster-ip-range={SERVICE_RANGE}",
            f"--tls-cert-file={server.certificate}", f"--tls-private-key-file={server.key}",
            f"--client-ca-file={trusted}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={accounts.certificate}",
            f"--service-account-signing-key-file={accounts.key}",
            f"--kubelet-client-certificate={kubelets.certificate}", f"--kubelet-client-key={kubelets.key}",
            f"--kubelet-certificate-authority={trusted}",
            "--kubelet-preferred-address-types=InternalIP",
            "--authorization-mode=Node,RBAC",
            "--allow-privileged",
            "--enable-admission-plugins=NodeRestriction",
            f"--requestheader-client-ca-file={trusted}",
            "--requestheader-allowed-names=front-proxy",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            f"--proxy-client-cert-file={front.certificate}", f"--proxy-client-key-file={front.key}",
            "--enable-aggregator-routing",
            # A node that is gone is noticed within a test's patience.
            "--default-not-ready-toleration-seconds=5",
            "--default-unreachable-toleration-seconds=5",
            # The `kubernetes` Service may not have an endpoint on loopback; without controllers nobody makes the
            # service accounts that every pod would need.
            *(() if self._controllers else ("--endpoint-reconciler-type=none",
                                            "--disable-admission-plugins=ServiceAccount")),
        )  # fmt: skip

    def _controller_manager(self) -> Sequence[str]:
        kubeconfig = self._directory / "kube-controller-manager.kubeconfig"
        self.write_kubeconfig(kubeconfig, "system:kube-controller-manager")
        return (
            "kube-controller-manager",
            f"--kubeconfig={kubeconfig}",
            f"--service-account-private-key-file={self.authority.signing_key('service-accounts').key}",
            f"--root-ca-file={self.authority.pair.certificate}",
            "--use-service-account-credentials",
            "--leader-elect=false",
            f"--cluster-signing-cert-file={self.authority.pair.certificate}",
            f"--cluster-signing-key-file={self.authority.pair.key}",
            "--allocate-node-cidrs=false",
            "--node-monitor-period=1s",
            "--node-monitor-grace-period=8s",
            "--horizontal-pod-autoscaler-sync-period=3s",
            "--bind-address=127.0.0.1",
            "--secure-port=0",
            "--kube-api-qps=300", "--kube-api-burst=600",
        )  # fmt: skip

    def _scheduler(self) -> Sequence[str]:
        kubeconfig = self._directory / "kube-scheduler.kubeconfig"
        self.write_kubeconfig(kubeconfig, "system:kube-scheduler")
        return (
            "kube-scheduler", f"--kubeconfig={kubeconfig}", "--leader-elect=false", "--bind-address=127.0.0.1",
            "--secure-port=0", "--kube-api-qps=300", "--kube-api-burst=600",
        )  # fmt: skip

    def _is_ready(self) -> bool:
        self._processes.require("etcd", "kube-apiserver")
        context = ssl.create_default_context(cafile=self.authority.pair.certificate)
        try:
            return httpx.get(f"{self.url}/readyz", verify=context, timeout=2.0, trust_env=False).status_code == 200
        except httpx.TransportError:
            return False

    def _has_default_account(self) -> bool:
        self._processes.require("kube-controller-manager", "kube-scheduler")
        return bool(self.kubectl("get", "serviceaccount", "default", "--output=name", check=False))


@contextmanager
def control_plane(directory: Path, *, controllers: bool = False) -> Iterator[ControlPlane]:
    """A control plane on loopback, for a test. Builds what it needs the first time.

    Raises:
        ClusterError: it cannot be built or did not become ready.
    """
    KUBE.build()
    plane = ControlPlane(directory, on_loopback(), controllers=controllers)
    try:
        plane.start()
        yield plane
    finally:
        plane.stop()
