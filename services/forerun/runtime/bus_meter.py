"""What a bus counts about itself, where its process has metrics."""

from __future__ import annotations

from forerun.runtime import metrics_table
from forerun.runtime.metrics import Metrics


class BusMeter:
    """Counts durable writes, drops, dead letters and the state of the connection.

    Args:
        metrics: Where to; None counts nothing.
    """

    __slots__ = ("_metrics",)

    def __init__(self, metrics: Metrics | None) -> None:
        self._metrics = metrics

    def appended(self, seconds: float, *, stored: bool) -> None:
        """An append ended, with an acknowledgement or without."""
        if self._metrics is not None:
            self._metrics.add(metrics_table.BUS_APPENDS, result="ok" if stored else "failed")
            if stored:
                self._metrics.observe(metrics_table.BUS_APPEND_SECONDS, seconds)

    def dropped(self) -> None:
        """A notification was dropped: by a slow handler, or on the way to the broker."""
        if self._metrics is not None:
            self._metrics.add(metrics_table.DROPPED, bound="notifications")

    def gave_up(self, stream: str) -> None:
        """A message became a dead letter."""
        if self._metrics is not None:
            self._metrics.add(metrics_table.DEAD_LETTERS, stream=stream)

    def connected(self, connected: bool) -> None:
        """The connection came or went."""
        if self._metrics is not None:
            self._metrics.set(metrics_table.BUS_CONNECTED, 1.0 if connected else 0.0)
