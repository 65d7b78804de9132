"""Where the last tokens have stood before: an index of one sequence that grows."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Final

SEPARATOR: Final = 0x7FFFFFF0
"""Stands between texts that do not follow each other. No vocabulary has so many tokens."""

LONGEST_MATCH: Final = 24
"""Tokens of equal context that are counted. A longer match says nothing more."""

_PAIR_SCAN: Final = 32
_SINGLE_SCAN: Final = 12
_BLOCK: Final = 14
_STRONG_MATCH: Final = 4
_SHIFT: Final = 31

# Class of the evidence, tokens of equal context, position of what followed, and the tokens in which it did.
Occurrence = tuple[int, int, int, Sequence[int]]


class ContextIndex:
    """Tokens with links from each to the earlier places with the same token, and the same pair, before it.

    Links are arrays, so that a token costs 12 bytes beside the two tables, which hold an entry for each different token
    and pair. Lookups follow the links from the latest place backwards, over a bounded number of places.

    Args:
        limit: Tokens that are kept. Beyond it the older half is dropped, which is work in proportion to what stays.
    """

    __slots__ = ("_last_pair", "_last_single", "_limit", "_previous_pair", "_previous_single", "dropped", "tokens")

    def __init__(self, limit: int) -> None:
        self._limit = max(2, limit)
        self.tokens = array("i")
        self.dropped = 0
        self._last_single: dict[int, int] = {}
        self._last_pair: dict[int, int] = {}
        self._previous_single = array("i")
        self._previous_pair = array("i")

    def __len__(self) -> int:
        return len(self.tokens)

    def extend(self, tokens: Iterable[int]) -> None:
        """Appends tokens. Positions found before are invalid afterwards if `dropped` has changed."""
        known = self.tokens
        first = len(known)
        known.extend(tokens)
        if len(known) > self._limit:
            kept = known[-(self._limit // 2) :]
            self.dropped += len(known) - len(kept)
            self.tokens = known = kept
            self._last_single.clear()
            self._last_pair.clear()
            self._previous_single = array("i")
            self._previous_pair = array("i")
            first = 0
        self._link(first)

    def _link(self, first: int) -> None:
        tokens, last_single, last_pair = self.tokens, self._last_single, self._last_pair
        single, pair = self._previous_single, self._previous_pair
        for position in range(first, len(tokens)):
            before = tokens[position - 1] if position else SEPARATOR
            single.append(last_single.get(before, -1))
            last_single[before] = position
            if position < 2:
                pair.append(-1)
                continue
            key = tokens[position - 2] << _SHIFT | before
            pair.append(last_pair.get(key, -1))
            last_pair[key] = position

    def find(self, tail: Sequence[int], kind: int, found: list[Occurrence]) -> None:
        """Adds to `found` where the end of `tail` stands, latest first: by the last two tokens, then by the last one.

        `tail` may be the index's own tokens: what followed their end is not known, so the end is never found.
        """
        size = len(tail)
        if size < 2:
            return
        tokens, last, before = self.tokens, tail[size - 1], tail[size - 2]
        longest = 0
        # Long matches are compared in blocks first: most of the time goes into them where a text repeats itself.
        block = tail[size - 2 - _BLOCK : size - 2] if size >= 2 + _BLOCK else None
        position, links = self._last_pair.get(before << _SHIFT | last, -1), self._previous_pair
        for _ in range(_PAIR_SCAN):
            if position < 0:
                break
            match, most = 2, min(LONGEST_MATCH, position, size)
            if block is not None and tokens[max(0, position - 2 - _BLOCK) : position - 2] == block:
                match += _BLOCK
            while match < most and tokens[position - match - 1] == tail[size - match - 1]:
                match += 1
            found.append((kind, match, position, tokens))
            if match > longest:  # noqa: PLR1730 - calling `max` would cost more than the rest of the loop
                longest = match
            position = links[position]
        if longest >= _STRONG_MATCH:
            return  # places with one equal token would be outvoted
        position, links = self._last_single.get(last, -1), self._previous_single
        for _ in range(_SINGLE_SCAN):
            if position < 0:
                break
            if position < 2 or tokens[position - 2] != before:
                found.append((kind, 1, position, tokens))
            position = links[position]
