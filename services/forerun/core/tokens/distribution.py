"""What the rules of verification ask of a distribution over tokens, and the plain reference implementation.

Array libraries bring their own implementation of `Distribution` (served vocabularies have 49,000 tokens and more). It
has to give the same tokens as `Dense` for the same numbers: sums run in the order of ids, ties go to the lowest id.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from forerun.core.errors import CoreError
from forerun.core.tokens.noise import fraction


class Distribution(Protocol):
    """Probabilities of all tokens; they sum to 1."""

    def probability(self, token: int) -> float:
        """Of one token."""
        ...

    def likeliest(self) -> int:
        """The likeliest token; the lowest id among equal ones."""
        ...

    def at(self, quantile: float) -> int:
        """The first token, by id, at which the cumulated probability exceeds `quantile` (0..1)."""
        ...

    def race(self, key: int) -> int:
        """The winner of independent exponential races: a sample that depends on the key only (Gumbel-max trick)."""
        ...

    def without(self, other: Self | int) -> Self:
        """What is left after a rejection: max(self - other, 0), normalised. `other` may be one certain token.

        Where nothing is left (the two are equal up to rounding, so a rejection had no probability), it is `self`.
        """
        ...


@dataclass(frozen=True, slots=True)
class Dense:
    """Probabilities as a list, by token id."""

    probabilities: Sequence[float]

    def probability(self, token: int) -> float:
        """Of one token."""
        return self.probabilities[token]

    def likeliest(self) -> int:
        """The likeliest token; the lowest id among equal ones."""
        return max(range(len(self.probabilities)), key=self.probabilities.__getitem__)

    def at(self, quantile: float) -> int:
        """The first token at which the cumulated probability exceeds the quantile."""
        total, last = 0.0, 0
        for token, probability in enumerate(self.probabilities):
            if probability > 0.0:
                total += probability
                last = token
                if total > quantile:
                    return token
        return last  # rounding: the sum fell short of the quantile

    def race(self, key: int) -> int:
        """The token that arrives first when each has an exponential clock of its probability."""
        winner, best = 0, -1.0
        for token, probability in enumerate(self.probabilities):
            if probability > 0.0:
                score = probability / -math.log(fraction(key, token))
                if score > best:
                    winner, best = token, score
        return winner

    def without(self, other: Dense | int) -> Dense:
        """What is left after a rejection."""
        if isinstance(other, int):
            rest = list(self.probabilities)
            rest[other] = 0.0
        else:
            rest = [max(one - two, 0.0) for one, two in zip(self.probabilities, other.probabilities, strict=True)]
        total = sum(rest)
        return Dense([one / total for one in rest]) if total > 0.0 else self


def softmax(scores: Sequence[float]) -> list[float]:
    """Probabilities of scores; tokens at minus infinity get none.

    Raises:
        CoreError: `invalid_logits` where no token is left or a score is not a number.
    """
    highest = max(scores, default=-math.inf)
    if not math.isfinite(highest) or any(math.isnan(one) for one in scores):
        raise CoreError(
            "invalid_logits", "the model's scores leave no token: all are minus infinity, or one is no number"
        )
    weights = [math.exp(one - highest) for one in scores]
    total = sum(weights)
    return [one / total for one in weights]
