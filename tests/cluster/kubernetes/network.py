"""The network of a cluster: a namespace that holds all of it, with one cable to this machine.

Nothing in it reaches another machine: there is no route out of the namespace but to its host, which forwards nothing.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

from tests.cluster.kubernetes.control_plane import SERVICE_RANGE
from tests.cluster.kubernetes.errors import ClusterError

HOST_ADDRESS: Final = "10.200.0.1"
NODE_ADDRESS: Final = "10.200.0.2"
POD_RANGE: Final = "10.244.0.0/16"


class Network:
    """One network namespace.

    Args:
        name: Its name, and that of the cable's end on this machine; at most 15 letters.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def path(self) -> Path:
        """The namespace as a file."""
        return Path("/run/netns") / self.name

    @property
    def enter(self) -> tuple[str, ...]:
        """Command that runs another one in it. Not `ip netns exec`, which hides the cgroups."""
        return ("nsenter", f"--net={self.path}")

    def exists(self) -> bool:
        """Whether it is there."""
        return self.path.exists()

    def up(self) -> None:
        """Makes it.

        Raises:
            ClusterError: this machine does not let us.
        """
        run("ip", "netns", "add", self.name)
        run("ip", "link", "add", self.name, "type", "veth", "peer", "name", "eth0", "netns", self.name)
        run("ip", "address", "add", f"{HOST_ADDRESS}/24", "dev", self.name)
        run("ip", "link", "set", self.name, "up")
        for command in (
            ("link", "set", "lo", "up"),
            ("address", "add", f"{NODE_ADDRESS}/24", "dev", "eth0"),
            ("link", "set", "eth0", "up"),
            # Services have no address of their own on any interface: packets to them need some route to be rewritten.
            ("route", "add", "default", "via", HOST_ADDRESS),
        ):
            run("ip", "-n", self.name, *command)
        run(*self.enter, "sysctl", "-qw", "net.ipv4.ip_forward=1")
        # From this machine agents and tests reach pods and Services as from a machine beside the node.
        for reached in (POD_RANGE, SERVICE_RANGE):
            run("ip", "route", "add", reached, "via", NODE_ADDRESS, "dev", self.name)

    def down(self) -> None:
        """Removes it. May be repeated."""
        subprocess.run(["ip", "link", "delete", self.name], capture_output=True, check=False)
        if self.exists():
            run("ip", "netns", "delete", self.name)


def run(*command: str, stdin: str | None = None, seconds: float = 60.0) -> str:
    """Runs a command; what it prints.

    Raises:
        ClusterError: it failed; holds what it said.
    """
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False, timeout=seconds)
    if done.returncode != 0:
        raise ClusterError(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()[-4000:]}")
    return done.stdout
