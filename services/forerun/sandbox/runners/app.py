"""Wires a runner."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from forerun.runtime.app import App, Callbacks, Part, Served
from forerun.runtime.clock import SystemClock
from forerun.runtime.metrics import Metrics
from forerun.runtime.network_grpc import GrpcNetwork
from forerun.runtime.network_inbound import Inbound
from forerun.runtime.tasks import TaskScope
from forerun.runtime.tracing import Tracing
from forerun.sandbox.commands.runner import CommandRunner
from forerun.sandbox.isolation.machine import machine_ladder
from forerun.sandbox.runners.host import harden
from forerun.sandbox.runners.keys import RunnerKey, take_key
from forerun.sandbox.runners.served import RunnerServicer
from forerun.sandbox.runners.settings import RunnerSettings
from forerun.sandbox.settings import names
from forerun.sandbox.workspaces.disk import in_thread, remove
from forerun.v1 import runner_pb2, runner_pb2_grpc

_SERVICE = runner_pb2.DESCRIPTOR.services_by_name["RunnerService"].full_name


class _Room:
    """What runs commands; made when the process starts."""

    def __init__(self, settings: RunnerSettings, metrics: Metrics) -> None:
        self._settings = settings
        self._tasks = TaskScope("runner", metrics=metrics)
        self._servicer: RunnerServicer | None = None
        self._taken = asyncio.Event()
        self._stopping = False
        self.served: Served | None = None

    def register(self, server: Any) -> None:
        """Adds the servicer to a server."""
        assert self._servicer is not None
        runner_pb2_grpc.add_RunnerServiceServicer_to_server(self._servicer, server)

    async def start(self) -> None:
        """Finds out how commands can be isolated in here."""
        data = self._settings.data_dir.absolute()
        trees, scratch = data / "trees", data / "scratch"
        emptied = [Path(name) for name in names(self._settings.emptied)]
        for directory in (trees, scratch):
            await in_thread(remove, directory)
            directory.mkdir(mode=0o700, parents=True)
        ladder = (await machine_ladder(self._settings.runsc)).chosen(self._settings.isolation)
        self._servicer = RunnerServicer(
            CommandRunner(ladder.choose(), str(scratch)),
            trees,
            emptied=emptied,
            taken=self._was_taken,
            ended=self._leave,
        )
        self._tasks.spawn(self._leave_unused(), name="unused")

    async def drain(self, grace_seconds: float) -> None:
        """Lets the commands that run end."""
        self._stopping = True
        if self._servicer is not None:
            await self._servicer.drain(grace_seconds * 0.8)

    async def stop(self, grace_seconds: float) -> None:
        """Waits for nobody any more."""
        await self._tasks.stop(grace_seconds)

    async def _was_taken(self) -> None:
        self._taken.set()
        assert self.served is not None
        await self.served.set_ready(False)  # others look for one that is free

    async def _leave_unused(self) -> None:
        try:
            async with asyncio.timeout(self._settings.max_free_seconds):
                await self._taken.wait()
        except TimeoutError:
            self._leave()

    def _leave(self) -> None:
        """Ends this process in its usual order, unless that is under way."""
        if not self._stopping:
            self._stopping = True
            os.kill(os.getpid(), signal.SIGTERM)


def build(settings: RunnerSettings) -> App:
    """Wires the runner. One that was started in this place before gets no key, and only waits for its end."""
    metrics = Metrics("runner")
    key = take_key(settings.key_directory)
    if key is None:
        return App(service="runner", parts=[], metrics=metrics)
    harden()
    return _serving(settings, key, metrics)


def _serving(settings: RunnerSettings, key: RunnerKey, metrics: Metrics) -> App:
    room = _Room(settings, metrics)
    tracing = Tracing("runner", None, sample_ratio=0.0, clock=SystemClock())
    network = GrpcNetwork(
        Inbound(authenticator=None, metrics=metrics, tracing=tracing), tls=key, health_address=settings.health_address
    )
    room.served = Served(network, "runner", settings.listen_address, [room.register], services=[_SERVICE])
    parts = [
        Part("network", Callbacks(stop=_closing(network))),
        Part("commands", room),
        Part("server", room.served, stop_seconds=3.0),
        Part("session", Callbacks(stop=room.drain), stop_seconds=None),
    ]
    return App(service="runner", parts=parts, metrics=metrics)


def _closing(network: GrpcNetwork) -> Callable[[float], Any]:
    async def close(_: float) -> None:
        await network.close()

    return close
