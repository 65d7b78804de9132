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


def missing() -> list[str]:
    """Names of the packages that are needed and not there."""
    return sorted({package for program, package in _PACKAGE_OF.items() if not _is_there(program)})


def install() -> None:
    """Installs what is missing, which needs Debian and root.

    Raises:
        ClusterError: this is no such machine, or apt failed.
    """
    wanted = missing()
    if os.geteuid() != 0:
        raise ClusterError("a node needs root: it makes network namespaces, mounts and cgroups")
    if not wanted:
        return
    if shutil.which("apt-get") is None:
        raise ClusterError(f"install {', '.join(wanted)}: there is no apt-get to do it")
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
