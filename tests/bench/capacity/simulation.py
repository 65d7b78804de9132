"""A pool under load in virtual time: slots, a queue, speculation that takes all it is given, and the capacity function.

Everything is pessimistic for speculation's neighbours: there is always something to run ahead, a preempted execution
keeps its slot for a while, reports are a second old when they are acted on, and a new replica takes time to start.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from forerun.core.capacity import History, Rules, Signal, decide, first_history
from tests.bench.capacity.arrivals import Arrival

REPORT_SECONDS: Final = 1.0
APPLIED_AFTER_SECONDS: Final = 1.0
PREEMPTION_SECONDS: Final = 0.25
START_SECONDS: Final = 20.0
SPECULATION_SECONDS: Final = 2.0


@dataclass(slots=True)
class Run:
    """What a run showed.

    Attributes:
        waits: How long each authoritative execution waited for a slot.
        grants: (time, slots that speculation may use) after each change.
        replicas: (time, replicas asked for) after each change.
        demands: (time, authoritative work in slots, slots there were) at each report.
        speculative_seconds: Slot-seconds that speculation got.
        replica_seconds: Replica-seconds that were there.
    """

    waits: list[float] = field(default_factory=list)
    grants: list[tuple[float, int]] = field(default_factory=list)
    replicas: list[tuple[float, int]] = field(default_factory=list)
    demands: list[tuple[float, int, int]] = field(default_factory=list)
    speculative_seconds: float = 0.0
    replica_seconds: float = 0.0


class Pool:
    """The pool.

    Args:
        rules: Of its capacity.
        replicas: At the start.
        gain: What a second of speculation is said to save.
    """

    def __init__(self, rules: Rules, replicas: int, gain: float | None = 1.0) -> None:
        self._rules = rules
        self._gain = gain
        self._ready = replicas
        self._wanted = replicas
        self._grant = 0
        self._history: History = first_history(replicas, rules, 0.0)
        self._waiting: deque[tuple[float, float]] = deque()
        self._authoritative = 0
        self._ahead: dict[int, float] = {}
        self._leaving = 0
        self._numbers = itertools.count()
        self._events: list[tuple[float, int, str, int]] = []
        self.run = Run()

    def play(self, arrivals: list[Arrival], seconds: float) -> Run:
        """Runs the arrivals for so long."""
        stream: Iterator[Arrival] = iter(arrivals)
        upcoming = next(stream, None)
        self._at(0.0, "report")
        now = 0.0
        while now < seconds:
            due = self._events[0][0]
            if upcoming is not None and upcoming.at <= due:
                now = upcoming.at
                self._waiting.append((now, upcoming.seconds))
                upcoming = next(stream, None)
            else:
                now, _, what, value = heapq.heappop(self._events)
                self._happen(now, what, value)
            self._place(now)
        return self.run

    def _at(self, when: float, what: str, value: int = 0) -> None:
        heapq.heappush(self._events, (when, next(self._numbers), what, value))

    def _happen(self, now: float, what: str, value: int) -> None:
        if what == "report":
            self._report(now)
        elif what == "apply":
            self._grant = value
        elif what == "ready":
            self._ready = min(self._ready + value, max(self._wanted, self._ready))
        elif what == "done":
            self._authoritative -= 1
        elif what == "ahead_done":
            begun = self._ahead.pop(value, None)
            self.run.speculative_seconds += 0.0 if begun is None else now - begun
        elif what == "left":
            self._leaving -= 1

    @property
    def _slots(self) -> int:
        return self._ready * self._rules.slots_per_replica

    def _place(self, now: float) -> None:
        """Seats whoever may sit: authoritative work first, which sends speculation away where nothing is free."""
        while self._waiting and self._authoritative + self._leaving + len(self._ahead) < self._slots:
            asked, seconds = self._waiting.popleft()
            self.run.waits.append(now - asked)
            self._authoritative += 1
            self._at(now + seconds, "done")
        lacking = len(self._waiting) - self._leaving
        while lacking > 0 and self._ahead:
            _, begun = self._ahead.popitem()
            self.run.speculative_seconds += now - begun
            self._leaving += 1
            self._at(now + PREEMPTION_SECONDS, "left")
            lacking -= 1
        while (
            not self._waiting
            and len(self._ahead) < self._grant
            and self._authoritative + self._leaving + len(self._ahead) < self._slots
        ):
            number = next(self._numbers)
            self._ahead[number] = now
            self._at(now + SPECULATION_SECONDS, "ahead_done", number)

    def _report(self, now: float) -> None:
        self._at(now + REPORT_SECONDS, "report")
        self.run.replica_seconds += self._ready * REPORT_SECONDS
        self.run.demands.append((now, self._authoritative + len(self._waiting), self._slots))
        signal = Signal(
            at=now,
            age_seconds=REPORT_SECONDS,
            running=self._authoritative,
            waiting=len(self._waiting),
            speculative_wanted=self._rules.speculative_slots_max,
            gain=self._gain,
            ready_replicas=self._ready,
        )
        self._history, decision = decide(self._history, signal, self._rules)
        if not self.run.grants or self.run.grants[-1][1] != decision.speculative_slots:
            self.run.grants.append((now, decision.speculative_slots))
            self._at(now + APPLIED_AFTER_SECONDS, "apply", decision.speculative_slots)
        if decision.replicas != self._wanted or not self.run.replicas:
            self.run.replicas.append((now, decision.replicas))
            self._resize(now, decision.replicas)

    def _resize(self, now: float, wanted: int) -> None:
        if wanted > self._wanted:
            self._at(now + START_SECONDS, "ready", wanted - self._wanted)
        else:
            # A replica ends when its work has ended: none is taken away from under an execution.
            self._ready = max(wanted, -(-self._authoritative // self._rules.slots_per_replica))
        self._wanted = wanted
