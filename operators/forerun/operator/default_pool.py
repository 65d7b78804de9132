"""Keeps the pool that the settings ask for: carries out what `engine/own_pool.py` finds.

A chart cannot hold the pool itself: a custom resource beside its own definition fails the first install.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from forerun.operator.crds.kinds import POOL
from forerun.operator.engine.own_pool import is_as, left_over, wanted_object
from forerun.operator.kubernetes import paths
from forerun.operator.kubernetes.client import Client, Object
from forerun.operator.kubernetes.errors import ApiError, Missing
from forerun.operator.settings import OperatorSettings
from forerun.runtime import metrics_table as m
from forerun.runtime.clock import Clock
from forerun.runtime.metrics import Metrics

_LOG: Final = logging.getLogger(__name__)

# Between two writes: what was written comes back within milliseconds, and a server that refuses needs no hurry.
_AGAIN_SECONDS: Final = 10.0


class DefaultPool:
    """Makes the pool, puts it right, and takes back one that is asked for no more.

    Args:
        client: Where pools are.
        settings: What the installation chose.
        namespace: Of the operator's Lease, where the pool is as well.
        metrics: Where failures are counted.
        clock: Tells the time.
        may_write: Asked before each write: only a leader writes.
    """

    def __init__(
        self, client: Client, settings: OperatorSettings, namespace: str, *, metrics: Metrics, clock: Clock,
        may_write: Callable[[], bool],
    ) -> None:  # fmt: skip
        self._client = client
        self._name = settings.default_pool.name
        self._owner = settings.lease_name
        self._wanted = wanted_object(settings.default_pool, namespace, self._owner) if self._name else None
        self._namespace = namespace
        self._metrics = metrics
        self._clock = clock
        self._may_write = may_write
        self._again_at = float("-inf")

    async def look(self, pools: Sequence[Object]) -> None:
        """One look at all pools."""
        if self._clock.monotonic() < self._again_at:
            return
        try:
            for name in left_over(pools, self._namespace, self._owner, self._name):
                if self._may_write():
                    await self._take_back(name)
            if self._wanted is not None and not is_as(pools, self._wanted) and self._may_write():
                self._again_at = self._clock.monotonic() + _AGAIN_SECONDS
                await self._client.apply(paths.custom(POOL, self._namespace, self._name), self._wanted)
                _LOG.info("the default pool was written", extra={"fields": {"forerun.resource": POOL.plural}})
        except ApiError as error:
            self._metrics.add(m.API_FAILURES)
            _LOG.warning("the default pool was not kept", extra={"fields": {"error.type": error.reason}})

    async def _take_back(self, name: str) -> None:
        self._again_at = self._clock.monotonic() + _AGAIN_SECONDS
        try:
            await self._client.delete(paths.custom(POOL, self._namespace, name))
        except Missing:
            return
        _LOG.info("a default pool was taken back", extra={"fields": {"forerun.resource": POOL.plural}})
