"""A node: containerd, kubelet, kube-proxy and the network policy agent, in namespaces of their own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import yaml

from tests.cluster.kubernetes import init
from tests.cluster.kubernetes.control_plane import ControlPlane
from tests.cluster.kubernetes.errors import ClusterError
from tests.cluster.kubernetes.network import NODE_ADDRESS, POD_RANGE, Network, run
from tests.cluster.kubernetes.processes import Processes, wait_until
from tests.cluster.kubernetes.programs import KUBE

NODE: Final = "node-1"
CLUSTER_DNS: Final = "10.96.0.10"
PAUSE_IMAGE: Final = "localhost/pause:1"

_CGROUPS: Final = Path("/sys/fs/cgroup")
_IMPORT_SECONDS: Final = 300.0
_POLICY_QUEUE: Final = "100"
_PROCESS: Final = "node"
_BRIDGE: Final = "cni0"


class Node:
    """The one node of a cluster.

    Args:
        directory: Its data and logs; on a disk that can be overlaid.
        network: Where it lives.
        plane: Its API server.
        processes: Starts and ends it.
    """

    def __init__(self, directory: Path, network: Network, plane: ControlPlane, processes: Processes) -> None:
        self._directory = directory
        self._network = network
        self._plane = plane
        self._processes = processes

    @property
    def socket(self) -> Path:
        """Where containerd answers."""
        # In the file system, not below /run, which the node has for itself: so it is reached from outside.
        return self._directory / "containerd.sock"

    def start(self) -> None:
        """Starts the node; it is Ready some seconds later."""
        for folder in ("cni", "kubelet", "logs", "pods", "registries"):
            (self._directory / folder).mkdir(parents=True, exist_ok=True)
        self._make_cgroups()
        self._queue_packets()
        plan = self._directory / "plan.json"
        plan.write_text(json.dumps(self._plan()))
        namespaces = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
        self._processes.start(_PROCESS, [*self._network.enter, *namespaces, sys.executable, init.__file__, str(plan)])

    def stop(self) -> None:
        """Ends the node and everything in it. May be repeated."""
        pid = self._processes.pid(_PROCESS)
        if pid is not None:
            # The node's first process, whose end is that of all others. `unshare` waits for it and ends then.
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
                    os.kill(int(child), signal.SIGKILL)
        self._processes.stop(_PROCESS, seconds=60.0)
        self._remove_cgroups()

    def load(self, archive: Path) -> None:
        """Makes an image known to the node.

        Raises:
            ClusterError: the archive cannot be used.
        """
        run("ctr", "-a", str(self.socket), "-n", "k8s.io", "images", "import", str(archive), seconds=_IMPORT_SECONDS)

    def wait_for_runtime(self) -> None:
        """Returns when images can be loaded.

        Raises:
            ClusterError: the node has ended, or it takes too long.
        """

        def answers() -> bool:
            self._processes.require(_PROCESS)
            try:
                return bool(run("ctr", "-a", str(self.socket), "version", seconds=5.0))
            except ClusterError:
                return False

        wait_until("containerd", 60.0, answers)

    def _plan(self) -> dict[str, object]:
        return {
            "socket": str(self.socket),
            "logs": str(self._directory / "logs"),
            "mounts": [["--make-rshared", "/"], ["-t", "tmpfs", "tmpfs", "/run"]],
            "folders": ["/run/netns", "/run/lock"],
            "services": {
                "containerd": ["containerd", "--config", str(self._containerd_config())],
                "kube-proxy": list(self._kube_proxy()),
                "network-policies": list(self._network_policies()),
                "kubelet": list(self._kubelet()),
            },
        }

    def _containerd_config(self) -> Path:
        (self._directory / "cni" / "10-bridge.conflist").write_text(json.dumps(self._cni()))
        config = self._directory / "containerd.toml"
        root = self._directory
        config.write_text(
            f"""version = 2
root = "{root}/containerd"
state = "/run/containerd"
oom_score = 0
[grpc]
  address = "{self.socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  # A lower score than our own needs a capability that containers of continuous integration do not have.
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "{root}/registries"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{root}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
"""
        )
        return config

    def _cni(self) -> dict[str, object]:
        subnet = {"subnet": POD_RANGE.replace(".0.0/16", ".1.0/24")}
        addresses = {
            "type": "host-local", "ranges": [[subnet]], "routes": [{"dst": "0.0.0.0/0"}], "dataDir": "/run/addresses",
        }  # fmt: skip
        bridge = {
            "type": "bridge", "bridge": _BRIDGE, "isGateway": True, "ipMasq": False, "hairpinMode": True,
            "ipam": addresses,
        }  # fmt: skip
        ports = {"type": "portmap", "capabilities": {"portMappings": True}}
        return {"cniVersion": "1.0.0", "name": "forerun", "plugins": [bridge, ports]}

    def _kubelet(self) -> Sequence[str]:
        keys = self._plane.authority
        server = keys.issue("kubelet", f"system:node:{NODE}", group="system:nodes", names=(NODE,),
                            addresses=(NODE_ADDRESS,))  # fmt: skip
        kubeconfig = self._directory / "kubelet.kubeconfig"
        self._plane.write_kubeconfig(kubeconfig, f"system:node:{NODE}", "system:nodes")
        resolver = self._directory / "resolv.conf"
        resolver.write_text("nameserver 127.0.0.1\n")
        config = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(keys.pair.certificate)},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": str(server.certificate),
            "tlsPrivateKeyFile": str(server.key),
            "containerRuntimeEndpoint": f"unix://{self.socket}",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self._network.name}",
            "failCgroupV1": False,
            "failSwapOn": False,
            "clusterDNS": [CLUSTER_DNS],
            "clusterDomain": "cluster.local",
            "resolvConf": str(resolver),
            "oomScoreAdj": 0,
            "nodeStatusUpdateFrequency": "2s",
            # The disk is this machine's: how full it is says nothing about the cluster.
            "evictionHard": {"imagefs.available": "0%", "nodefs.available": "0%", "memory.available": "100Mi"},
            "imageGCHighThresholdPercent": 100,
            "podLogsDir": str(self._directory / "pods"),
            "enforceNodeAllocatable": ["pods"],
            "seccompDefault": True,
        }
        file = self._directory / "kubelet.yaml"
        file.write_text(yaml.safe_dump(config))
        return (
            str(KUBE.path), "kubelet", f"--config={file}", f"--kubeconfig={kubeconfig}",
            f"--root-dir={self._directory / 'kubelet'}", f"--hostname-override={NODE}", f"--node-ip={NODE_ADDRESS}",
        )  # fmt: skip

    def _kube_proxy(self) -> Sequence[str]:
        kubeconfig = self._directory / "kube-proxy.kubeconfig"
        self._plane.write_kubeconfig(kubeconfig, "system:kube-proxy")
        return (
            str(KUBE.path), "kube-proxy", f"--kubeconfig={kubeconfig}", f"--cluster-cidr={POD_RANGE}",
            f"--hostname-override={NODE}", "--proxy-mode=iptables",
            # Sizes of the kernel's connection table belong to the machine.
            "--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0",
            "--conntrack-tcp-timeout-close-wait=0",
            "--metrics-bind-address=127.0.0.1:10249", "--healthz-bind-address=127.0.0.1:10256",
        )  # fmt: skip

    def _network_policies(self) -> Sequence[str]:
        kubeconfig = self._directory / "network-policies.kubeconfig"
        self._plane.write_kubeconfig(kubeconfig, "network-policies", "system:masters")
        return (
            str(KUBE.path), "network-policies", f"--kubeconfig={kubeconfig}", f"--hostname-override={NODE}",
            f"--nfqueue-id={_POLICY_QUEUE}",
        )  # fmt: skip

    def _queue_packets(self) -> None:
        """Gives the first packets of each connection between pods to the agent, which decides on them.

        It would do so with nftables, whose queue this kernel does not have. The host's own connections into pods
        (probes) do not pass FORWARD, as the rules of Kubernetes want it.
        """
        # Packets from pod to pod cross the bridge and would not be seen otherwise.
        run(*self._network.enter, "sysctl", "-qw", "net.bridge.bridge-nf-call-iptables=1")
        new = ("-m", "conntrack", "--ctstate", "NEW", "-j", "NFQUEUE", "--queue-num", _POLICY_QUEUE)
        run(*self._network.enter, "iptables", "-w", "-I", "FORWARD", *new)
        # What pods ask of the node itself, where the API server is, is not forwarded.
        run(*self._network.enter, "iptables", "-w", "-I", "INPUT", "-i", _BRIDGE, *new)

    def _make_cgroups(self) -> None:
        for hierarchy in _CGROUPS.iterdir():
            if hierarchy.is_dir():
                (hierarchy / self._network.name).mkdir(exist_ok=True)
        # A cpuset takes no process before both are set.
        for kind in ("cpus", "mems"):
            file = _CGROUPS / "cpuset" / self._network.name / f"cpuset.{kind}"
            file.write_text((_CGROUPS / "cpuset" / f"cpuset.{kind}").read_text())

    def _remove_cgroups(self) -> None:
        deadline = time.monotonic() + 10.0
        roots = [hierarchy / self._network.name for hierarchy in _CGROUPS.iterdir()]
        while left := [root for root in roots if root.is_dir()]:
            for root in left:
                for group in [*_groups(root), root]:
                    with contextlib.suppress(OSError):
                        group.rmdir()
            if time.monotonic() > deadline:
                raise ClusterError(f"cgroups are left: {', '.join(map(str, left))}")


def _groups(root: Path) -> list[Path]:
    """The groups below one, the deepest first; none where some go while they are looked for: look again."""
    try:
        return sorted((path for path in root.rglob("*") if path.is_dir()), reverse=True)
    except OSError:
        return []
