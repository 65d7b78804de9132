"""Which tool comes next: several views of the history, each with discounted counts, mixed by learned weights.

A view is a chain of contexts from short to long; each backs off to the one before it, so that a context never seen
costs nothing. The views' probabilities are multiplied with exponents that are learned online (a logistic mixture), so
that the view that is right at the moment decides.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from operator import mul

from forerun.predictor.engine.counts import Counts
from forerun.predictor.engine.state import State, items, number_pairs, numbers, table
from forerun.predictor.engine.tuning import MAX_NODES, Tuning

NO_CALL = ""
_UNSEEN = 1e-4
_TOP_OF_ALL = 16
_RATE = 0.02
_SETTLING = 10.0  # steps after which the exponents' step size begins to fall


class Contexts:
    """Counts by context."""

    __slots__ = ("nodes", "tuning")

    def __init__(self, tuning: Tuning) -> None:
        self.nodes: dict[str, Counts] = {}
        self.tuning = tuning

    def add(self, contexts: Iterable[str], outcome: str) -> None:
        """Counts an outcome in every context."""
        for context in contexts:
            node = self.nodes.pop(context, None)
            if node is None:
                node = Counts()
                if len(self.nodes) >= MAX_NODES:
                    del self.nodes[next(iter(self.nodes))]
            self.nodes[context] = node
            node.add(outcome, self.tuning)

    def outcomes(self, contexts: Iterable[str]) -> dict[str, None]:
        """Outcomes seen in any of the contexts, and the most frequent ones of all."""
        seen: list[Iterable[str]] = [(NO_CALL,)]
        root = self.nodes.get("")
        if root is not None:
            common = root.slow
            often = len(common) > _TOP_OF_ALL
            seen.append(sorted(common, key=lambda name: -common[name])[:_TOP_OF_ALL] if often else common)
        for context in contexts:
            if context:
                node = self.nodes.get(context)
                if node is not None:
                    seen.append(node.slow)
        return dict.fromkeys(chain.from_iterable(seen))

    def estimates(self, chain: Sequence[str], outcomes: Iterable[str]) -> list[dict[str, float]]:
        """Probabilities of the outcomes after each context of a chain."""
        lower = dict.fromkeys(outcomes, _UNSEEN)
        levels: list[dict[str, float]] = []
        for context in chain:
            node = self.nodes.get(context)
            if node is not None:
                lower = node.probabilities(lower)
            levels.append(lower)
        return levels

    def total(self, context: str) -> float:
        """Effective number of observations in a context."""
        node = self.nodes.get(context)
        return node.slow_total if node is not None else 0.0

    def to_state(self) -> dict[str, State]:
        """Plain values for persistence."""
        return {context: node.to_state() for context, node in self.nodes.items()}

    def load(self, state: State) -> None:
        """The inverse of `to_state`.

        Raises:
            MalformedState: The state is not one that `to_state` gives.
        """
        self.nodes = {context: Counts.from_state(items(node)) for context, node in table(state).items()}


def logarithms(views: Iterable[Mapping[str, float]]) -> tuple[tuple[float, ...], ...]:
    """The logarithms of what each view says. All views speak of the same outcomes, in the order of the first."""
    first, *others = views
    rows = [first.values(), *([view[outcome] for outcome in first] for view in others)]
    return tuple(tuple([math.log(share + 1e-9) for share in row]) for row in rows)


class Mixture:
    """Exponents of the views, one set for each situation."""

    __slots__ = ("_start", "sets", "times")

    def __init__(self, start: Sequence[float]) -> None:
        self._start = list(start)
        self.sets: dict[str, list[float]] = {}
        self.times: dict[str, float] = {}

    def mix(self, situation: str, logs: Sequence[Sequence[float]], outcomes: Iterable[str]) -> dict[str, float]:
        """The mixed probabilities.

        Args:
            situation: Which exponents.
            logs: What each view says of the outcomes, by `logarithms`.
            outcomes: The outcomes, in the views' order.
        """
        weights = self.sets.get(situation, self._start)
        scores = [sum(map(mul, weights, column)) for column in zip(*logs, strict=True)]
        top = max(scores)
        raised = [math.exp(score - top) for score in scores]
        total = sum(raised)
        return {outcome: value / total for outcome, value in zip(outcomes, raised, strict=True)}

    def learn(self, situation: str, logs: Sequence[Sequence[float]], mixed: Mapping[str, float], truth: str) -> None:
        """One step towards the views that gave the truth more probability than the mixture expected of them."""
        if truth not in mixed:
            return
        weights = self.sets.setdefault(situation, list(self._start))
        times = self.times[situation] = self.times.get(situation, 0.0) + 1.0
        rate = _RATE / math.sqrt(1.0 + times / _SETTLING)
        shares, true = tuple(mixed.values()), list(mixed).index(truth)
        for index, view in enumerate(logs):
            gain = view[true] - sum(map(mul, shares, view))
            weights[index] = min(2.0, max(0.0, weights[index] + rate * max(-2.0, min(2.0, gain))))

    def to_state(self) -> dict[str, State]:
        """Plain values for persistence."""
        return {
            "sets": {situation: list(weights) for situation, weights in self.sets.items()},
            "times": dict(self.times),
        }

    def load(self, state: State) -> None:
        """The inverse of `to_state`.

        Raises:
            MalformedState: The state is not one that `to_state` gives.
        """
        fields = table(state)
        self.sets = number_pairs(fields["sets"])
        self.times = numbers(fields["times"])
