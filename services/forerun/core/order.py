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
_FIRST_JOIN = -2


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
class Join:
    """Stands for many calls: it has ended when all of them have.

    Hundreds of writes below one folder that hundreds of calls have read would need an edge for each pair. With a join
    in the middle the edges stay linear in the number of calls.

    Attributes:
        name: A negative number, its own.
        members: Calls and earlier joins.
    """

    name: int
    members: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a call stands among the earlier calls of its message.

    Attributes:
        predecessors: Calls (and joins, which are negative) that must have ended before it starts. Empty for a call that
            shares an outcome.
        same_as: The earlier call whose outcome it gets instead of running, or None.
        joins: Joins that were made for it. Later placements may name them, too.
    """

    predecessors: frozenset[int]
    same_as: int | None = None
    joins: tuple[Join, ...] = ()


@dataclass(slots=True)
class _Touched:
    """Calls that touched one key itself, or something below it. Calls that a later write already waits for are gone."""

    here: list[int] = field(default_factory=list)
    below: list[int] = field(default_factory=list)


class Plan:
    """Places the calls of one message in the order in which they arrive, also while the message still streams."""

    __slots__ = (
        "_barrier",
        "_count",
        "_fan_in",
        "_joined",
        "_joins",
        "_latest_pure",
        "_latest_same",
        "_readers",
        "_since_barrier",
        "_writers",
    )

    def __init__(self, calls: Iterable[BatchCall] = (), *, fan_in: int = limits.ORDER_FAN_IN) -> None:
        """Starts with the calls that are known.

        Args:
            calls: In call order.
            fan_in: Calls that touched the same thing and are waited for one by one; more are waited for as one join.
        """
        self._fan_in = fan_in
        self._joins: list[Join] = []  # made for the call that is being placed
        self._joined: list[int] = []  # the latest call behind each join
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
        self._joins = []
        touched = self._conflicting(self._writers, (*call.reads, *call.writes))
        touched |= self._conflicting(self._readers, call.writes)
        joins = tuple(self._joins)
        if call.same is not None:
            latest = self._latest_same if call.reads or call.writes else self._latest_pure
            earlier = latest.get(call.same, _NEVER)
            # A conflict after the earlier execution re-opens the window; the execution itself is no such conflict. For
            # a write that is also a read of what it writes: taken back, its heir must not run before that read.
            if earlier != _NEVER and max(map(self._latest, touched), default=_NEVER) <= earlier:
                return Placement(frozenset(), same_as=earlier, joins=joins)
            latest[call.same] = index
        waits = frozenset(touched) or self._only_barrier()
        self._since_barrier.append(index)
        self._note(index, call)
        return Placement(waits, joins=joins)

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
                found.update(self._few(at.here))
                found.update(self._few(at.below))
            for above in ancestors(key):
                at = touched.get(above)
                if at is not None:
                    found.update(self._few(at.here))
        return found

    def _few(self, calls: list[int]) -> list[int]:
        """Replaces many calls by one join, in place: whoever comes later waits for that, too."""
        if len(calls) > self._fan_in:
            join = Join(_FIRST_JOIN - len(self._joined), tuple(calls))
            self._joined.append(max(map(self._latest, calls)))
            self._joins.append(join)
            calls[:] = [join.name]
        return calls

    def _latest(self, index: int) -> int:
        """The latest call behind a call or a join."""
        return index if index > _FIRST_JOIN else self._joined[_FIRST_JOIN - index]

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
        "_limit",
        "_open",
        "_plan",
        "_runnable",
        "_running",
        "_same",
        "_waits",
        "_withdrawn",
    )

    def __init__(
        self,
        calls: Iterable[BatchCall] = (),
        *,
        limit: int = limits.CALLS_IN_FLIGHT_PER_MESSAGE,
        fan_in: int = limits.ORDER_FAN_IN,
    ) -> None:
        """Starts with the calls that are known; `add` takes the ones that arrive later.

        Args:
            calls: In call order.
            limit: Calls in flight at the same time, at least 1.
            fan_in: See `Plan`.
        """
        if limit < 1:
            raise ValueError("limit must be at least 1")
        self._limit = limit
        self._plan = Plan(fan_in=fan_in)
        self._same: list[int | None] = []
        self._waits: dict[int, int] = {}  # open predecessors of a call that waits
        self._followers: dict[int, list[int]] = {}
        self._runnable: list[int] = []  # a heap: call order decides among calls that could start
        self._running: set[int] = set()
        self._open: set[int] = set()
        self._withdrawn: set[int] = set()  # ended while they waited, or joins, and still stand between others
        for call in calls:
            self.add(call)

    def __len__(self) -> int:
        return len(self._same)

    @property
    def done(self) -> bool:
        """True when every call added so far has ended."""
        return len(self._open) == len(self._withdrawn)

    def add(self, call: BatchCall, *, after: Iterable[int] = ()) -> int:
        """Adds the next call of the message and returns its index.

        Args:
            call: What it touches.
            after: Earlier calls that must have ended, whatever they touch: it needs what they gave.
        """
        index = len(self._same)
        placement = self._plan.place(call)
        for join in placement.joins:
            if self._wait(join.name, join.members):
                self._open.add(join.name)
                self._withdrawn.add(join.name)
        self._same.append(placement.same_as)
        if placement.same_as is not None:
            return index
        if not self._wait(index, placement.predecessors.union(after)):
            heapq.heappush(self._runnable, index)
        self._open.add(index)
        return index

    def _wait(self, index: int, predecessors: Iterable[int]) -> bool:
        """Lets a call or a join wait for those of its predecessors that have not ended. False where all have."""
        waits = 0
        for earlier in predecessors:
            if earlier in self._open:
                self._followers.setdefault(earlier, []).append(index)
                waits += 1
        if waits:
            self._waits[index] = waits
        return waits > 0

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
            if index not in self._open:
                continue  # it ended before it was handed out
            if only is not None and not only(index):
                kept.append(index)
                continue
            self._running.add(index)
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
