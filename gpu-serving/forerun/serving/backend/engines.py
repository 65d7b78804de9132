"""The language models that this server can run, behind one port."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from forerun.core.tokens import sampling
from forerun.core.tokens.distribution import Distribution
from forerun.core.tokens.sampling import SamplingOptions, TokenCounts
from forerun.serving.backend.toy import ToyModel, ToySession, ToySpec

Scores = Any
"""Logits of one position: a list of floats or a numpy array, one for each token."""


class TokenSequence(Protocol):
    """One text of a model, with its cache.

    Attributes:
        length: Tokens that were fed and kept.
        limit: Most tokens that fit.
    """

    @property
    def length(self) -> int:
        """Tokens that were fed and kept."""
        ...

    limit: int

    def keep(self, count: int) -> None:
        """Forgets everything after the first `count` tokens."""
        ...

    def feed(self, tokens: Sequence[int], wanted: int) -> list[Scores]:
        """Feeds tokens and gives the scores after each of the last `wanted` ones.

        The same tokens give the same bits however they are cut into calls, after the prompt.
        """
        ...


@runtime_checkable
class TreeSequence(TokenSequence, Protocol):
    """One text of a model that verifies trees of drafted tokens in one pass."""

    def feed_tree(self, last: int, tokens: Sequence[int], parents: Sequence[int]) -> list[Scores]:
        """Feeds a certain token, and gives the scores after it and after each token of a tree that follows it.

        The same bits as a chain along each path would give. Until `accept` the tree is not in the cache.
        """
        ...

    def accept(self, tokens: Sequence[int]) -> None:
        """These tokens of the tree, a path from its root, are in the cache from now on."""
        ...


class Engine(Protocol):
    """A loaded model."""

    def open(self) -> TokenSequence:
        """An empty sequence."""
        ...

    def declared_seconds(self, rows: int) -> float | None:
        """What a pass over so many rows costs, where that is declared; None: it is to be measured."""
        ...

    def process(self, scores: Scores, counts: TokenCounts, options: SamplingOptions) -> Distribution:
        """What the next token is drawn from; see `forerun.core.tokens.sampling.process`."""
        ...

    def log_probability(self, scores: Scores, token: int) -> float:
        """Natural logarithm of a token's probability, before all options."""
        ...


@dataclass(frozen=True, slots=True)
class _Times:
    fixed_seconds: float
    free_rows: int
    row_seconds: float

    def seconds(self, rows: int) -> float:
        return self.fixed_seconds + max(0, rows - self.free_rows) * self.row_seconds


class _Toy:
    def __init__(self, settings: Mapping[str, Any], positions: int) -> None:
        names = ("vocabulary", "order", "seed", "agreement", "peak")
        self._model = ToyModel(ToySpec(**{name: settings[name] for name in names}))
        self._times = _Times(**settings["times"])
        self._positions = positions

    def open(self) -> TokenSequence:
        return ToySession(self._model, self._positions)

    def declared_seconds(self, rows: int) -> float | None:
        return self._times.seconds(rows)

    def process(self, scores: Scores, counts: TokenCounts, options: SamplingOptions) -> Distribution:
        return sampling.process(scores, counts, options)

    def log_probability(self, scores: Scores, token: int) -> float:
        return sampling.log_probabilities(scores)[token]


class _OpenVino:
    def __init__(self, settings: Mapping[str, Any], positions: int) -> None:
        # Tests of toys need no OpenVINO, and importing it takes as long as they do.
        from forerun.serving.backend import array_rules
        from forerun.serving.backend.llama import LlamaModel

        self._rules = array_rules
        self._model = LlamaModel(
            Path(settings["weights"]), positions=positions, threads=settings["threads"], int8=settings["int8"]
        )
        # Kernels are compiled and memory is touched now, and not in the first request.
        self._model.session().feed([0] * (2 * self._model.pass_rows), 1)

    def open(self) -> TokenSequence:
        return self._model.session()

    def declared_seconds(self, rows: int) -> float | None:
        return None

    def process(self, scores: Scores, counts: TokenCounts, options: SamplingOptions) -> Distribution:
        return self._rules.process(scores, counts, options)

    def log_probability(self, scores: Scores, token: int) -> float:
        return self._rules.log_probability(scores, token)


def load(settings: Mapping[str, Any], positions: int) -> Engine:
    """Loads the model that the repository's settings name.

    Args:
        settings: An engine of a profile.
        positions: Tokens of each sequence's cache.

    Raises:
        OSError: Its files cannot be read.
        ValueError: It is none that can be run here.
    """
    if settings["kind"] == "toy":
        return _Toy(settings, positions)
    if settings["kind"] == "openvino":
        return _OpenVino(settings, positions)
    raise ValueError(f"the engine {settings['kind']!r} does not run inside the Python backend")
