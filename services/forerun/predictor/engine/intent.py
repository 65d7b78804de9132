"""What the words say: a log-linear model from sparse features of the history to the next tool.

Features are the last words of the user and the model, flags of the last observation (`/status=pending`, failed,
empty), tools called so far. They are kept as numbers (a checksum), never as words.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Mapping

from forerun.predictor.engine.ranking import most
from forerun.predictor.engine.state import State, number, numbers, table
from forerun.predictor.engine.tuning import MAX_WORD_FEATURES

_RATE = 0.25
_FADE = 0.9995
_OUTCOMES = 24  # outcomes that the features are asked about; the others keep their prior


def feature(text: str) -> int:
    """The number of a feature."""
    return zlib.crc32(text.encode("utf-8", "surrogatepass"))


class Intent:
    """Weights by feature and outcome, learned online."""

    __slots__ = ("squares", "weights")

    def __init__(self) -> None:
        self.weights: dict[int, dict[str, float]] = {}
        self.squares: dict[int, float] = {}

    def probabilities(self, features: Iterable[int], prior: Mapping[str, float]) -> dict[str, float]:
        """Probabilities of the outcomes of `prior`, which the features correct."""
        scores = {outcome: math.log(share + 1e-9) for outcome, share in prior.items()}
        table_of = self.weights
        wanted = set(most(_OUTCOMES, prior, lambda outcome: prior[outcome]))
        for number_ in features:
            row = table_of.get(number_)
            if row is not None:
                for outcome in row.keys() & wanted:  # the order does not matter: one addition for each outcome
                    scores[outcome] += row[outcome]
        top = max(scores.values())
        raised = {outcome: math.exp(score - top) for outcome, score in scores.items()}
        total = sum(raised.values())
        return {outcome: value / total for outcome, value in raised.items()}

    def learn(self, features: Iterable[int], given: Mapping[str, float], truth: str) -> None:
        """One step towards the outcome that came."""
        steps = {
            outcome: share - (1.0 if outcome == truth else 0.0)
            for outcome, share in given.items()
            if share > 0.03 or outcome == truth
        }
        energy = sum(step * step for step in steps.values())
        for name in features:
            square = self.squares[name] = self.squares.get(name, 0.0) * _FADE + energy
            rate = _RATE / math.sqrt(1.0 + square) / (1.0 + square / 80.0)
            row = self.weights.setdefault(name, {})
            for outcome, step in steps.items():
                row[outcome] = row.get(outcome, 0.0) - rate * step
        if len(self.weights) > MAX_WORD_FEATURES:
            for name in sorted(self.squares, key=lambda entry: self.squares[entry])[: MAX_WORD_FEATURES // 4]:
                del self.squares[name], self.weights[name]

    def to_state(self) -> dict[str, State]:
        """Plain values for persistence."""
        return {
            "weights": {str(name): dict(row) for name, row in self.weights.items()},
            "squares": {str(name): square for name, square in self.squares.items()},
        }

    @classmethod
    def from_state(cls, state: State) -> Intent:
        """The inverse of `to_state`.

        Raises:
            MalformedState: The state is not one that `to_state` gives.
        """
        intent = cls()
        fields = table(state)
        intent.weights = {int(name): numbers(row) for name, row in table(fields["weights"]).items()}
        intent.squares = {int(name): number(square) for name, square in table(fields["squares"]).items()}
        return intent
