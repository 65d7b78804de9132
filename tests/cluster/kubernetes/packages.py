"""What the test cluster needs from Debian."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.cluster.kubernetes.errors import ClusterError

_PACKAGE_OF: Final = {
    "containerd": "containerd",
    "runc": "runc",
    "buildah": "buildah",
    "debootstrap": "debootstrap",
    "iptables": "iptables",
    "ip": "iproute2",
    "conntrack": "conntrack",
    "nsenter": "util-linux",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
}
_INSTALL_SECONDS: Final = 600
_CGROUPS: Final = Path("/sys/fs/cgroup")
# What a node begins with, in the namespaces of nobody.
_PROBE: Final = ("unshare", "--net", "--mount", "--pid", "--fork", "mount", "-t", "tmpfs", "tmpfs", "/mnt")


def obstacle() -> str | None:
    """Why this machine cannot hold a node whatever is installed; None where it can."""
    if os.geteuid() != 0:
        return "a node needs root: it makes network namespaces, mounts and cgroups"
    if (left := missing()) and shutil.which("apt-get") is None:
        return f"a node needs {', '.join(left)}, and there is no apt-get to install them"
    if not (_CGROUPS / "cpuset").is_dir() or not os.access(_CGROUPS / "memory", os.W_OK):
        return "a node needs cgroups of version 1 that it may write to"
    if shutil.which(_PROBE[0]) is not None:
        probed = subprocess.run(_PROBE, capture_output=True, text=True, check=False, timeout=30)
        if probed.returncode != 0:
            return f"a node needs namespaces and mounts of its own: {probed.stderr.strip()}"
    return None


def missing() -> list[str]:
    """Names of the packages that are needed and not there."""
    return sorted({package for program, package in _PACKAGE_OF.items() if not _is_there(program)})


def install() -> None:
    """Installs what is missing, which needs Debian and root.

    Raises:
        ClusterError: this is no such machine, or apt failed.
    """
    if reason := obstacle():
        raise ClusterError(reason)
    wanted = missing()
    if not wanted:
        return
    print(f"cluster: installing {', '.join(wanted)}", file=sys.stderr, flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update", "-qq"], ["install", "-qq", "--yes", "--no-install-recommends", *wanted]):
        done = subprocess.run(
            ["apt-get", *command], env=environment, capture_output=True, text=True, check=False,
            timeout=_INSTALL_SECONDS,
        )  # fmt: skip
        if done.returncode != 0:
            raise ClusterError(f"apt-get {command[0]} failed: {done.stderr[-2000:]}")
    if left := missing():
        raise ClusterError(f"apt-get installed {', '.join(wanted)}, and still missing is {', '.join(left)}")


def _is_there(program: str) -> bool:
    return Path(program).exists() if program.startswith("/") else shutil.which(program) is not None
