"""A tiny causal language model for tests: its next-token scores are a fixed function of the last few tokens.

It needs nothing but integers, so it gives the same scores on every machine, in the server and beside it. Scores come
from a small set of values on purpose: equal top scores occur, so ties have to be broken the same way everywhere. A
few contexts continue in one clear way, as text does; a draft of it agrees on a declared share of the contexts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

_MASK: Final = (1 << 64) - 1
_LEVELS: Final = 16
_CACHED_CONTEXTS: Final = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class ToySpec:
    """Which toy it is.

    Attributes:
        vocabulary: Number of tokens; the token 0 ends a text.
        order: Tokens that the next one depends on.
        seed: Two toys of one seed are one model.
        agreement: Share of the contexts, 0..1, in which it has the scores of the model with this seed; below 1 it is a
            draft of it.
        peak: Added to the score of one token of each context; the larger, the surer the model is.
        ends: The end token's score is lowered by so much.
    """

    vocabulary: int = 64
    order: int = 3
    seed: int = 1
    agreement: float = 1.0
    peak: float = 3.0
    ends: float = 4.0


def mixed(value: int) -> int:
    """A well-mixed 64-bit function of an integer (the finalizer of splitmix64)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


class ToyModel:
    """Scores of the next token.

    Args:
        spec: Which toy.
    """

    def __init__(self, spec: ToySpec) -> None:
        self.spec = spec
        self._of_context = lru_cache(maxsize=_CACHED_CONTEXTS)(self._compute)

    def scores(self, context: Sequence[int]) -> list[float]:
        """The logits after `context`, one for each token of the vocabulary."""
        return list(self._of_context(tuple(context[-self.spec.order :])))

    def _compute(self, context: tuple[int, ...]) -> tuple[float, ...]:
        spec, state = self.spec, mixed(self.spec.seed)
        for token in context:
            state = mixed(state ^ (token + 1))
        if (mixed(state ^ 0xA5A5) >> 40) / (1 << 24) >= spec.agreement:
            state = mixed(state ^ 0x5A5A)
        scores = [float(mixed(state ^ (token << 20)) >> 60) * 4.0 / _LEVELS for token in range(spec.vocabulary)]
        scores[mixed(state ^ 0xC3C3) % spec.vocabulary] += spec.peak
        scores[0] -= spec.ends
        return tuple(scores)


class ToySession:
    """One sequence of a toy, with what a real model calls its cache: the tokens so far.

    Args:
        model: Its model.
        limit: Most tokens that fit.
    """

    def __init__(self, model: ToyModel, limit: int) -> None:
        self._model = model
        self.limit = limit
        self._tokens: list[int] = []

    @property
    def length(self) -> int:
        """Tokens that were fed and kept."""
        return len(self._tokens)

    def keep(self, count: int) -> None:
        """Forgets everything after the first `count` tokens."""
        del self._tokens[count:]

    def feed(self, tokens: Sequence[int], wanted: int) -> list[list[float]]:
        """Feeds tokens and gives the scores after each of the last `wanted` ones."""
        start = len(self._tokens)
        self._tokens.extend(tokens)
        stop = len(self._tokens)
        assert stop <= self.limit, "callers check the limit first"
        return [self._model.scores(self._tokens[max(0, end - self._model.spec.order) : end])
                for end in range(max(start, stop - wanted) + 1, stop + 1)]  # fmt: skip

    def feed_tree(self, last: int, tokens: Sequence[int], parents: Sequence[int]) -> list[list[float]]:
        """Feeds `last`, and gives the scores after it and after each node of a tree, by the node's path."""
        self._tokens.append(last)
        paths: list[list[int]] = []
        for token, parent in zip(tokens, parents, strict=True):
            paths.append([*(paths[parent] if parent >= 0 else ()), token])
        order = self._model.spec.order
        return [self._model.scores([*self._tokens[-order:], *path]) for path in ([], *paths)]

    def accept(self, tokens: Sequence[int]) -> None:
        """Keeps a path of the tree."""
        self._tokens.extend(tokens)
