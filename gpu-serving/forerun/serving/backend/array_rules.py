"""The rules' distributions on numpy arrays, for vocabularies of real models: `forerun.core.tokens` is the reference.

`tests/triton` compares both on random scores: every token that is left, and its probability.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from forerun.core.errors import CoreError
from forerun.core.tokens import noise
from forerun.core.tokens.sampling import SamplingOptions, TokenCounts

Array = Any

_FRACTION: Final = 2.0**-53


@dataclass(frozen=True, slots=True)
class Certain:
    """One token has all probability, as when decoding greedily."""

    token: int

    def probability(self, token: int) -> float:
        """Of one token."""
        return float(token == self.token)

    def likeliest(self) -> int:
        """The token."""
        return self.token

    def at(self, quantile: float) -> int:
        """The token."""
        return self.token

    def race(self, key: int) -> int:
        """The token."""
        return self.token

    def without(self, other: Certain | int) -> Certain:
        """It stays: nothing else is left."""
        return self


@dataclass(frozen=True, slots=True)
class ArrayDistribution:
    """Probabilities of all tokens, in double precision."""

    probabilities: Array

    def probability(self, token: int) -> float:
        """Of one token."""
        return float(self.probabilities[token])

    def likeliest(self) -> int:
        """The likeliest token; the lowest id among equal ones."""
        return int(self.probabilities.argmax())

    def at(self, quantile: float) -> int:
        """The first token at which the cumulated probability exceeds the quantile."""
        sums = np.cumsum(self.probabilities)
        place = int(np.searchsorted(sums, quantile, side="right"))
        return place if place < len(sums) else int(np.flatnonzero(self.probabilities)[-1])

    def race(self, key: int) -> int:
        """The token that arrives first when each has an exponential clock of its probability."""
        (tokens,) = np.nonzero(self.probabilities)
        return int(tokens[(self.probabilities[tokens] / -np.log(_fractions(key, tokens))).argmax()])

    def without(self, other: ArrayDistribution | int) -> ArrayDistribution:
        """What is left after a rejection."""
        if isinstance(other, int):
            rest = self.probabilities.copy()
            rest[other] = 0.0
        else:
            rest = np.maximum(self.probabilities - other.probabilities, 0.0)
        total = rest.sum()
        return ArrayDistribution(rest / total) if total > 0.0 else self


def process(logits: Array, counts: TokenCounts, options: SamplingOptions) -> Certain | ArrayDistribution:
    """The distribution that the next token is drawn from.

    Raises:
        CoreError: `invalid_logits` where no token is left.
    """
    scores = _adjusted(logits, counts, options)
    if options.is_greedy:
        best = int(scores.argmax())
        if not np.isfinite(scores[best]):
            raise CoreError("invalid_logits", "the model's scores leave no token, or one is no number")
        return Certain(best)
    probabilities = _softmax(scores.astype(np.float64) / options.temperature)
    kept = _kept(probabilities, options)
    if kept is not None:
        chosen = np.zeros_like(probabilities)
        chosen[kept] = probabilities[kept]
        probabilities = chosen / chosen.sum()
    return ArrayDistribution(probabilities)


def log_probability(logits: Array, token: int) -> float:
    """Natural logarithm of the model's own probability of a token, before all options."""
    scores = logits.astype(np.float64)
    highest = scores.max()
    return float(scores[token] - highest - np.log(np.exp(scores - highest).sum()))


def _adjusted(logits: Array, counts: TokenCounts, options: SamplingOptions) -> Array:
    if not options.logit_bias and not options.has_penalties:
        return logits
    scores = logits.astype(np.float64)
    for token, bias in options.logit_bias.items():
        if 0 <= token < len(scores):
            scores[token] += bias
    factor = options.repetition_penalty
    if factor != 1.0:
        seen = np.array(sorted(one for one in counts.prompt | counts.output.keys() if one < len(scores)), np.int64)
        before = scores[seen]
        scores[seen] = np.where(before > 0.0, before / factor, before * factor)
    for token, count in counts.output.items():
        if token < len(scores):
            scores[token] -= options.presence_penalty + options.frequency_penalty * count
    return scores


def _softmax(scores: Array) -> Array:
    highest = scores.max()
    if not np.isfinite(highest):
        raise CoreError("invalid_logits", "the model's scores leave no token, or one is no number")
    weights = np.exp(scores - highest)
    return weights / weights.sum()


def _kept(probabilities: Array, options: SamplingOptions) -> Array | None:
    if options.min_p == 0.0 and not 0 < options.top_k < len(probabilities) and options.top_p == 1.0:
        return None
    order = np.argsort(-probabilities, kind="stable")  # of equal ones the lower id first
    order = order[probabilities[order] >= options.min_p * probabilities[order[0]]]
    if options.top_k:
        order = order[: options.top_k]
    if options.top_p < 1.0:
        sums = np.cumsum(probabilities[order])
        order = order[: int(np.searchsorted(sums, options.top_p * sums[-1], side="left")) + 1]
    return order


def _fractions(key: int, tokens: Array) -> Array:
    """`noise.fraction` of each token: the same bits."""
    with np.errstate(over="ignore"):
        value = np.uint64(key) + (tokens.astype(np.uint64) + np.uint64(1)) * np.uint64(noise.GOLDEN)
        value = (value ^ (value >> np.uint64(30))) * np.uint64(noise.FIRST_MULTIPLIER)
        value = (value ^ (value >> np.uint64(27))) * np.uint64(noise.SECOND_MULTIPLIER)
        value = value ^ (value >> np.uint64(31))
    return ((value >> np.uint64(11)).astype(np.float64) + 0.5) * _FRACTION
