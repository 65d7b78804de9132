"""Wires the operator."""

from __future__ import annotations

from forerun.operator.kubernetes.access import find_access
from forerun.operator.kubernetes.client import Client
from forerun.operator.service import Operator
from forerun.operator.settings import OperatorSettings
from forerun.runtime.app import App, Part, Served
from forerun.runtime.bus import Bus
from forerun.runtime.bus_connect import BusPart
from forerun.runtime.chassis import Chassis, chassis_parts, make_chassis
from forerun.runtime.clock import Clock
from forerun.runtime.ids import Ids
from forerun.runtime.tasks import Failure


class _Room:
    """Everything of the operator that needs the bus; made when the process starts."""

    def __init__(self, settings: OperatorSettings, chassis: Chassis, bus: BusPart, client: Client | None) -> None:
        self._settings = settings
        self._chassis = chassis
        self._bus = bus
        self._client = client
        self._operator: Operator | None = None
        self.failed = Failure()

    async def start(self) -> None:
        """Begins to follow custom resources.

        Raises:
            FailedPrecondition: there is no way to the API server.
        """
        chassis = self._chassis
        self._operator = Operator(
            self._settings,
            self._client or Client(find_access(self._settings.kubeconfig)),
            self._bus.bus,
            metrics=chassis.metrics,
            clock=chassis.clock,
            ids=chassis.ids,
            failed=self.failed,
        )
        await self._operator.start()

    async def stop(self, grace_seconds: float) -> None:
        """Stops acting and gives the leadership back."""
        if self._operator is not None:
            await self._operator.stop(grace_seconds)


def build(
    settings: OperatorSettings,
    *,
    clock: Clock | None = None,
    ids: Ids | None = None,
    bus: Bus | None = None,
    client: Client | None = None,
) -> App:
    """Wires the operator; what is given is used instead of the real thing.

    Args:
        settings: What the installation chose.
        clock: Tells the time.
        ids: Makes ids.
        bus: The bus, instead of a connection to the broker.
        client: The API server, instead of the one that this process's account leads to.
    """
    chassis = make_chassis(settings, clock=clock, ids=ids)
    bus_part = BusPart(settings, clock=chassis.clock, ids=chassis.ids, metrics=chassis.metrics, bus=bus)
    room = _Room(settings, chassis, bus_part, client)
    parts = [
        *chassis_parts(chassis, settings),
        bus_part.part(),
        Part("server", Served(chassis.network, "operator", settings.listen_address, [], services=[])),
        Part("operator", room, stop_seconds=8.0),
    ]
    return App(
        service="operator",
        parts=parts,
        metrics=chassis.metrics,
        drain_seconds=settings.drain_seconds,
        failed=room.failed,
    )
