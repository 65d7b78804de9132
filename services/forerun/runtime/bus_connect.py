"""A service's connection to the broker, made from its settings when the process starts."""

from __future__ import annotations

import asyncio
from typing import Final

from forerun.runtime.app import Part
from forerun.runtime.bus import Bus
from forerun.runtime.bus_nats import NatsBus
from forerun.runtime.bus_nats_wire import NatsOptions
from forerun.runtime.clock import Clock
from forerun.runtime.errors import Bug, ErrorReason, ForerunError, Unavailable
from forerun.runtime.ids import Ids
from forerun.runtime.metrics import Metrics
from forerun.runtime.settings import ServiceSettings, read_secret
from forerun.runtime.tls import trusting
from forerun.runtime.topology import TOPOLOGY

# Any key: only whether the bucket is there and may be read is asked.
_PROBE_KEY: Final = "probe"
_RETRY_SECONDS: Final = 0.5
# Beyond the wait for the broker: to close what did not connect, and to say why.
_MARGIN_SECONDS: Final = 10.0


class BusPart:
    """The bus of a process as a component: connected at start, closed at stop.

    Args:
        settings: Where the broker is, and as whom to connect; the user defaults to the service's name.
        clock: Tells the time.
        ids: Makes inbox names.
        metrics: Where publishes, drops and the connection are counted.
        bus: Used instead of a connection; then it is not closed either.
    """

    def __init__(
        self, settings: ServiceSettings, *, clock: Clock, ids: Ids, metrics: Metrics, bus: Bus | None = None
    ) -> None:
        self._settings = settings
        self._metrics = metrics
        self._clock = clock
        self._ids = ids
        self._bus = bus
        self._own = bus is None

    @property
    def bus(self) -> Bus:
        """The bus.

        Raises:
            Bug: the process has not started yet.
        """
        if self._bus is None:
            raise Bug(ErrorReason.INTERNAL, "the bus is used before the process has started")
        return self._bus

    def part(self) -> Part:
        """The same as a part of its process, with the time that its start may take."""
        return Part("bus", self, start_seconds=self._settings.nats_connect_seconds + _MARGIN_SECONDS)

    async def start(self) -> None:
        """Connects, and waits for a broker that is not there yet or does not hold yet what this process needs.

        Raises:
            Unavailable: no broker answered in time, or it was not set up.
            Unauthenticated: it refused user or password.
        """
        if not self._own:
            return
        deadline = self._clock.monotonic() + self._settings.nats_connect_seconds
        user = self._settings.nats_user or self._settings.service()
        self._bus = await self._connect(user)
        while True:
            try:
                await look(self._bus, user)
                return
            except ForerunError as error:
                if self._clock.monotonic() > deadline:
                    raise Unavailable(
                        ErrorReason.BROKER_UNAVAILABLE,
                        f"the broker does not hold what {user} needs after {self._settings.nats_connect_seconds:g} s; "
                        f"`forerun broker setup` makes it: {error.message}",
                    ) from error
            await asyncio.sleep(_RETRY_SECONDS)

    async def _connect(self, user: str) -> NatsBus:
        settings = self._settings
        password = "" if settings.nats_password_file is None else read_secret(settings.nats_password_file)
        return await NatsBus.connect(
            NatsOptions(
                servers=tuple(url.strip() for url in settings.nats_url.split(",")),
                user=user,
                password=password,
                tls=None if settings.nats_ca_file is None else trusting(settings.nats_ca_file),
            ),
            clock=self._clock,
            ids=self._ids,
            metrics=self._metrics,
            timeout_seconds=settings.nats_connect_seconds,
        )

    async def stop(self, grace_seconds: float) -> None:
        """Closes the connection, if it is the process's own."""
        if self._own and self._bus is not None:
            await self._bus.close(grace_seconds)


async def look(bus: Bus, user: str) -> None:
    """Looks for everything that a user of the broker needs.

    Raises:
        ForerunError: something is not there yet, or may not be read.
    """
    row = TOPOLOGY.user(user)
    for bucket in (*row.keys_read, *row.keys_write):
        await bus.kv(bucket).get(_PROBE_KEY)
    for store in (*row.objects_read, *row.objects_write):
        await bus.objects(store).digests(_PROBE_KEY)
