"""Which replica of a model is asked first: the one that has the caller's history, unless others have less to do.

Each replica keeps the histories that draft for a tenant's agent, so an agent's requests go to one place (rendezvous
hashing: D. Thaler, C. Ravishankar, 1998) as long as that place has no more than its share (bounded loads: V. Mirrokni,
M. Thorup, M. Zadimoghaddam, 2018). Where a replica comes or goes, only its own callers move. Pure.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Final

_SHARE: Final = 1.25
"""A replica takes so many times the mean of the requests under way before its callers go elsewhere."""


def replica_order(busy: Mapping[str, int], key: str) -> list[str]:
    """Replicas in the order in which a request prefers them.

    Args:
        busy: Requests under way at each replica.
        key: Whose request it is.
    """
    preferred = sorted(busy, key=lambda name: hashlib.sha256(f"{key}\0{name}".encode()).digest())
    most = math.ceil(_SHARE * (sum(busy.values()) + 1) / max(1, len(busy)))
    return sorted(preferred, key=lambda name: busy[name] >= most)  # stable: the hash decides among equals
