"""Log-linear weights, learned online: small steps along the gradient of the log likelihood, sized by AdaGrad."""

from __future__ import annotations

import math
from collections.abc import Iterable

_FADE = 0.998  # keeps steps from vanishing, so that a change can be learned late


class Weights:
    """Weights by feature name, bounded; when full, the smallest half of them is dropped."""

    __slots__ = ("_limit", "_rate", "table")

    def __init__(self, limit: int, rate: float) -> None:
        self.table: dict[str, list[float]] = {}
        self._limit = limit
        self._rate = rate

    def score(self, features: Iterable[str]) -> float:
        """The sum of the features' weights."""
        table = self.table
        total = 0.0
        for feature in features:
            entry = table.get(feature)
            if entry is not None:
                total += entry[0]
        return total

    def step(self, features: Iterable[str], gradient: float) -> None:
        """Moves the features' weights against the gradient of the loss."""
        table, rate = self.table, self._rate
        square = gradient * gradient
        for feature in features:
            entry = table.get(feature)
            if entry is None:
                table[feature] = [-rate * gradient / math.sqrt(1.0 + square), square]
            else:
                entry[1] = entry[1] * _FADE + square
                entry[0] -= rate * gradient / math.sqrt(1.0 + entry[1])
        if len(table) > self._limit:
            self._drop()

    def _drop(self) -> None:
        keep = sorted(self.table, key=lambda name: -abs(self.table[name][0]))[: self._limit // 2]
        self.table = {name: self.table[name] for name in keep}
