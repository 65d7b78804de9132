"""What one replica runs at the same time, and what waits for it: bounded, and fair between tenants."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from typing import Final

from forerun.core import limits
from forerun.runtime.errors import ErrorReason, ResourceExhausted

_RETRY_SECONDS: Final = 1.0


class Places:
    """Places for executions.

    Authoritative calls of a tenant wait for each other only, first come, first served: no tenant takes another's place.
    Speculations never wait.

    Args:
        calls_per_tenant: Authoritative calls of one tenant that run at the same time.
        waiting_calls: Authoritative calls of all tenants that wait.
        setting: Name of the setting for `waiting_calls`, for errors.
    """

    def __init__(
        self,
        *,
        calls_per_tenant: int = limits.CALLS_IN_FLIGHT_PER_TENANT,
        waiting_calls: int = limits.CALL_QUEUE,
        setting: str = "",
    ) -> None:
        self._calls_per_tenant = calls_per_tenant
        self._waiting_calls = waiting_calls
        self._setting = setting
        self._running: Counter[str] = Counter()
        self._queues: dict[str, deque[asyncio.Future[None]]] = {}
        self._unanswered = 0
        self._ahead: set[str] = set()
        self._ahead_running: set[str] = set()

    # ------------------------------------------------------------ authoritative calls

    @property
    def waiting(self) -> int:
        """Authoritative calls that were asked for and do not run: for the order of their message, or for a place."""
        return max(0, self._unanswered - self._running.total())

    @property
    def in_flight(self) -> int:
        """Authoritative calls that run or wait for a place; not those that wait for the order of their message."""
        return self._running.total() + sum(len(queue) for queue in self._queues.values())

    def unanswered(self, change: int) -> None:
        """So many calls more, or fewer, wait for their answer."""
        self._unanswered += change

    def admit(self, calls: int) -> None:
        """Lets further calls wait.

        Raises:
            ResourceExhausted: too many wait; none of the calls may be taken.
        """
        if self.waiting + calls > self._waiting_calls:
            raise ResourceExhausted(
                ErrorReason.QUEUE_FULL,
                f"{self.waiting} calls wait on this replica, and at most {self._waiting_calls} may (CALL_QUEUE, "
                f"setting {self._setting}); nothing of this message was run, ask again",
                metadata={"limit": "CALL_QUEUE", "setting": self._setting, "waiting": str(self.waiting)},
                retry_after_seconds=_RETRY_SECONDS,
            )

    async def take(self, tenant: str) -> None:
        """Waits for a place of a tenant. What was taken has to be given back with `leave`."""
        if self._running[tenant] < self._calls_per_tenant:
            self._running[tenant] += 1
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue = self._queues.setdefault(tenant, deque())
        queue.append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.cancelled():
                queue.remove(place)
                self._tidy(tenant)
            else:
                self.leave(tenant)  # it had been given a place in the same moment
            raise

    def leave(self, tenant: str) -> None:
        """Gives a place back: to the call of the tenant that has waited for longest, if one does."""
        queue = self._queues.get(tenant, ())
        for place in queue:
            if not place.done():
                place.set_result(None)
                self._queues[tenant].remove(place)
                self._tidy(tenant)
                return
        self._running[tenant] -= 1
        if not self._running[tenant]:
            del self._running[tenant]

    def _tidy(self, tenant: str) -> None:
        if not self._queues.get(tenant):
            self._queues.pop(tenant, None)

    # ------------------------------------------------------------ speculations

    def reserve(self, execution: str, at_once: int) -> bool:
        """A place for a speculation; False where the policy or the replica allows no more.

        Args:
            execution: Its id.
            at_once: How many may run at the same time, by its policy.
        """
        if len(self._ahead_running) >= at_once or len(self._ahead) >= limits.SPECULATIONS_PER_REPLICA:
            return False
        self._ahead.add(execution)
        self._ahead_running.add(execution)
        return True

    def stopped(self, execution: str) -> None:
        """A speculation does not run any more; its result may still wait to be asked for."""
        self._ahead_running.discard(execution)

    def closed(self, execution: str) -> None:
        """A speculation has its outcome, or never was one."""
        self._ahead.discard(execution)


class SessionPlaces:
    """Room for open sessions.

    Args:
        sessions: Of all tenants.
        sessions_per_tenant: Of one tenant, so that no tenant takes them all.
        setting: Name of the setting for `sessions`, for errors.
        tenant_setting: Name of the setting for `sessions_per_tenant`.
    """

    def __init__(self, *, sessions: int, sessions_per_tenant: int, setting: str, tenant_setting: str) -> None:
        self._sessions = sessions
        self._per_tenant = sessions_per_tenant
        self._setting = setting
        self._tenant_setting = tenant_setting
        self._open: Counter[str] = Counter()

    @property
    def open(self) -> int:
        """Open sessions, those that are being opened included."""
        return self._open.total()

    def of(self, tenant: str) -> int:
        """Open sessions of a tenant."""
        return self._open[tenant]

    def take(self, tenant: str) -> None:
        """Takes a place, before anything is done for the session. It has to be given back with `leave`.

        Raises:
            ResourceExhausted: too many sessions are open, of the tenant or of all.
        """
        if self._open[tenant] >= self._per_tenant:
            raise _too_many("SESSIONS_PER_TENANT", "of this tenant", self._per_tenant, self._tenant_setting)
        if self.open >= self._sessions:
            raise _too_many("SESSIONS_PER_REPLICA", "of all tenants", self._sessions, self._setting)
        self._open[tenant] += 1

    def leave(self, tenant: str) -> None:
        """A session has ended, or was not opened after all."""
        self._open[tenant] -= 1
        if not self._open[tenant]:
            del self._open[tenant]


def _too_many(limit: str, whose: str, bound: int, setting: str) -> ResourceExhausted:
    return ResourceExhausted(
        ErrorReason.QUEUE_FULL,
        f"this replica has {bound} open sessions {whose}, the most it takes ({limit}, setting {setting}); end some, or "
        "ask again later",
        metadata={"limit": limit, "setting": setting},
        retry_after_seconds=_RETRY_SECONDS,
    )
