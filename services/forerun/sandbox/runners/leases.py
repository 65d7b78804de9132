"""Which session has which runner, and who has to give one back. No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from forerun.sandbox.demand import Demand
from forerun.sandbox.owner import Owner


@dataclass(slots=True, eq=False)
class Lease:
    """One session's runner.

    Attributes:
        owner: The session.
        used_at: When a command last began or ended in it.
        running: The commands that run in it; a promotion changes their demand.
        given_up: It was taken from its session.
    """

    owner: Owner
    used_at: float
    running: list[Demand] = field(default_factory=list)
    given_up: bool = False

    @property
    def asked_for(self) -> bool:
        """An agent waits for something that runs in it."""
        return any(demand.asked_for for demand in self.running)

    def begin(self, now: float, demand: Demand) -> None:
        """A command begins."""
        self.running.append(demand)
        self.used_at = now

    def end(self, now: float, demand: Demand) -> None:
        """A command has ended."""
        self.running.remove(demand)
        self.used_at = now


def may_take_ahead(free: int, *, waiting: int, kept: int) -> bool:
    """Whether work ahead of time may take a runner.

    Args:
        free: Runners that nobody has.
        waiting: Sessions whose agents wait for one.
        kept: Runners that are kept for such sessions.
    """
    return free > waiting + kept


def to_give_up(leases: Iterable[Lease]) -> Lease | None:
    """The runner that its session misses least, where another session's agent waits.

    One that does nothing, else one in which nobody's agent waits. Workspaces are on the worker, so a session that comes
    back only takes another runner.
    """
    candidates = [lease for lease in leases if not lease.asked_for and not lease.given_up]
    return min(candidates, key=lambda lease: (bool(lease.running), lease.used_at), default=None)


def unused(leases: Iterable[Lease], *, before: float) -> list[Lease]:
    """Those in which nothing has run since then."""
    return [lease for lease in leases if not lease.running and lease.used_at < before]
