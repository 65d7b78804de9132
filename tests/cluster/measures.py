"""What an installation took: its steps in time, and its memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from tests.cluster.installation import RELEASE, Installation

_MIB: Final = 2**20


def steps(installation: Installation, begun: float) -> list[str]:
    """When what happened after `begun` (seconds since the epoch), as Kubernetes recorded it, to the second."""
    made = json.loads(installation.kubectl("get", "secret", f"{RELEASE}-tls", "--output=json"))
    found = [(_since(made["metadata"]["creationTimestamp"], begun), "credentials made")]
    for pod in installation.pods():
        name = pod["metadata"]["labels"]["app.kubernetes.io/component"]
        found += [(_since(at, begun), f"{name}: {what}") for at, what in _of_pod(pod)]
    lines: dict[int, list[str]] = {}
    for seconds, what in sorted(found):
        lines.setdefault(seconds, []).append(what)
    return [f"{seconds:4d} s  {', '.join(what)}" for seconds, what in lines.items()]


def _of_pod(pod: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield pod["metadata"]["creationTimestamp"], "pod made"
    status = pod["status"]
    for one in (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())):
        state = one["state"].get("terminated") or one["state"].get("running")
        if state:
            yield state["startedAt"], f"{one['name']} started"
        if state and "finishedAt" in state:
            yield state["finishedAt"], f"{one['name']} finished"
    for one in status["conditions"]:
        if one["type"] == "Ready" and one["status"] == "True":
            yield one["lastTransitionTime"], "ready"


def _since(timestamp: str, begun: float) -> int:
    return round(datetime.fromisoformat(timestamp).timestamp() - begun)


def pods_bytes(installation: Installation) -> dict[str, int]:
    """Memory of the processes of each component's pods, without what is only cached."""
    found: dict[str, int] = {}
    root = Path("/sys/fs/cgroup/memory") / installation.cluster.name
    for pod in installation.pods():
        name = pod["metadata"]["labels"]["app.kubernetes.io/component"]
        for group in root.rglob(f"pod{pod['metadata']['uid']}"):
            found[name] = found.get(name, 0) + _charged(group)
    return found


def all_pods_bytes(installation: Installation) -> int:
    """The same of everything that runs in pods."""
    return _charged(Path("/sys/fs/cgroup/memory") / installation.cluster.name)


def _charged(group: Path) -> int:
    lines = (group / "memory.stat").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("total_rss ", "total_shmem ")))


def node_bytes(installation: Installation) -> dict[str, int]:
    """Memory of control plane and node: every process in the cluster's network that is in no pod, by program.

    What processes of one program share is divided between them, as /proc/PID/smaps_rollup has it.
    """
    network = installation.cluster.network_inode
    found: dict[str, int] = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "ns" / "net").stat().st_ino != network or _is_in_pod(process, installation.cluster.name):
                continue
            command = (process / "cmdline").read_bytes().split(b"\0")
            shared = (process / "smaps_rollup").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # it has ended meanwhile, or is somebody else's
        program = Path(command[0].decode()).name
        name = command[1].decode() if program == "kube" and len(command) > 1 else program
        found[name] = (
            found.get(name, 0) + next(int(line.split()[1]) for line in shared if line.startswith("Pss:")) * 1024
        )
    return found


def _is_in_pod(process: Path, cluster: str) -> bool:
    return any(f":/{cluster}/" in line for line in (process / "cgroup").read_text().splitlines())


def mib(sizes: dict[str, int]) -> str:
    """Sizes in words, the largest first."""
    return ", ".join(f"{name} {size / _MIB:.0f}" for name, size in sorted(sizes.items(), key=lambda one: -one[1]))
