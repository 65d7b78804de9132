"""What the drafts are compared with: prompt look-up, and SuffixDecoding as its paper describes it."""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from forerun.core.tokens.context import SEPARATOR, ContextIndex, Occurrence
from forerun.core.tokens.drafts import NOTHING, ROOT, Draft, chain
from forerun.core.tokens.history import SortedRun

_LIMIT: Final = 1 << 20
_LONGEST_PATTERN: Final = 16
_PLACES: Final = 64  # of a pattern; of more a regular sample is taken


class PromptLookup:
    """What followed the longest earlier occurrence of the last tokens in the text's own context; the latest one."""

    name = "prompt look-up"

    def __init__(self) -> None:
        self._context = ContextIndex(_LIMIT)

    def extend(self, tokens: Iterable[int]) -> None:
        self._context.extend(tokens)

    def propose(self, nodes: int, branches: int = 1) -> Draft:
        tail = self._context.tokens
        found: list[Occurrence] = []
        self._context.find(tail, 0, found)
        pairs = [one for one in found if one[1] >= 2]
        if not pairs:
            return NOTHING
        _, _, position, _ = max(pairs, key=lambda one: (one[1], one[2]))
        return chain(tail[position : position + nodes].tolist(), self.name)


class PatternIndex:
    """All places of a pattern in earlier outputs: the suffix tree's node as a range of a sorted array."""

    def __init__(self, run: SortedRun) -> None:
        self.tokens = run.tokens
        self._order = run.order

    def levels(self, tail: Sequence[int]) -> list[tuple[int, list[int]]]:
        """For each length of pattern the places that follow it, shortest first."""
        low, high, found = 0, len(self._order), []
        for length in range(1, min(_LONGEST_PATTERN, len(tail)) + 1):
            token = tail[len(tail) - length]

            def before(place: int, length: int = length) -> int:
                return self.tokens[place - length] if place >= length else -1

            low = bisect_left(self._order, token, low, high, key=before)
            high = bisect_right(self._order, token, low, high, key=before)
            if low == high:
                break
            step = max(1, (high - low) // _PLACES)
            found.append((length, [self._order[at] for at in range(low, high, step)]))
        return found


class SuffixDecoding:
    """Oliaro et al., "SuffixDecoding: Extreme Speculative Decoding for Emerging AI Applications", arXiv 2411.04975.

    For each length p of the pattern at the end of the context, in the tree of this request and in that of earlier
    outputs, a speculation tree is grown greedily: the node with the highest estimated probability (its count over its
    parent's, times the parent's probability) is added next, up to `factor` times p nodes. The tree with the highest
    score, the sum of these probabilities, is taken. A chain takes the likeliest continuation only, as in the authors'
    implementation for engines without tree attention.

    Args:
        outputs: Earlier outputs.
        factor: The paper's alpha.
    """

    name = "SuffixDecoding"

    def __init__(self, outputs: PatternIndex | None, factor: float) -> None:
        self._outputs = outputs
        self._factor = factor
        self._context = ContextIndex(_LIMIT)

    def extend(self, tokens: Iterable[int]) -> None:
        self._context.extend(tokens)

    def propose(self, nodes: int, branches: int = 1) -> Draft:
        best, most = NOTHING, 0.0
        for tokens, length, places in self._patterns():
            draft = _grow(tokens, places, min(nodes, int(self._factor * length)), branches)
            if draft.expected > most:
                best, most = draft, draft.expected
        return best

    def _patterns(self) -> Iterable[tuple[Sequence[int], int, list[int]]]:
        tail = self._context.tokens
        found: list[Occurrence] = []
        self._context.find(tail, 0, found)
        for length in sorted({min(match, _LONGEST_PATTERN) for _, match, _, _ in found}):
            yield tail, length, [place for _, match, place, _ in found if match >= length]
        if self._outputs is not None:
            for length, places in self._outputs.levels(tail):
                yield self._outputs.tokens, length, places


def _grow(tokens: Sequence[int], places: list[int], nodes: int, branches: int) -> Draft:
    drafted: list[int] = []
    parents: list[int] = []
    reach: list[float] = []
    waiting: list[tuple[float, int, int, int, list[int]]] = []
    count = 0
    node, path = ROOT, 1.0
    while len(drafted) < nodes:
        following = Counter(tokens[place] for place in places if place < len(tokens))
        following.pop(SEPARATOR, None)
        for token, seen in following.most_common(branches):
            heapq.heappush(waiting, (-path * seen / len(places), count, token, node, places))
            count += 1
        if not waiting:
            break
        negated, _, token, parent, before = heapq.heappop(waiting)
        node, path = len(drafted), -negated
        drafted.append(token)
        parents.append(parent)
        reach.append(path)
        places = [place + 1 for place in before if place < len(tokens) and tokens[place] == token]
    return Draft(drafted, parents, reach, SuffixDecoding.name)
