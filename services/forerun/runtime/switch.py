"""The kill switch: off for everyone or for one tenant, heard by every process through the key-value store."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from forerun.runtime.bus import Bus, Entry, Subscription
from forerun.runtime.clock import Clock
from forerun.runtime.topology import CONTROL

_PREFIX: Final = "speculation/"
_ALL: Final = "speculation/all"
_TENANT: Final = "speculation/tenant/"


@dataclass(frozen=True, slots=True)
class Off:
    """Why and since when something is off."""

    reason: str
    since: float


class Switch:
    """What is switched off.

    Args:
        bus: Where the switch is kept.
        clock: For the record.
        changed: Called after a change.
    """

    def __init__(self, bus: Bus, clock: Clock, changed: Callable[[], None]) -> None:
        self._bus = bus
        self._clock = clock
        self._changed = changed
        self._off: dict[str, Off] = {}
        self._subscription: Subscription | None = None

    async def start(self) -> None:
        """Reads the switch and listens from now on."""
        self._subscription = await self._bus.kv(CONTROL).watch(_PREFIX, self._hear)

    async def stop(self, _grace_seconds: float) -> None:
        """Stops listening."""
        if self._subscription is not None:
            await self._subscription.close()

    @property
    def on_for_some(self) -> bool:
        """False where speculation is off for everyone."""
        return _ALL not in self._off

    @property
    def tenants_off(self) -> tuple[str, ...]:
        """Tenants that it is off for by name, sorted."""
        return tuple(sorted(key.removeprefix(_TENANT) for key in self._off if key.startswith(_TENANT)))

    def off(self, tenant: str) -> Off | None:
        """Why speculation is off for a tenant, or None."""
        return self._off.get(_ALL) or self._off.get(_key(tenant))

    async def set(self, tenant: str, *, on: bool, reason: str) -> int:
        """Switches a tenant, or everyone with an empty name; the revision of the switch.

        Raises:
            Unavailable: the broker did not store it.
        """
        value = json.dumps({"on": on, "reason": reason[:500], "since": self._clock.now()}).encode()
        key = _key(tenant) if tenant else _ALL
        return await self._bus.kv(CONTROL).put(key, value)

    async def _hear(self, key: str, entry: Entry | None) -> None:
        if entry is None:
            self._off.pop(key, None)
        else:
            try:
                value = json.loads(entry.value)
                on, reason, since = bool(value["on"]), str(value.get("reason", "")), float(value.get("since", 0.0))
            except (ValueError, KeyError, TypeError):
                on, reason, since = False, "unreadable switch", 0.0  # in doubt, off
            if on:
                self._off.pop(key, None)
            else:
                self._off[key] = Off(reason, since)
        self._changed()


def _key(tenant: str) -> str:
    return f"{_TENANT}{tenant}"
