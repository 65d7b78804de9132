"""Replaces the pods of runners that have served their session: carries out what `engine/runner_pods.py` finds.

Their Deployment makes new ones; what it cannot do is to tell a pod that was used from one that was not.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from forerun.operator.engine.runner_pods import served
from forerun.operator.kubernetes import paths
from forerun.operator.kubernetes.client import Client
from forerun.operator.kubernetes.errors import ApiError, Missing
from forerun.runtime import metrics_table as m
from forerun.runtime.clock import Clock
from forerun.runtime.metrics import Metrics

_LOG: Final = logging.getLogger(__name__)

# At one look; the rest comes with the next one.
_MOST_AT_ONCE: Final = 100


class RunnerPods:
    """Deletes used pods.

    Args:
        client: Where they are.
        namespace: Of the operator's Lease, where they are as well.
        selector: Of their labels; empty: there are none.
        metrics: Where failures are counted.
        clock: Tells the time.
        may_write: Asked before each write: only a leader writes.
    """

    def __init__(
        self, client: Client, namespace: str, selector: str, *, metrics: Metrics, clock: Clock,
        may_write: Callable[[], bool],
    ) -> None:  # fmt: skip
        self._client = client
        self._namespace = namespace
        self._selector = selector
        self._metrics = metrics
        self._clock = clock
        self._may_write = may_write

    async def look(self) -> None:
        """One look at all of them."""
        if not self._selector or not self._may_write():
            return
        try:
            # From the API server's memory: a look that is a moment late is repeated.
            parameters = {"labelSelector": self._selector, "resourceVersion": "0"}
            found = await self._client.get(paths.pods(self._namespace), parameters)
            for name in served(found.get("items", ()), self._clock.now())[:_MOST_AT_ONCE]:
                if self._may_write():
                    await self._delete(name)
        except ApiError as error:
            self._metrics.add(m.API_FAILURES)
            _LOG.warning("used runners were not replaced", extra={"fields": {"error.type": error.reason}})

    async def _delete(self, name: str) -> None:
        try:
            await self._client.delete(paths.pods(self._namespace, name))
        except Missing:
            return
