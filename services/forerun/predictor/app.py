"""Wires the predictor."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Any, Final

from forerun.core import limits
from forerun.core.second_guess import GuessPrices
from forerun.predictor.engine.engine import Engine
from forerun.predictor.follower import Follower
from forerun.predictor.service import Listener, PredictionServicer
from forerun.predictor.settings import PredictorSettings
from forerun.predictor.small_model.guess import SmallModel
from forerun.predictor.small_model.guesser import Guesser, GuessSettings
from forerun.predictor.store import ModelStore
from forerun.runtime import subjects
from forerun.runtime.app import App, Callbacks, Part, Served
from forerun.runtime.bus import Bus, Subscription
from forerun.runtime.bus_connect import BusPart
from forerun.runtime.chassis import Chassis, MakeNetwork, chassis_parts, make_chassis
from forerun.runtime.clock import Clock
from forerun.runtime.errors import ForerunError
from forerun.runtime.ids import Ids
from forerun.runtime.models.catalogue import Model, Provider
from forerun.runtime.models.models import Models
from forerun.runtime.models.port import Deadlines
from forerun.runtime.models.providers import make_port
from forerun.runtime.tasks import TaskScope
from forerun.v1 import prediction_pb2, prediction_pb2_grpc

_LOG: Final = logging.getLogger(__name__)
_SERVICE = prediction_pb2.DESCRIPTOR.services_by_name["PredictionService"].full_name


class _Room:
    """Everything of the predictor that needs the bus; made when the process starts.

    Args:
        settings: What the operator chose.
        chassis: The ports of the process.
        bus: The connection to the broker.
        engine: Another engine than the one that learns, such as one that knows the future of a recorded run.
    """

    def __init__(self, settings: PredictorSettings, chassis: Chassis, bus: BusPart, engine: Engine | None) -> None:
        self._settings = settings
        self._chassis = chassis
        self._bus = bus
        self._engine = engine or Engine()
        self._tasks = TaskScope("predictor", metrics=chassis.metrics)
        self._subscriptions: list[Subscription] = []
        self._store: ModelStore | None = None
        self._listener: Listener | None = None
        self._guesser: Guesser | None = None
        self._servicer: PredictionServicer | None = None

    def register(self, server: Any) -> None:
        """Adds the servicer to a server."""
        assert self._servicer is not None
        prediction_pb2_grpc.add_PredictionServiceServicer_to_server(self._servicer, server)

    async def start(self) -> None:
        """Starts to listen."""
        settings, bus = self._settings, self._bus.bus
        store = self._store = ModelStore(self._engine, bus, self._chassis.clock)
        guesser = self._guesser = self._small_model(bus)
        listener = self._listener = Listener(
            self._engine,
            Follower(self._engine, settings.tracked_sessions, guesser),
            store,
            bus,
            self._tasks,
            clock=self._chassis.clock,
            metrics=self._chassis.metrics,
            candidates=settings.candidates,
            guesser=guesser,
        )
        self._servicer = PredictionServicer(self._engine, listener, store, guesser)
        patterns = [subjects.events_of_partition(number) for number in settings.partitions]
        for pattern in patterns or [f"{subjects.PREFIX}.event.>"]:
            self._subscriptions.append(
                await bus.subscribe(pattern, listener.hear, pending_messages=limits.SUBSCRIPTION_PENDING_MESSAGES)
            )
        self._tasks.every(settings.save_seconds, store.save, name="save")

    def _small_model(self, bus: Bus) -> Guesser | None:
        """The small model of the settings, with one breaker and one bound for all agents."""
        given, chassis = self._settings.small_model, self._chassis
        if given is None:
            return None
        provider = Provider(
            name=given.name,
            url=given.url,
            model=given.name,
            secret=given.secret,
            concurrency=given.concurrency,
            deadlines=Deadlines(
                first_token=given.deadline_seconds,
                between_tokens=given.deadline_seconds,
                total=given.deadline_seconds,
            ),
        )
        models = Models.made_of(make_port(self._settings.secrets_directory, chassis.clock))
        return Guesser(
            SmallModel(models, Model(given.name, (provider,)), given.deadline_seconds),
            self._engine,
            bus,
            self._tasks,
            clock=chassis.clock,
            metrics=chassis.metrics,
            settings=GuessSettings(
                prices=GuessPrices(
                    worth_per_second=given.worth_per_second,
                    cost_per_second=given.cost_per_second,
                    unsure_below=given.unsure_below,
                ),
                at_once=given.concurrency,
                chars=given.prompt_chars,
                tokens=given.output_tokens,
                tools=given.tools,
            ),
        )

    async def stop(self, grace_seconds: float) -> None:
        """Stops listening and saves what was learned."""
        for subscription in self._subscriptions:
            await subscription.close()
        await self._tasks.stop(grace_seconds / 4)
        if self._guesser is not None:
            await self._guesser.close()
        if self._store is not None and self._listener is not None:
            try:
                with suppress(TimeoutError):
                    async with asyncio.timeout(grace_seconds / 4):
                        await self._listener.learn()
                await self._store.save()
            except ForerunError as error:
                _LOG.error("models were not saved", extra={"fields": {"error.type": error.reason}})


def build(
    settings: PredictorSettings,
    *,
    clock: Clock | None = None,
    ids: Ids | None = None,
    bus: Bus | None = None,
    network: MakeNetwork | None = None,
    engine: Engine | None = None,
) -> App:
    """Wires the service; what is given is used instead of the real thing.

    Args:
        settings: What the operator chose.
        clock: Tells the time.
        ids: Makes ids.
        bus: The bus, instead of a connection to the broker.
        network: Makes the network, instead of gRPC; without sockets there is no metrics endpoint either.
        engine: Another engine, such as one that knows the future of a recorded run.
    """
    chassis = make_chassis(settings, clock=clock, ids=ids, make_network=network)
    bus_part = BusPart(settings, clock=chassis.clock, ids=chassis.ids, metrics=chassis.metrics, bus=bus)
    room = _Room(settings, chassis, bus_part, engine)
    server = Served(chassis.network, "predictor", settings.listen_address, [room.register], services=[_SERVICE])
    parts = [
        *chassis_parts(chassis, settings, expose_metrics=network is None),
        bus_part.part(),
        Part("listener", Callbacks(start=room.start, stop=room.stop), stop_seconds=8.0),
        Part("server", server, stop_seconds=None),
    ]
    return App(service="predictor", parts=parts, metrics=chassis.metrics, drain_seconds=settings.drain_seconds)
