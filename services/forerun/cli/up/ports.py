"""Free ports that stay free: below the range from which the kernel takes ports of outgoing connections.

A service keeps its port when it is restarted, so that nobody has to look for it; a port from the kernel's own range
could be taken by any connection in the moment between.
"""

from __future__ import annotations

import socket
from pathlib import Path

from forerun.runtime.errors import ErrorReason, FailedPrecondition
from forerun.runtime.ids import Ids

_LOWEST = 20_000
_HIGHEST = 65_535
_DEFAULT_EPHEMERAL_MIN = 32_768
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_ports(count: int, ids: Ids) -> list[int]:
    """Ports on the loopback interface that nobody listens on.

    Args:
        count: How many.
        ids: Draws where the search begins, so that two platforms that start at once hardly meet.

    Raises:
        FailedPrecondition: there are not so many.
    """
    end = _ephemeral_min()
    start = _LOWEST + int(ids.fraction() * (end - _LOWEST))
    found: list[int] = []
    for port in (*range(start, end), *range(_LOWEST, start)):
        if len(found) == count:
            return found
        if is_free(port):
            found.append(port)
    raise FailedPrecondition(
        ErrorReason.DEPENDENCY_MISSING, f"fewer than {count} free ports between {_LOWEST} and {end} on 127.0.0.1"
    )


def is_free(port: int) -> bool:
    """Whether a server could listen on a port of the loopback interface now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do it: connections of a predecessor that linger are no obstacle.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _ephemeral_min() -> int:
    try:
        lowest = int(_EPHEMERAL.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        lowest = _DEFAULT_EPHEMERAL_MIN
    # A machine may give out almost everything; then there is no better range.
    return lowest if lowest > _LOWEST + 1_000 else _HIGHEST
