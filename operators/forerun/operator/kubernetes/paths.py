"""Addresses of the API."""

from __future__ import annotations

from forerun.operator.crds.kinds import GROUP, VERSION, Kind


def custom(kind: Kind, namespace: str | None, name: str = "", part: str = "") -> str:
    """A custom resource or its collection; without a namespace the collection of all.

    Args:
        kind: Its kind.
        namespace: Its namespace.
        name: Its name; empty for the collection.
        part: A subresource, such as `status`.
    """
    return _path(f"/apis/{GROUP}/{VERSION}", namespace, kind.plural, name, part)


def scale(kind: str, namespace: str, name: str) -> str:
    """The scale subresource of a Deployment or StatefulSet."""
    return _path("/apis/apps/v1", namespace, f"{kind.lower()}s", name, "scale")


def workload(kind: str, namespace: str, name: str) -> str:
    """A Deployment or StatefulSet."""
    return _path("/apis/apps/v1", namespace, f"{kind.lower()}s", name, "")


def lease(namespace: str, name: str = "") -> str:
    """A Lease or its collection."""
    return _path("/apis/coordination.k8s.io/v1", namespace, "leases", name, "")


def pods(namespace: str, name: str = "") -> str:
    """A pod or all of a namespace."""
    return _path("/api/v1", namespace, "pods", name, "")


def events(namespace: str) -> str:
    """The events of a namespace."""
    return _path("/apis/events.k8s.io/v1", namespace, "events", "", "")


ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
OPENAPI = f"/openapi/v3/apis/{GROUP}/{VERSION}"


def _path(root: str, namespace: str | None, plural: str, name: str, part: str) -> str:
    pieces = [root, *([] if namespace is None else ["namespaces", namespace]), plural, name, part]
    return "/".join(piece for piece in pieces if piece)
