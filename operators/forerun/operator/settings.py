"""Settings of the operator."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from forerun.runtime.settings import ServiceSettings, service_config


class OperatorSettings(ServiceSettings):
    """Publishes policies and tool servers, and sizes pools, from custom resources."""

    model_config = service_config("operator")

    listen_address: str = "127.0.0.1:7460"
    """`host:port` of the health service; nobody calls the operator for anything else."""
    metrics_address: str = "127.0.0.1:9460"
    """`host:port` of the HTTP server for Prometheus. Loopback unless a scraper has to reach it."""
    kubeconfig: Path | None = None
    """File that says how to reach the API server, for people who develop. None uses the pod's service account."""
    namespaces: str = ""
    """Namespaces to look after, with commas between them: a Role in each is enough. Empty looks after all namespaces of
    the cluster, which needs a ClusterRole. Whoever may write a SpeculationPolicy in one of them decides for all."""
    lease_name: str = "forerun-operator"
    """Name of the Lease by which replicas choose their leader, in the operator's own namespace."""
    lease_namespace: str = ""
    """Namespace of that Lease. Empty: that of the pod, or of the kubeconfig's context."""
    resync_seconds: float = Field(default=30.0, gt=0, le=3600)
    """Everything is looked at again so often, whether or not something was heard: what was missed is found then."""
    pool_seconds: float = Field(default=1.0, gt=0, le=60)
    """Between two looks at the load of pools. Speculation gives slots back within two of them."""

    def watched(self) -> tuple[str, ...] | None:
        """The namespaces; None for all."""
        names = tuple(name.strip() for name in self.namespaces.split(",") if name.strip())
        return names or None
