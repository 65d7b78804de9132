"""How often a further candidate is better than those before it: learned, bounded, with a cautious lower bound."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from forerun.core import limits
from forerun.core.governor import lower_bound

_PRIOR_WEIGHT: Final = 10.0
_DISCOUNT: Final = 0.995
_SMOOTHING: Final = 0.1
_Z: Final = 1.0


@dataclass(slots=True)
class Gain:
    """Of one model and agent.

    Attributes:
        prior: Share that is expected before anything is known, counted as ten observations.
        tried: Further candidates that were compared, discounted.
        better: Of these, those that were taken.
        output_tokens: Generated tokens of a candidate, smoothed; 0 while nothing is known.
    """

    prior: float = 0.25
    tried: float = 0.0
    better: float = 0.0
    output_tokens: float = 0.0

    def observe(self, tried: int, better: int) -> None:
        """Takes the end of a search."""
        self.tried = self.tried * _DISCOUNT**tried + tried
        self.better = self.better * _DISCOUNT**tried + better

    def length(self, output_tokens: int) -> None:
        """Takes the length of a candidate."""
        known = self.output_tokens or float(output_tokens)
        self.output_tokens = known + _SMOOTHING * (output_tokens - known)

    @property
    def lower_bound(self) -> float:
        """A cautious share."""
        evidence = self.tried + _PRIOR_WEIGHT
        return lower_bound((self.better + self.prior * _PRIOR_WEIGHT) / evidence, evidence, _Z)


@dataclass(slots=True)
class Gains:
    """Those of a replica, bounded: the least recently used one is forgotten."""

    bound: int = limits.RACED_TOOLS
    table: OrderedDict[tuple[str, str, str], Gain] = field(default_factory=OrderedDict)

    def of(self, tenant: str, agent: str, model: str, prior: float) -> Gain:
        """The gain of an agent's model, made new where there is none."""
        key = (tenant, agent, model)
        gain = self.table.pop(key, None) or Gain(prior)
        gain.prior = prior
        self.table[key] = gain
        if len(self.table) > self.bound:
            self.table.popitem(last=False)
        return gain
