"""Whether something that was read may have been written since.

Every resource has generations, kept under two marks. A write of a key counts up `self` of that key and `below` of each
of its ancestors. A read of a key depends on `self` and `below` of that key and on `self` of each ancestor. So a read
of `orders` hears a write of `orders/7`, a read of `orders/7` hears a write of `orders`, and neither hears `users/1`,
with a number of marks that grows with the depth of a key only.

A write is counted before it starts and again when it ends, also when it failed or was cancelled.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from forerun.core import limits
from forerun.core.resources import ancestors

UNSETTLED = 1 << 62
"""Generations from here on stand for a resource that may still be written: each is given once and equals no other."""

_SELF = "self:"
_BELOW = "below:"


class GenerationView(Protocol):
    """Something that knows generations: a mapping of marks, or `Generations`."""

    def get(self, mark: str, default: int, /) -> int:
        """The generation of a mark, or the default where it was never written."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """The generations that a read depended on when it started.

    Attributes:
        marks: Mark -> generation. Empty for something that read nothing.
    """

    marks: Mapping[str, int]


class Freshness(StrEnum):
    """How a check ended."""

    FRESH = "fresh"
    WRITTEN = "written"
    TOO_OLD = "too_old"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a result may be used, and if not, what speaks against it.

    Attributes:
        state: The answer.
        mark: The first mark that changed, or empty.
    """

    state: Freshness
    mark: str = ""

    @property
    def fresh(self) -> bool:
        """True when the result may be used."""
        return self.state is Freshness.FRESH


class Generations:
    """Generations held in memory, for the resources of one session.

    Each write takes the next number, so a mark never returns to a value it had. Over `max_marks` all marks are folded
    into one floor: everything recorded before counts as written, and memory is free again.
    """

    __slots__ = ("_floor", "_last", "_marks", "_max_marks")

    def __init__(self, *, max_marks: int = limits.GENERATION_MARKS) -> None:
        self._marks: dict[str, int] = {}
        self._last = 0
        self._floor = 0
        self._max_marks = max_marks

    def get(self, mark: str, default: int = 0, /) -> int:
        """The generation of a mark; the floor, or the default if that is higher, where it was not written since."""
        return self._marks.get(mark, max(self._floor, default))

    def bump(self, writes: Iterable[str]) -> tuple[str, ...]:
        """Counts a write of these keys; returns the marks that changed."""
        changed = bumps(writes)
        if not changed:
            return ()
        self._last += 1
        for mark in changed:
            self._marks[mark] = self._last
        if len(self._marks) > self._max_marks:
            self._last += 1
            self._floor = self._last
            self._marks.clear()
        return changed

    def __len__(self) -> int:
        return len(self._marks)


def dependencies(reads: Iterable[str]) -> tuple[str, ...]:
    """The marks that a read of these keys depends on."""
    marks: dict[str, None] = {}
    for key in reads:
        marks[_SELF + key] = None
        marks[_BELOW + key] = None
        for above in ancestors(key):
            marks[_SELF + above] = None
    return tuple(marks)


def bumps(writes: Iterable[str]) -> tuple[str, ...]:
    """The marks that a write of these keys counts up."""
    marks: dict[str, None] = {}
    for key in writes:
        marks[_SELF + key] = None
        for above in ancestors(key):
            marks[_BELOW + above] = None
    return tuple(marks)


def recorded(generations: GenerationView, reads: Iterable[str]) -> Recorded:
    """Notes the generations of everything a read depends on. To be called before the read starts."""
    return Recorded({mark: generations.get(mark, 0) for mark in dependencies(reads)})


def fresh(
    was: Recorded,
    generations: GenerationView,
    age_seconds: float,
    max_staleness_seconds: float | None,
) -> Verdict:
    """Judges a result that was read earlier.

    Args:
        was: What `recorded` noted before the execution started.
        generations: The generations now.
        age_seconds: Time since the start of the execution.
        max_staleness_seconds: The tool's limit; None is no limit. The age must be below it, so 0 is never fresh.
    """
    for mark, generation in was.marks.items():
        if generations.get(mark, 0) != generation:
            return Verdict(Freshness.WRITTEN, mark)
    # Written the other way round, an age that is no number would pass.
    if max_staleness_seconds is not None and not age_seconds < max_staleness_seconds:
        return Verdict(Freshness.TOO_OLD)
    return Verdict(Freshness.FRESH)
