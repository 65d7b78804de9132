"""Settings of the operator."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from forerun.runtime.settings import ServiceSettings, SettingsGroup, service_config


class DefaultPoolSettings(SettingsGroup):
    """The SpeculationPool of an installation's own workers."""

    name: str = Field(default="", pattern=r"^$|^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=253)
    """Its name, which workers have as FORERUN_SANDBOX_POOL. Empty: none; one that the operator made is taken back."""
    target: str = ""
    """Deployment of the workers, in the namespace of the Lease."""
    min_replicas: int = Field(default=1, ge=0, le=1000)
    """Never fewer workers. 0 lets an idle pool go to zero."""
    max_replicas: int = Field(default=1, ge=1, le=1000)
    """Never more workers."""
    slots_per_replica: int = Field(default=12, ge=1, le=1024)
    """Slots of one worker, those for speculation included: authoritative work takes them, too."""

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if self.name and not self.target:
            raise ValueError("default_pool.name needs default_pool.target")
        if self.min_replicas > self.max_replicas:
            raise ValueError("default_pool.min_replicas must not be above max_replicas")
        return self


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

    runners_selector: str = ""
    """Labels of the pods of runners in the operator's own namespace, as `name=value` with commas between them. Those
    that have served their session are deleted, so that their Deployment makes new ones. Empty: none."""
    default_pool: DefaultPoolSettings = Field(default_factory=DefaultPoolSettings)
    """The pool that the operator itself makes and keeps, with all but its size."""

    @model_validator(mode="after")
    def _sees_its_pool(self) -> Self:
        watched = self.watched()
        if self.default_pool.name and watched and self.lease_namespace and self.lease_namespace not in watched:
            raise ValueError(f"the default pool is in {self.lease_namespace}, which is not among the namespaces")
        return self

    def watched(self) -> tuple[str, ...] | None:
        """The namespaces; None for all."""
        names = tuple(name.strip() for name in self.namespaces.split(",") if name.strip())
        return names or None
