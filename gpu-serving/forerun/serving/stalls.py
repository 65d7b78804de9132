"""Busy or hung: a model that has too much to do gets on with it, one that hangs does not. Pure.

A probe that gets no answer in time says neither. So what counts is work that the model has finished: as long as that
grows it is busy, however long its queue is. Where nothing was finished for a bound it hangs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from forerun.serving.probes import Health, Probe

SERVER: Final = ""
"""Stands for the server itself, which has stalled where it does not answer at all."""


@dataclass(slots=True)
class Stalls:
    """Since when which models neither answer nor get on.

    Attributes:
        bound_seconds: So long without an answer and without progress is hung. Longer than the longest single pass.
    """

    bound_seconds: float
    _since: dict[str, tuple[float | None, float]] = field(default_factory=dict)

    def judge(self, probe: Probe, progress: Mapping[str, float], now: float) -> Probe:
        """The probe, with what is known from those before it.

        Args:
            probe: What a model answered just now.
            progress: Work that models have finished; one whose work is not known is never hung.
            now: When that was read. Seconds.
        """
        if probe.health is not Health.BUSY or probe.model not in progress:
            self._since.pop(probe.model, None)
            return probe
        seconds = self._still(probe.model, progress[probe.model], now)
        if seconds < self.bound_seconds:
            return probe
        return replace(probe, health=Health.HUNG, reason=f"no answer and no progress for {seconds:.0f} s")

    def silent(self, now: float, *, tells: bool) -> bool:
        """Whether the server itself hangs.

        Args:
            now: When it was asked. Seconds.
            tells: It answers.
        """
        if tells:
            self._since.pop(SERVER, None)
            return False
        return self._still(SERVER, None, now) >= self.bound_seconds

    def seconds(self, model: str, now: float) -> float:
        """How long a model has stalled for; 0 where it has not."""
        known = self._since.get(model)
        return 0.0 if known is None else max(0.0, now - known[1])

    def begin_anew(self) -> None:
        """Something was loaded anew: what waited for it in vain may go on now."""
        self._since.clear()

    def _still(self, name: str, progress: float | None, now: float) -> float:
        known = self._since.get(name)
        if known is None or known[0] != progress:
            self._since[name] = known = (progress, now)
        return now - known[1]
