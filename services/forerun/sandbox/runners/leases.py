"""Which session has which runner, and who has to give one back. No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from forerun.sandbox.owner import Owner


@dataclass(slots=True, eq=False)
class Lease:
    """One session's runner.

    Attributes:
        owner: The session.
        used_at: When a command last began or ended in it.
        running: Commands that run in it.
        asked_for: Those of them that an agent waits for.
        given_up: It was taken from its session.
    """

    owner: Owner
    used_at: float
    running: int = 0
    asked_for: int = 0
    given_up: bool = False

    def begin(self, now: float, *, speculative: bool) -> None:
        """A command begins."""
        self.running += 1
        self.asked_for += not speculative
        self.used_at = now

    def end(self, now: float, *, speculative: bool) -> None:
        """A command has ended."""
        self.running -= 1
        self.asked_for -= not speculative
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
    return min(candidates, key=lambda lease: (lease.running > 0, lease.used_at), default=None)


def unused(leases: Iterable[Lease], *, before: float) -> list[Lease]:
    """Those in which nothing has run since then."""
    return [lease for lease in leases if not lease.running and lease.used_at < before]
