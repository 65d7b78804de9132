"""Who may run: authoritative and speculative seats, counted apart.

Authoritative work may take every seat of the worker and sends a speculation away where none is free; it waits only when
every seat is in authoritative use. Speculation gets a free speculative seat at once or none at all.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum

from forerun.runtime.errors import ErrorReason, ResourceExhausted


class Priority(IntEnum):
    """Classes of work; lower ones are sent away first."""

    AUDIT = 0
    SPECULATIVE = 1
    AUTHORITATIVE = 2


@dataclass(slots=True, eq=False)
class Seat:
    """The right to run one execution.

    Attributes:
        tool: The tool that runs in it.
        priority: Its class; promotion changes it.
        leave: Called when the seat was given to authoritative work.
        leaving: It was; the execution is on its way out.
    """

    tool: str
    priority: Priority
    number: int
    leave: Callable[[], None]
    leaving: bool = False


@dataclass(slots=True, eq=False)
class _Waiter:
    tool: str
    tool_limit: int | None
    leave: Callable[[], None]
    since: float = field(default_factory=lambda: asyncio.get_running_loop().time())
    seated: asyncio.Future[Seat] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Slots:
    """The seats of one worker.

    Args:
        authoritative: Seats that speculation never takes.
        speculative: Seats that speculation may take; authoritative work may take them too.
        queue: Authoritative executions that may wait.
        changed: Called after every change of what `free` and `waiting` say.
    """

    def __init__(self, *, authoritative: int, speculative: int, queue: int, changed: Callable[[], None]) -> None:
        self._all = authoritative + speculative
        self._speculative = speculative
        self._queue = queue
        self._changed = changed
        self._taken: list[Seat] = []
        self._waiters: deque[_Waiter] = deque()
        self._numbers = 0
        self._allowed = speculative
        self.refused = 0
        """Executions ahead of time that found no free seat, since the start."""

    def allow(self, speculative: int) -> None:
        """Sets how many speculative seats may be in use: what a pool's capacity allows, never more than configured.

        Those in use beyond it end by themselves; authoritative work sends them away before it waits, as always.
        """
        self._allowed = max(0, min(speculative, self._speculative))
        self._changed()

    @property
    def allowed(self) -> int:
        """Speculative seats that may be in use now."""
        return self._allowed

    @property
    def oldest_wait_seconds(self) -> float:
        """How long the first of those that wait has waited; 0 where none does."""
        return asyncio.get_running_loop().time() - self._waiters[0].since if self._waiters else 0.0

    @property
    def authoritative_free(self) -> int:
        """Authoritative executions that could start now."""
        return self._all - self._authoritative_taken()

    @property
    def speculative_free(self) -> int:
        """Speculative executions that could start now."""
        ahead = len(self._taken) - self._authoritative_taken()
        return max(0, min(self._allowed - ahead, self._all - len(self._taken)))

    @property
    def waiting(self) -> int:
        """Authoritative executions that wait."""
        return len(self._waiters)

    def taken(self, *, speculative: bool) -> int:
        """Seats in use, those on their way out included."""
        mine = self._authoritative_taken()
        return len(self._taken) - mine if speculative else mine

    def ahead(self, tool: str, tool_limit: int | None, priority: Priority, leave: Callable[[], None]) -> Seat:
        """A seat for a speculation or an audit.

        Raises:
            ResourceExhausted: None is free now.
        """
        if self.speculative_free < 1 or not self._tool_has_room(tool, tool_limit):
            self.refused += 1
            raise ResourceExhausted(
                ErrorReason.NO_FREE_SLOT, "no free slot for work ahead of time; it never waits for one"
            )
        return self._seat(tool, priority, leave)

    async def authoritative(self, tool: str, tool_limit: int | None, leave: Callable[[], None]) -> Seat:
        """A seat for authoritative work, as soon as there is one.

        Raises:
            ResourceExhausted: Too many wait already.
        """
        waiter = _Waiter(tool, tool_limit, leave)
        self._waiters.append(waiter)
        self._dispatch()
        if waiter.seated.done():
            return waiter.seated.result()
        if len(self._waiters) > self._queue:
            self._waiters.remove(waiter)
            raise ResourceExhausted(
                ErrorReason.QUEUE_FULL,
                f"{self._queue} authoritative calls wait on this worker already (CALL_QUEUE); see authoritative_queue",
                metadata={"limit": "CALL_QUEUE", "setting": "FORERUN_SANDBOX_AUTHORITATIVE_QUEUE"},
            )
        self._changed()
        try:
            return await waiter.seated
        except asyncio.CancelledError:
            if waiter.seated.done() and not waiter.seated.cancelled():
                self.release(waiter.seated.result())
            else:
                self._waiters.remove(waiter)
                self._changed()
            raise

    def promote(self, seat: Seat) -> bool:
        """Makes a seat authoritative. False where it was given away already."""
        if seat.leaving or seat not in self._taken:
            return False
        seat.priority = Priority.AUTHORITATIVE
        self._changed()
        return True

    def release(self, seat: Seat) -> None:
        """Gives a seat back."""
        self._taken.remove(seat)
        self._dispatch()
        self._changed()

    def _authoritative_taken(self) -> int:
        return sum(seat.priority is Priority.AUTHORITATIVE for seat in self._taken)

    def _seat(self, tool: str, priority: Priority, leave: Callable[[], None]) -> Seat:
        self._numbers += 1
        seat = Seat(tool, priority, self._numbers, leave)
        self._taken.append(seat)
        self._changed()
        return seat

    def _dispatch(self) -> None:
        """Seats every waiter that can be, in order; one that waits for its tool holds up nobody else."""
        full: set[str] = set()
        for waiter in list(self._waiters):
            if waiter.tool in full or waiter.seated.done():
                continue  # a cancelled one is taken out of the queue by its own task
            if self._authoritative_taken() >= self._all:
                return
            staying = [seat for seat in self._taken if not seat.leaving]
            if not self._tool_has_room(waiter.tool, waiter.tool_limit):
                mine = [seat for seat in staying if seat.tool == waiter.tool]
                if not self._send_away(mine):
                    full.add(waiter.tool)
                    continue
            elif len(staying) >= self._all:
                self._send_away(staying)
            self._waiters.remove(waiter)
            waiter.seated.set_result(self._seat(waiter.tool, Priority.AUTHORITATIVE, waiter.leave))

    def _tool_has_room(self, tool: str, tool_limit: int | None) -> bool:
        return tool_limit is None or sum(s.tool == tool and not s.leaving for s in self._taken) < tool_limit

    def _send_away(self, seats: list[Seat]) -> bool:
        """Sends away the least of some seats: audits before speculations, the youngest first. False if none is."""
        ahead = [seat for seat in seats if seat.priority is not Priority.AUTHORITATIVE]
        if not ahead:
            return False
        victim = min(ahead, key=lambda seat: (seat.priority, -seat.number))
        victim.leaving = True
        victim.leave()
        return True
