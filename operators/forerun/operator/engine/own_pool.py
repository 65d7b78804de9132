"""The pool that an installation asks for in its settings: what it shall look like, and whether it does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from forerun.operator.crds.kinds import API_VERSION, POOL
from forerun.operator.settings import DefaultPoolSettings

Object = dict[str, Any]

MADE_BY: Final = "forerun.dev/made-by"
"""Label of pools that an operator made; its value is the name of that operator's Lease, which no other one has."""


def wanted_object(wanted: DefaultPoolSettings, namespace: str, owner: str) -> Object:
    """The pool to apply. `replicas` is left out, as is all that people may set besides: it stays theirs.

    Args:
        wanted: What the settings ask for.
        namespace: Where workers and pool are.
        owner: Name of the operator's Lease.
    """
    return {
        "apiVersion": API_VERSION,
        "kind": POOL.name,
        "metadata": {"name": wanted.name, "namespace": namespace, "labels": {MADE_BY: owner}},
        "spec": {
            "target": {"kind": "Deployment", "name": wanted.target},
            "minReplicas": wanted.min_replicas,
            "maxReplicas": wanted.max_replicas,
            "scaling": {"slotsPerReplica": wanted.slots_per_replica},
        },
    }


def holds(found: Any, wanted: Any) -> bool:
    """True where every field that is wanted is found with its value."""
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(holds(found.get(key), value) for key, value in wanted.items())
    return bool(found == wanted)


def is_as(pools: Sequence[Object], wanted: Object) -> bool:
    """True where one of the pools is as wanted."""
    parts = ("metadata", "spec")
    return any(all(holds(pool[part], wanted[part]) for part in parts) for pool in pools)


def left_over(pools: Sequence[Object], namespace: str, owner: str, keep: str) -> Iterator[str]:
    """Names of pools that this operator made and that are asked for no more."""
    for pool in pools:
        metadata = pool["metadata"]
        ours = metadata.get("labels", {}).get(MADE_BY) == owner and metadata["namespace"] == namespace
        if ours and metadata["name"] != keep:
            yield str(metadata["name"])
