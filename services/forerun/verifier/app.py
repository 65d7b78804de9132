"""Wires the verifier."""

from __future__ import annotations

from typing import Any

from forerun.runtime.app import App, Callbacks, Part, Served
from forerun.runtime.bus import Bus, Consumption
from forerun.runtime.bus_connect import BusPart
from forerun.runtime.chassis import Chassis, MakeNetwork, chassis_parts, make_chassis
from forerun.runtime.clock import Clock
from forerun.runtime.ids import Ids
from forerun.v1 import verification_pb2, verification_pb2_grpc
from forerun.verifier.audits import Auditor, consumer_spec
from forerun.verifier.execution import Executor
from forerun.verifier.service import VerificationServicer
from forerun.verifier.settings import VerifierSettings
from forerun.verifier.workers import Workers

_SERVICE = verification_pb2.DESCRIPTOR.services_by_name["VerificationService"].full_name


class _Room:
    """Everything of the verifier that needs the bus; made when the process starts.

    Args:
        settings: What the operator chose.
        chassis: The ports of the process.
        bus: The connection to the broker.
    """

    def __init__(self, settings: VerifierSettings, chassis: Chassis, bus: BusPart) -> None:
        self._settings = settings
        self._chassis = chassis
        self._bus = bus
        self._workers: Workers | None = None
        self._servicer: VerificationServicer | None = None
        self._consumption: Consumption | None = None

    def register(self, server: Any) -> None:
        """Adds the servicer to a server."""
        assert self._servicer is not None
        verification_pb2_grpc.add_VerificationServiceServicer_to_server(self._servicer, server)

    async def start(self) -> None:
        """Listens to the workers' reports and begins to take audits."""
        settings, chassis, bus = self._settings, self._chassis, self._bus.bus
        self._workers = Workers(bus)
        auditor = Auditor(
            bus,
            Executor(chassis.network, self._workers, ids=chassis.ids, metrics=chassis.metrics),
            clock=chassis.clock,
            metrics=chassis.metrics,
            settle_seconds=settings.settle_seconds,
        )
        self._servicer = VerificationServicer(auditor, chassis.metrics)
        await self._workers.start()
        self._consumption = await bus.consume(consumer_spec(settings.audits_at_once), auditor.handle)

    async def stop(self, grace_seconds: float) -> None:
        """Takes no more audits, lets those that run end, and gives the rest back to the broker."""
        if self._consumption is not None:
            await self._consumption.close(grace_seconds * 0.8)
        if self._workers is not None:
            await self._workers.stop(grace_seconds * 0.2)


def build(
    settings: VerifierSettings,
    *,
    clock: Clock | None = None,
    ids: Ids | None = None,
    bus: Bus | None = None,
    network: MakeNetwork | None = None,
) -> App:
    """Wires the service; what is given is used instead of the real thing.

    Args:
        settings: What the operator chose.
        clock: Tells the time.
        ids: Makes ids.
        bus: The bus, instead of a connection to the broker.
        network: Makes the network, instead of gRPC; without sockets there is no metrics endpoint either.
    """
    chassis = make_chassis(settings, clock=clock, ids=ids, make_network=network)
    bus_part = BusPart(settings, clock=chassis.clock, ids=chassis.ids, metrics=chassis.metrics, bus=bus)
    room = _Room(settings, chassis, bus_part)
    server = Served(chassis.network, "verifier", settings.listen_address, [room.register], services=[_SERVICE])
    parts = [
        *chassis_parts(chassis, settings, expose_metrics=network is None),
        bus_part.part(),
        Part("audits", Callbacks(start=room.start, stop=room.stop), stop_seconds=8.0),
        Part("server", server, stop_seconds=None),
    ]
    return App(service="verifier", parts=parts, metrics=chassis.metrics, drain_seconds=settings.drain_seconds)
