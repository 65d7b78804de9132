"""The desk of somebody who follows docs/install.md: the programs that the page calls, by the names that it uses."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Final

from tests.cluster.kubernetes.cluster import Cluster
from tests.cluster.kubernetes.forerun_images import offline
from tests.cluster.kubernetes.images import BUILDAH, build_options
from tests.cluster.kubernetes.places import REPOSITORY
from tests.cluster.kubernetes.programs import HELM, KUBE

REGISTRY: Final = "localhost"


def desk(cluster: Cluster, folder: Path) -> dict[str, str]:
    """Makes it; the environment of its shell. The folder has `helm` and `images` of the repository in it.

    `docker` is buildah here, which builds from what this machine has; a push goes straight to the node.
    """
    programs = folder / "bin"
    programs.mkdir(parents=True)
    for part in ("helm", "images", "docs"):
        (folder / part).symlink_to(REPOSITORY / part)
    build = shlex.join([*BUILDAH, "build", *build_options(*offline())])
    archive = shlex.quote(str(folder / "pushed.tar"))
    load = shlex.join(["ctr", "-a", str(cluster.node.socket), "-n", "k8s.io", "images", "import"])
    _program(programs / "kubectl", f'exec {shlex.quote(str(KUBE.path))} kubectl "$@"')
    _program(programs / "helm", f'exec {shlex.quote(str(HELM.path))} "$@"')
    _program(programs / "forerun", f'exec {shlex.quote(sys.executable)} -m forerun.cli.main "$@"')
    _program(
        programs / "docker",
        f'case "$1" in\n'
        f'build) shift; exec {build} "$@" ;;\n'
        f'push) {shlex.join(BUILDAH)} push "$2" docker-archive:{archive}:"$2" && {load} {archive}; rm {archive} ;;\n'
        f"*) exit 2 ;;\nesac",
    )
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("FORERUN_")},
        "PATH": f"{programs}:{os.environ['PATH']}",
        "KUBECONFIG": str(cluster.kubeconfig),
    }


def _program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/bash\nset -euo pipefail\n{text}\n")
    path.chmod(0o755)
