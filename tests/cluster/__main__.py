"""`python -m tests.cluster ACTION`: a Kubernetes of one node on this machine, for people who develop.

`up` and `down` start and end it. `programs` builds what it is made of, in minutes the first time; `helm` builds
helm alone, which the tests of the chart use.
"""

from __future__ import annotations

import argparse
import sys

from tests.cluster.kubernetes.cluster import Cluster
from tests.cluster.kubernetes.errors import ClusterError
from tests.cluster.kubernetes.places import PROGRAMS
from tests.cluster.kubernetes.programs import HELM, KUBE, PAUSE


def main() -> int:
    """Runs the command line; 3 when something is missing."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    parser.add_argument("action", choices=("up", "down", "programs", "helm"))
    action = parser.parse_args().action
    try:
        if action in ("programs", "helm"):
            for program in (KUBE, PAUSE, HELM) if action == "programs" else (HELM,):
                program.build()
            return 0
        cluster = Cluster(tethered=False)
        if action == "down":
            cluster.down()
            return 0
        cluster.up()
    except ClusterError as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 3
    print(f"export KUBECONFIG={cluster.kubeconfig}")
    print(f"alias kubectl='{PROGRAMS / 'kube'} kubectl' helm={PROGRAMS / 'helm'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
