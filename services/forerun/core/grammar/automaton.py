"""Finite automata over bytes: built with alternatives and skips, walked one byte at a time.

What is not reached costs nothing: the states of the deterministic automaton are made when a walk first comes to them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final

from forerun.core import limits
from forerun.core.errors import CoreError

DEAD: Final = -1
"""No text that begins like this is in the language."""

Part = Callable[[int], int]
"""Adds something after a state; gives the state behind it."""


class GrammarTooLarge(CoreError):
    """The automaton has more than GRAMMAR_STATES states."""


class Builder:
    """Makes an automaton, part by part."""

    def __init__(self) -> None:
        self.spans: list[list[tuple[int, int, int]]] = []
        self.skips: list[list[int]] = []

    def state(self) -> int:
        """A new state.

        Raises:
            GrammarTooLarge: See there.
        """
        if len(self.spans) >= limits.GRAMMAR_STATES:
            raise GrammarTooLarge("too_large", f"more states than GRAMMAR_STATES ({limits.GRAMMAR_STATES})")
        self.spans.append([])
        self.skips.append([])
        return len(self.spans) - 1

    def forget(self, count: int) -> None:
        """Keeps the first so many states; none of them may lead to a later one."""
        del self.spans[count:], self.skips[count:]

    def span(self, start: int, low: int, high: int, end: int | None = None) -> int:
        """One byte between two, both included; the state behind it."""
        target = self.state() if end is None else end
        self.spans[start].append((low, high, target))
        return target

    def skip(self, start: int, end: int) -> None:
        """Goes on at another state without a byte."""
        self.skips[start].append(end)

    def literal(self, start: int, text: bytes) -> int:
        """Exactly this text."""
        for byte in text:
            start = self.span(start, byte, byte)
        return start

    def either(self, start: int, parts: Sequence[Part]) -> int:
        """One of several parts."""
        end = self.state()
        for part in parts:
            first = self.state()
            self.skip(start, first)
            self.skip(part(first), end)
        return end

    def leading_to(self, last: int) -> frozenset[int]:
        """The states from which a state is reached."""
        before: list[list[int]] = [[] for _ in self.spans]
        for state, (spans, skips) in enumerate(zip(self.spans, self.skips, strict=True)):
            for target in (*skips, *(target for _, _, target in spans)):
                before[target].append(state)
        found, waiting = {last}, [last]
        while waiting:
            for state in before[waiting.pop()]:
                if state not in found:
                    found.add(state)
                    waiting.append(state)
        return frozenset(found)


class Grammar:
    """A set of texts, walked byte by byte. States are numbers; the first one is `start`.

    Args:
        builder: The automaton.
        first: Its first state.
        last: The state at which a text is complete.
    """

    def __init__(self, builder: Builder, first: int, last: int) -> None:
        self._builder = builder
        self._last = last
        self._sets: list[frozenset[int]] = []
        self._known: dict[frozenset[int], int] = {}
        self._rows: dict[int, list[int]] = {}
        # A part that was begun and given up leads nowhere; whoever walks must never be led into it.
        self._alive = builder.leading_to(last)
        self.start = self._number(self._closed([first]))

    def row(self, state: int) -> list[int]:
        """The state behind each of the 256 bytes; `DEAD` where it may not follow."""
        row = self._rows.get(state)
        if row is None:
            row = self._rows[state] = self._made(state)
        return row

    def walk(self, state: int, text: bytes) -> int:
        """The state behind a text, `DEAD` where it may not follow."""
        for byte in text:
            if state == DEAD:
                return DEAD
            state = self.row(state)[byte]
        return state

    def complete(self, state: int) -> bool:
        """A text may end here."""
        return state != DEAD and self._last in self._sets[state]

    def forced(self, state: int) -> bytes:
        """What has to follow, as far as there is no choice."""
        found = bytearray()
        while not self.complete(state) and len(found) < limits.ARGUMENTS_BYTES:
            ways = [(byte, target) for byte, target in enumerate(self.row(state)) if target != DEAD]
            if len(ways) != 1:
                break
            found.append(ways[0][0])
            state = ways[0][1]
        return bytes(found)

    def _made(self, state: int) -> list[int]:
        spans = [span for one in self._sets[state] for span in self._builder.spans[one]]
        row = [DEAD] * 256
        edges = sorted({0, 256} | {low for low, _, _ in spans} | {high + 1 for _, high, _ in spans})
        for begin, end in pairwise(edges):
            targets = [target for low, high, target in spans if low <= begin <= high]
            if behind := self._closed(targets):
                row[begin:end] = [self._number(behind)] * (end - begin)
        return row

    def _closed(self, states: Sequence[int]) -> frozenset[int]:
        waiting = [one for one in states if one in self._alive]
        found = set(waiting)
        while waiting:
            for target in self._builder.skips[waiting.pop()]:
                if target not in found and target in self._alive:
                    found.add(target)
                    waiting.append(target)
        return frozenset(found)

    def _number(self, states: frozenset[int]) -> int:
        number = self._known.get(states)
        if number is None:
            number = self._known[states] = len(self._sets)
            self._sets.append(states)
        return number
