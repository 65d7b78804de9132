"""One leader among the operator's replicas, by a Lease.

The leader renews it; a replica that has seen no renewal for the Lease's duration, by its own clock, takes it. A leader
that could not renew in time stops acting *before* others may take over, so that no two act at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from forerun.operator.kubernetes import paths
from forerun.operator.kubernetes.client import Client, Object
from forerun.operator.kubernetes.errors import ApiError, Conflicting, Missing
from forerun.runtime.clock import Clock

_LOG: Final = logging.getLogger(__name__)

DURATION_SECONDS: Final = 15
"""How long a renewal is good for others."""
TRUSTED_SECONDS: Final = 10.0
"""How long it is good for the leader itself; the difference is for clocks that run at different speeds."""
RENEW_SECONDS: Final = 3.0


class Election:
    """Takes part in the election.

    Args:
        client: Where the Lease is.
        namespace: Its namespace.
        name: Its name.
        identity: Who we are; no other replica has the same.
        clock: Tells the time.
        changed: Called when leadership begins or ends.
    """

    def __init__(
        self, client: Client, namespace: str, name: str, identity: str, clock: Clock, changed: Callable[[], None]
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._clock = clock
        self._changed = changed
        self._renewed_at = float("-inf")
        self._seen: tuple[str, str] | None = None
        self._seen_at = float("-inf")
        self._led = False
        self.holder = ""
        """Who holds the Lease, as far as we know."""

    @property
    def leading(self) -> bool:
        """We may act now. Ask again before every act."""
        return self._clock.monotonic() - self._renewed_at < TRUSTED_SECONDS

    async def run(self) -> None:
        """Takes part until it is cancelled."""
        while True:
            try:
                await self._round()
            except ApiError as error:
                if not isinstance(error, Conflicting):
                    _LOG.warning("the Lease cannot be kept", extra={"fields": {"error.type": error.reason}})
            self._tell()
            await asyncio.sleep(RENEW_SECONDS)

    async def resign(self) -> None:
        """Gives the Lease back, so that others need not wait for it to run out."""
        if not self.leading:
            return
        self._renewed_at = float("-inf")
        self._tell()
        path = paths.lease(self._namespace, self._name)
        lease = await self._client.get(path)
        if lease["spec"].get("holderIdentity") == self._identity:
            lease["spec"]["holderIdentity"] = ""
            lease["spec"]["leaseDurationSeconds"] = 1
            await self._client.replace(path, lease)

    async def _round(self) -> None:
        began = self._clock.monotonic()
        try:
            lease = await self._client.get(paths.lease(self._namespace, self._name))
        except Missing:
            await self._client.create(paths.lease(self._namespace), self._fresh(None))
            self._won(began)
            return
        spec = lease.get("spec", {})
        holder, renewal = spec.get("holderIdentity", ""), str(spec.get("renewTime", ""))
        self.holder = holder
        if (holder, renewal) != self._seen:
            self._seen, self._seen_at = (holder, renewal), began
        free = not holder or began - self._seen_at > float(spec.get("leaseDurationSeconds", DURATION_SECONDS))
        if holder == self._identity or free:
            await self._client.replace(paths.lease(self._namespace, self._name), self._fresh(lease))
            self._won(began)

    def _won(self, began: float) -> None:
        # From before the request: others may count from the moment at which the server had it.
        self._renewed_at, self.holder = began, self._identity

    def _fresh(self, lease: Object | None) -> Object:
        now = datetime.fromtimestamp(self._clock.now(), UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        spec = dict(lease.get("spec", {})) if lease is not None else {}
        if spec.get("holderIdentity") != self._identity:
            spec["acquireTime"] = now
            spec["leaseTransitions"] = int(spec.get("leaseTransitions", -1)) + 1
        spec |= {"holderIdentity": self._identity, "leaseDurationSeconds": DURATION_SECONDS, "renewTime": now}
        metadata = {"name": self._name, "namespace": self._namespace} if lease is None else lease["metadata"]
        return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}

    def _tell(self) -> None:
        if self.leading != self._led:
            self._led = self.leading
            _LOG.info("leadership changed", extra={"fields": {"forerun.leading": self._led}})
            self._changed()
