"""Drafts that cost no model: what followed where the context has stood before."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import Final

from forerun.core.tokens.context import SEPARATOR, ContextIndex, Occurrence
from forerun.core.tokens.drafts import NOTHING, ROOT, Draft, chain
from forerun.core.tokens.evidence import Evidence, EvidenceWeights, Weights
from forerun.core.tokens.history import History

_EXPECTED_TOKENS: Final = 4_096

# Negated probability of the whole path (heaps give the smallest first), a number that breaks ties in order of
# discovery, token, parent, and the places that led there.
_Open = tuple[float, int, int, int, list[Occurrence]]


class RecallDrafter:
    """Drafts for one text from its own context, earlier outputs, and calls that are expected.

    All places where the context has stood before vote together (`evidence`). The draft with the most expected accepted
    tokens is grown from the root, likeliest node first: a chain where only one branch is wanted, else a tree.

    Args:
        weights: What the places are worth; they learn from this text.
        histories: The agent's own history, then the tenant's (`Histories.of`).
        limit: Tokens of context that are searched.
    """

    def __init__(self, weights: EvidenceWeights, histories: Sequence[History] = (), *, limit: int) -> None:
        self._weights = weights
        self._context = ContextIndex(limit)
        self._histories = list(zip((Evidence.OWN_HISTORY, Evidence.TENANT_HISTORY), histories, strict=False))
        self._expected: ContextIndex | None = None
        # The last draft and its places, while it is not known yet how it ended.
        self._unjudged: tuple[list[Occurrence], Sequence[int]] | None = None

    @property
    def name(self) -> str:
        """In metrics and the ledger."""
        return "recall"

    @property
    def context(self) -> Sequence[int]:
        """The certain tokens that are searched."""
        return self._context.tokens

    def expect(self, calls: Iterable[Sequence[int]]) -> None:
        """Messages or calls that the predictor expects next, as tokens; they replace those expected before."""
        self._expected = ContextIndex(_EXPECTED_TOKENS)
        for tokens in calls:
            self._expected.extend((SEPARATOR, *tokens))

    def extend(self, tokens: Iterable[int]) -> None:
        """Certain tokens that follow, in order and once; the weights learn how the last draft did."""
        came = list(tokens)
        if self._unjudged is not None:
            places, drafted = self._unjudged
            self._unjudged = None
            self._weights.learn(places, drafted, came)
        self._context.extend(came)

    def propose(self, nodes: int, branches: int = 1) -> Draft:
        """At most `nodes` tokens, of which at most `branches` follow the same token."""
        places = self._places()
        if not places or nodes < 1:
            return NOTHING
        draft = self._chain(places, nodes) if branches == 1 else self._grow(places, nodes, branches)
        self._unjudged = (places, _first_branch(draft)) if self._weights.wants_sample() else None
        return draft

    def _places(self) -> list[Occurrence]:
        tail = self._context.tokens
        found: list[Occurrence] = []
        self._context.find(tail, Evidence.SESSION, found)
        for kind, history in self._histories:
            history.find(tail, kind, found)
        if self._expected is not None:
            self._expected.find(tail, Evidence.EXPECTED_CALL, found)
        return found

    def _chain(self, places: list[Occurrence], nodes: int) -> Draft:
        """The likeliest token, again and again. What `_grow` gives for one branch, without its bookkeeping."""
        tokens: list[int] = []
        reach: list[float] = []
        weights, path = self._weights.begin, 1.0
        while len(tokens) < nodes and places:
            votes: dict[int, float] = {}
            for kind, match, at, source in places:
                if at < len(source):
                    token = source[at]
                    votes[token] = votes.get(token, 0.0) + weights[kind][match]
            votes.pop(SEPARATOR, None)
            if not votes:
                break
            best = max(votes, key=votes.__getitem__)
            path *= votes[best] / (sum(votes.values()) + 1.0)
            tokens.append(best)
            reach.append(path)
            weights = self._weights.middle
            places = [
                (kind, match + 1, at + 1, source)
                for kind, match, at, source in places
                if at < len(source) and source[at] == best
            ]
            if len(places) == 1:
                _copy(places[0], nodes, weights, tokens, reach)
                break
        return chain(tokens, self.name, reach=reach) if tokens else NOTHING

    def _grow(self, places: list[Occurrence], nodes: int, branches: int) -> Draft:
        tokens: list[int] = []
        parents: list[int] = []
        reach: list[float] = []
        waiting: list[_Open] = []
        found = _offer(waiting, 0, places, self._weights.begin, branches, ROOT, 1.0)
        weights = self._weights.middle
        while waiting and len(tokens) < nodes:
            negated, _, token, parent, before = heapq.heappop(waiting)
            node = len(tokens)
            tokens.append(token)
            parents.append(parent)
            reach.append(-negated)
            if node + 1 < nodes:
                after = [
                    (kind, match + 1, at + 1, source)
                    for kind, match, at, source in before
                    if at < len(source) and source[at] == token
                ]
                found = _offer(waiting, found, after, weights, branches, node, -negated)
        return Draft(tokens, parents, reach, self.name) if tokens else NOTHING


def _copy(place: Occurrence, nodes: int, weights: Weights, tokens: list[int], reach: list[float]) -> None:
    """Goes on from the only place that is left, to the end of its text or of the draft."""
    kind, match, at, source = place
    row, path = weights[kind], reach[-1]
    for token in source[at : at + nodes - len(tokens)]:
        if token == SEPARATOR:
            break
        path *= row[match] / (row[match] + 1.0)
        match += 1
        tokens.append(token)
        reach.append(path)


def _offer(
    waiting: list[_Open],
    found: int,
    places: list[Occurrence],
    weights: Weights,
    branches: int,
    parent: int,
    path: float,
) -> int:
    """Adds the likeliest tokens after a node to `waiting`; the next number that breaks ties."""
    votes: dict[int, float] = {}
    for kind, match, at, tokens in places:
        if at < len(tokens):
            token = tokens[at]
            votes[token] = votes.get(token, 0.0) + weights[kind][match]
    votes.pop(SEPARATOR, None)
    if not votes:
        return found
    share = path / (sum(votes.values()) + 1.0)
    for token in heapq.nlargest(branches, votes, key=votes.__getitem__):
        heapq.heappush(waiting, (-share * votes[token], found, token, parent, places))
        found += 1
    return found


def _first_branch(draft: Draft) -> list[int]:
    """The chain from the root that was grown first at each node: what the weights thought likeliest."""
    tokens, at = [], ROOT
    for node, parent in enumerate(draft.parents):
        if parent == at:
            tokens.append(draft.tokens[node])
            at = node
    return tokens
