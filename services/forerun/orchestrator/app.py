"""Wires the orchestrator."""

from __future__ import annotations

from typing import Any

import grpc.aio
import httpx

from forerun.core import limits
from forerun.orchestrator.answers.driver import Answering
from forerun.orchestrator.answers.service import AnswerServicer
from forerun.orchestrator.certifier import Certifier
from forerun.orchestrator.demand import REPORT_SECONDS, Demand
from forerun.orchestrator.engine import Orchestrator
from forerun.orchestrator.erasing import Erasing
from forerun.orchestrator.ledger import Outbox
from forerun.orchestrator.observer import Observer
from forerun.orchestrator.opening import Parts
from forerun.orchestrator.ownership import Ownership
from forerun.orchestrator.places import Places
from forerun.orchestrator.policies import PolicySource
from forerun.orchestrator.ports import Ports
from forerun.orchestrator.results import Results
from forerun.orchestrator.service import SessionServicer
from forerun.orchestrator.settings import OrchestratorSettings
from forerun.orchestrator.shared import SharedGenerations
from forerun.orchestrator.workers import Workers
from forerun.runtime import subjects
from forerun.runtime.app import App, Callbacks, Part, Served
from forerun.runtime.auth import Caller
from forerun.runtime.bus import Bus, Subscription
from forerun.runtime.bus_connect import BusPart
from forerun.runtime.chassis import Chassis, MakeNetwork, chassis_parts, make_chassis
from forerun.runtime.clock import Clock
from forerun.runtime.ids import Ids
from forerun.runtime.models.models import Models
from forerun.runtime.models.providers import make_port
from forerun.runtime.switch import Switch
from forerun.runtime.tasks import Failure, TaskScope
from forerun.v1 import answer_pb2, answer_pb2_grpc, session_pb2, session_pb2_grpc

_SERVICES = (
    session_pb2.DESCRIPTOR.services_by_name["SessionService"].full_name,
    answer_pb2.DESCRIPTOR.services_by_name["AnswerService"].full_name,
)
_SWEEP_SECONDS = 1.0
# A policy can be switched off in its file, which has to be heard within a second.
_LOOK_SECONDS = 0.25


class _Room:
    """Everything of the orchestrator that needs the bus; made when the process starts.

    Args:
        settings: What the operator chose.
        chassis: The ports of the process.
        bus: The connection to the broker.
        http: Carries requests to models; None makes connections.
    """

    def __init__(
        self,
        settings: OrchestratorSettings,
        chassis: Chassis,
        bus: BusPart,
        http: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._settings = settings
        self._models = Models.made_of(make_port(settings.secrets_directory, chassis.clock, transport=http))
        self._chassis = chassis
        self._bus = bus
        self.failed = Failure()
        self._tasks = TaskScope("orchestrator", metrics=chassis.metrics, failure=self.failed)
        self._subscriptions: list[Subscription] = []
        self._servicer: SessionServicer | None = None
        self._answers: AnswerServicer | None = None
        self._engine: Orchestrator | None = None
        self._outbox: Outbox | None = None
        self._policies: PolicySource | None = None
        self._switch: Switch | None = None

    def register(self, server: Any) -> None:
        """Adds the servicers to a server."""
        assert self._servicer is not None and self._answers is not None
        session_pb2_grpc.add_SessionServiceServicer_to_server(self._servicer, server)
        answer_pb2_grpc.add_AnswerServiceServicer_to_server(self._answers, server)

    async def start(self) -> None:
        """Makes the engine and starts to listen on the bus."""
        settings, chassis, bus = self._settings, self._chassis, self._bus.bus
        replica = settings.replica or chassis.ids.uuid7()
        engine: Orchestrator

        def refresh() -> None:
            observer.enabled(switch.on_for_some)
            engine.refresh()
            self._tasks.spawn(self._models.adopt(policies.current.models), name="models")

        def tools_changed() -> None:
            engine.tools_changed()

        workers = Workers(chassis.network, settings.sandbox_targets, tools_changed=tools_changed)
        policies = PolicySource(bus, settings.policy_file, refresh)
        switch = Switch(bus, chassis.clock, refresh)
        places = Places(
            calls_per_tenant=settings.max_calls_per_tenant,
            waiting_calls=settings.max_waiting_calls,
            setting=settings.variable("max_waiting_calls"),
        )
        demand = Demand(replica, bus, places, lambda: engine.sessions)
        observer = Observer(chassis.metrics, chassis.tracing, demand.recorded)
        outbox = Outbox(bus, chassis.metrics)
        ports = Ports(
            workers=workers,
            certifier=Certifier(chassis.network, settings.verifier_target, self._tasks),
            # An id of this process: what an earlier one of the same name has registered must stay.
            shared=SharedGenerations(bus, chassis.ids.uuid7(), chassis.clock.now),
            outbox=outbox,
            tasks=self._tasks,
            observer=observer,
            places=places,
            results=Results(bus),
            partitions=settings.partitions,
            monotonic=chassis.clock.monotonic,
        )
        engine = Orchestrator(
            Parts(
                settings=settings,
                bus=bus,
                clock=chassis.clock,
                ids=chassis.ids,
                ports=ports,
                policies=policies,
                switch=switch,
                ownership=Ownership(bus, replica),
                replica=replica,
            )
        )
        self._engine, self._outbox, self._policies, self._switch = engine, outbox, policies, switch
        authenticator = chassis.authenticator

        def admitted(context: grpc.aio.ServicerContext[Any, Any]) -> Caller:
            return authenticator.caller(context.invocation_metadata())

        self._servicer = SessionServicer(
            engine, policies=policies, workers=workers, switch=switch,
            erasing=Erasing(bus, chassis.clock, chassis.ids), observer=observer, admitted=admitted,
        )  # fmt: skip
        self._answers = AnswerServicer(
            Answering(
                models=self._models, policies=policies, switch=switch, observer=observer, outbox=outbox,
                clock=chassis.clock, ids=chassis.ids,
            )
        )  # fmt: skip
        await policies.start()
        await self._models.adopt(policies.current.models)
        await switch.start()
        observer.enabled(switch.on_for_some)
        self._subscriptions = [
            await bus.subscribe(
                subjects.candidates(replica),
                engine.hear_candidates,
                pending_messages=limits.SUBSCRIPTION_PENDING_MESSAGES,
            ),
            await bus.subscribe(subjects.loads(), workers.hear, pending_messages=limits.SUBSCRIPTION_PENDING_MESSAGES),
        ]
        self._tasks.spawn(outbox.run(), name="outbox", critical=True)
        self._tasks.every(_SWEEP_SECONDS, engine.sweep, name="sweep")
        self._tasks.every(REPORT_SECONDS, demand.tell, name="demand")
        self._tasks.every(_LOOK_SECONDS, policies.look, name="policy-file")

    async def leave(self, grace_seconds: float) -> None:
        """Lets sessions go to another owner; stops before the server does, which would wait for their streams."""
        if self._engine is not None:
            await self._engine.leave(grace_seconds)

    async def stop(self, grace_seconds: float) -> None:
        """Stops listening, writes what is owed, ends the tasks."""
        for subscription in self._subscriptions:
            await subscription.close()
        if self._policies is not None and self._switch is not None:
            await self._policies.stop(grace_seconds)
            await self._switch.stop(grace_seconds)
        if self._engine is not None:
            await self._engine.drain(grace_seconds / 3)
        if self._outbox is not None:
            await self._outbox.drain(grace_seconds / 3)
        await self._tasks.stop(grace_seconds / 3)
        await self._models.endpoints.close()


def build(
    settings: OrchestratorSettings,
    *,
    clock: Clock | None = None,
    ids: Ids | None = None,
    bus: Bus | None = None,
    network: MakeNetwork | None = None,
    http: httpx.AsyncBaseTransport | None = None,
) -> App:
    """Wires the service; what is given is used instead of the real thing.

    Args:
        settings: What the operator chose.
        clock: Tells the time.
        ids: Makes ids and draws.
        bus: The bus, instead of a connection to the broker.
        network: Makes the network, instead of gRPC; without sockets there is no metrics endpoint either.
        http: Carries requests to models, instead of connections.
    """
    chassis = make_chassis(settings, clock=clock, ids=ids, make_network=network)
    bus_part = BusPart(settings, clock=chassis.clock, ids=chassis.ids, metrics=chassis.metrics, bus=bus)
    room = _Room(settings, chassis, bus_part, http)
    server = Served(chassis.network, "orchestrator", settings.listen_address, [room.register], services=_SERVICES)
    parts = [
        *chassis_parts(chassis, settings, expose_metrics=network is None),
        bus_part.part(),
        Part("sessions", Callbacks(start=room.start, stop=room.stop), stop_seconds=8.0),
        Part("server", server, stop_seconds=3.0),
        Part("streams", Callbacks(stop=room.leave), stop_seconds=None),
    ]
    return App(
        service="orchestrator",
        parts=parts,
        metrics=chassis.metrics,
        drain_seconds=settings.drain_seconds,
        failed=room.failed,
    )
