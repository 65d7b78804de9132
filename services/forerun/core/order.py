"""The order of the calls of one model message: as parallel as their contracts allow, with the result of call order.

Reads run together. A write waits for the earlier reads and writes it is in conflict with, and later calls that are in
conflict with it wait for it. A call of which nothing is known is a barrier: it runs alone. Identical calls that may
share an outcome run once, as long as nothing between them wrote to what they touch, or read what they write.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field

from forerun.core import limits
from forerun.core.resources import ROOT, ancestors

_NEVER = -1


@dataclass(frozen=True, slots=True)
class BatchCall:
    """What order needs to know of one call.

    Attributes:
        reads: Resource keys that it reads.
        writes: Resource keys that it writes.
        barrier: It runs alone, whatever its keys.
        same: Equal for calls that may share one outcome (the identity, for repeatable calls); None shares nothing.
    """

    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    barrier: bool = False
    same: Hashable | None = None


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a call stands among the earlier calls of its message.

    Attributes:
        predecessors: Calls that must have ended before it starts. Empty for a call that shares an outcome.
        same_as: The earlier call whose outcome it gets instead of running, or None.
    """

    predecessors: frozenset[int]
    same_as: int | None = None


@dataclass(slots=True)
class _Touched:
    """Calls that touched one key itself, or something below it. Calls that a later write already waits for are gone."""

    here: list[int] = field(default_factory=list)
    below: list[int] = field(default_factory=list)


class Plan:
    """Places the calls of one message in the order in which they arrive, also while the message still streams."""

    __slots__ = ("_barrier", "_count", "_latest_pure", "_latest_same", "_readers", "_since_barrier", "_writers")

    def __init__(self, calls: Iterable[BatchCall] = ()) -> None:
        self._readers: dict[str, _Touched] = {}
        self._writers: dict[str, _Touched] = {}
        self._latest_same: dict[Hashable, int] = {}
        self._latest_pure: dict[Hashable, int] = {}  # no write can change what they answer, not even a barrier
        self._since_barrier: list[int] = []
        self._barrier = _NEVER
        self._count = 0
        for call in calls:
            self.place(call)

    def __len__(self) -> int:
        return self._count

    def place(self, call: BatchCall) -> Placement:
        """Adds the next call."""
        index = self._count
        self._count += 1
        if call.barrier:
            waits = frozenset(self._since_barrier) or self._only_barrier()
            self._start_over(index)
            return Placement(waits)
        touched = self._conflicting(self._writers, (*call.reads, *call.writes))
        touched |= self._conflicting(self._readers, call.writes)
        if call.same is not None:
            latest = self._latest_same if call.reads or call.writes else self._latest_pure
            earlier = latest.get(call.same, _NEVER)
            # A conflict after the earlier execution re-opens the window; the execution itself is no such conflict. For
            # a write that is also a read of what it writes: taken back, its heir must not run before that read.
            if earlier != _NEVER and max(touched, default=_NEVER) <= earlier:
                return Placement(frozenset(), same_as=earlier)
            latest[call.same] = index
        waits = frozenset(touched) or self._only_barrier()
        self._since_barrier.append(index)
        self._note(index, call)
        return Placement(waits)

    def _only_barrier(self) -> frozenset[int]:
        return frozenset() if self._barrier == _NEVER else frozenset((self._barrier,))

    def _start_over(self, barrier: int) -> None:
        """Nothing before a barrier matters any more: whoever comes later waits for the barrier."""
        self._readers.clear()
        self._writers.clear()
        self._latest_same.clear()
        self._since_barrier.clear()
        self._barrier = barrier

    def _conflicting(self, touched: dict[str, _Touched], keys: Iterable[str]) -> set[int]:
        found: set[int] = set()
        for key in keys:
            at = touched.get(key)
            if at is not None:
                found.update(at.here)
                found.update(at.below)
            for above in ancestors(key):
                at = touched.get(above)
                if at is not None:
                    found.update(at.here)
        return found

    def _note(self, index: int, call: BatchCall) -> None:
        for key in call.writes:
            # This write waits for everything at and below its key, so later calls need to wait for this write only.
            self._readers.pop(key, None)
            self._writers[key] = _Touched(here=[index])
            for above in ancestors(key):
                self._writers.setdefault(above, _Touched()).below.append(index)
        for key in call.reads:
            self._readers.setdefault(key, _Touched()).here.append(index)
            for above in ancestors(key):
                self._readers.setdefault(above, _Touched()).below.append(index)
        if ROOT in call.writes:
            self._readers.clear()
            self._writers = {ROOT: _Touched(here=[index])}


class BatchOrder:
    """Runs the plan of one message: says which calls may start now, with a cap on how many run at the same time.

    It keeps no clock and starts nothing. Calls that share an outcome are never handed out: they end with the call that
    `same_as` names.
    """

    __slots__ = (
        "_followers",
        "_handed_out",
        "_limit",
        "_open",
        "_plan",
        "_runnable",
        "_running",
        "_same",
        "_waits",
        "_withdrawn",
    )

    def __init__(self, calls: Iterable[BatchCall] = (), *, limit: int = limits.CALLS_IN_FLIGHT_PER_MESSAGE) -> None:
        """Starts with the calls that are known; `add` takes the ones that arrive later.

        Args:
            calls: In call order.
            limit: Calls in flight at the same time, at least 1.
        """
        if limit < 1:
            raise ValueError("limit must be at least 1")
        self._limit = limit
        self._plan = Plan()
        self._same: list[int | None] = []
        self._waits: dict[int, int] = {}  # open predecessors of a call that waits
        self._followers: dict[int, list[int]] = {}
        self._runnable: list[int] = []  # a heap: call order decides among calls that could start
        self._running: set[int] = set()
        self._handed_out: set[int] = set()
        self._open: set[int] = set()
        self._withdrawn: set[int] = set()  # ended while they waited, and still stand between others
        for call in calls:
            self.add(call)

    def __len__(self) -> int:
        return len(self._same)

    @property
    def done(self) -> bool:
        """True when every call added so far has ended."""
        return len(self._open) == len(self._withdrawn)

    @property
    def in_flight(self) -> int:
        """Calls handed out by `ready` that have not ended."""
        return len(self._running)

    def add(self, call: BatchCall) -> int:
        """Adds the next call of the message and returns its index."""
        index = len(self._same)
        placement = self._plan.place(call)
        self._same.append(placement.same_as)
        if placement.same_as is not None:
            return index
        self._open.add(index)
        open_before = [earlier for earlier in placement.predecessors if earlier in self._open]
        for earlier in open_before:
            self._followers.setdefault(earlier, []).append(index)
        if open_before:
            self._waits[index] = len(open_before)
        else:
            heapq.heappush(self._runnable, index)
        return index

    def same_as(self, index: int) -> int | None:
        """The call whose outcome this call shares, or None when it runs itself."""
        return self._same[index]

    def ready(self, *, only: Callable[[int], bool] | None = None) -> list[int]:
        """Hands out the calls that may start now, in call order; each index once. They count as in flight.

        Args:
            only: While a message still streams, a test for the calls that may start before it is complete.
        """
        started: list[int] = []
        kept: list[int] = []
        while self._runnable and len(self._running) < self._limit:
            index = heapq.heappop(self._runnable)
            if only is not None and not only(index):
                kept.append(index)
                continue
            self._running.add(index)
            self._handed_out.add(index)
            started.append(index)
        for index in kept:
            heapq.heappush(self._runnable, index)
        return started

    def finished(self, index: int) -> None:
        """Notes that a call has ended, however it ended. Calls that were never handed out may end too (cancelled).

        A call that ends while it waits keeps its place: whoever waits for it waits for what it had waited for.
        """
        if index not in self._open or index in self._withdrawn:
            return
        if index in self._waits:
            self._withdrawn.add(index)
            return
        self._running.discard(index)
        if index not in self._handed_out:
            self._runnable.remove(index)
            heapq.heapify(self._runnable)
        ended = [index]
        while ended:
            gone = ended.pop()
            self._open.discard(gone)
            self._withdrawn.discard(gone)
            for follower in self._followers.pop(gone, ()):
                self._waits[follower] -= 1
                if self._waits[follower] == 0:
                    del self._waits[follower]
                    if follower in self._withdrawn:
                        ended.append(follower)
                    else:
                        heapq.heappush(self._runnable, follower)
