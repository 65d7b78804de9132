"""Whether this account may do what the operator does; what it may not is named instead of failing in silence."""

from __future__ import annotations

from dataclasses import dataclass

from forerun.operator.crds.kinds import GROUP, KINDS, POOL
from forerun.operator.kubernetes import paths
from forerun.operator.kubernetes.client import Client


@dataclass(frozen=True, slots=True, order=True)
class Right:
    """A right that is needed.

    Attributes:
        namespace: Where; empty for all namespaces.
        group: API group.
        resource: Plural, with its subresource after a `/`.
        verb: What is done.
    """

    namespace: str
    group: str
    resource: str
    verb: str

    def __str__(self) -> str:
        where = f" in namespace {self.namespace}" if self.namespace else " in all namespaces"
        return f"{self.verb} {self._full}{where}"

    def fields(self) -> dict[str, str]:
        """For logs."""
        return {
            "forerun.verb": self.verb,
            "forerun.resource": self._full,
            "k8s.namespace.name": self.namespace or "*",
        }

    @property
    def _full(self) -> str:
        return f"{self.resource}.{self.group}" if self.group else self.resource


def needed(
    namespaces: tuple[str, ...] | None, lease_namespace: str, *, default_pool: bool = False, runners: bool = False
) -> tuple[Right, ...]:
    """Everything that the operator does, as rights; the chart's Role is exactly this.

    Args:
        namespaces: That are looked after; None for all.
        lease_namespace: Of the Lease, and of the default pool.
        default_pool: There is a default pool. Where there is none any more, the right to delete takes it back.
        runners: There are runners, whose used pods are replaced.
    """
    found = [Right(lease_namespace, "coordination.k8s.io", "leases", verb) for verb in ("get", "create", "update")]
    if namespaces is None or lease_namespace in namespaces:
        verbs = ("create", "patch", "delete") if default_pool else ("delete",)
        found += [Right(lease_namespace, GROUP, POOL.plural, verb) for verb in verbs]
    if runners:
        found += [Right(lease_namespace, "", "pods", verb) for verb in ("list", "delete")]
    for namespace in namespaces or ("",):
        for kind in KINDS:
            found += [Right(namespace, GROUP, kind.plural, verb) for verb in ("get", "list", "watch")]
            found.append(Right(namespace, GROUP, f"{kind.plural}/status", "patch"))
        for workload in ("deployments", "statefulsets"):
            found.append(Right(namespace, "apps", workload, "get"))
            found.append(Right(namespace, "apps", f"{workload}/scale", "patch"))
        found.append(Right(namespace, "events.k8s.io", "events", "create"))
    return tuple(found)


async def missing(client: Client, rights: tuple[Right, ...]) -> tuple[Right, ...]:
    """Those rights that this account lacks.

    Raises:
        ApiError: the API server cannot be asked.
    """
    found = []
    for right in rights:
        resource, _, part = right.resource.partition("/")
        attributes = {"group": right.group, "resource": resource, "verb": right.verb, "namespace": right.namespace}
        if part:
            attributes["subresource"] = part
        review = await client.create(
            paths.ACCESS_REVIEWS,
            {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SelfSubjectAccessReview",
                "spec": {"resourceAttributes": attributes},
            },
        )
        if not review.get("status", {}).get("allowed", False):
            found.append(right)
    return tuple(found)
