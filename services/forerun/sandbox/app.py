"""Wires the sandbox service."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import httpx

from forerun.core import limits
from forerun.runtime import metrics_table as m
from forerun.runtime import subjects
from forerun.runtime.app import App, Callbacks, Part, Served
from forerun.runtime.bus import Bus
from forerun.runtime.bus_connect import BusPart
from forerun.runtime.chassis import Chassis, MakeNetwork, chassis_parts, make_chassis
from forerun.runtime.clock import Clock
from forerun.runtime.ids import Ids
from forerun.runtime.metrics import Metrics
from forerun.runtime.tasks import TaskScope
from forerun.sandbox.allowance import Allowance
from forerun.sandbox.commands.runner import CommandRunner
from forerun.sandbox.connectors.command import CommandConnector, MakeRunner
from forerun.sandbox.connectors.connections import Connections
from forerun.sandbox.connectors.egress import EgressTransport
from forerun.sandbox.connectors.http import HttpConnector
from forerun.sandbox.connectors.mcp import McpConnector, OpenClient
from forerun.sandbox.connectors.port import Ended
from forerun.sandbox.connectors.python import PythonConnector
from forerun.sandbox.connectors.secrets import Secrets
from forerun.sandbox.connectors.stdio import StdioSandbox
from forerun.sandbox.isolation.levels import Ladder, LevelName
from forerun.sandbox.isolation.machine import machine_ladder
from forerun.sandbox.registry import Registry
from forerun.sandbox.runners.level import PodLevel, strengths
from forerun.sandbox.runners.pool import TRIAL_SECONDS, Runners, resolving
from forerun.sandbox.service import SandboxServicer
from forerun.sandbox.settings import SandboxSettings, names
from forerun.sandbox.source import DefinitionSource
from forerun.sandbox.tools import CommandEndpoint, HttpEndpoint, McpEndpoint, PythonEndpoint
from forerun.sandbox.worker.engine import Engine
from forerun.sandbox.worker.execution import Finished, Request, Sizes
from forerun.sandbox.worker.slots import Priority, Slots
from forerun.sandbox.workspaces.store import Workspaces
from forerun.sandbox.workspaces.strategy import choose
from forerun.sandbox.workspaces.workspace import WorkspaceLimits
from forerun.v1 import sandbox_pb2, sandbox_pb2_grpc

_SERVICE: Final = sandbox_pb2.DESCRIPTOR.services_by_name["SandboxService"].full_name
_LOOK_SECONDS: Final = 1.0
_SWEEP_SECONDS: Final = 600.0
_CONNECTIONS: Final = 256
_LIMITS: Final = {
    "LIMIT_MEMORY": "memory", "LIMIT_PIDS": "pids", "LIMIT_CPU": "cpu", "LIMIT_DISK": "disk", "LIMIT_OUTPUT": "output",
    "LIMIT_WALL_TIME": "wall_time", "TOOL_TIMEOUT": "wall_time",
}  # fmt: skip


class _Room:
    """Everything of the worker that needs the bus or a trial on this machine; made when the process starts.

    Args:
        settings: What the operator chose.
        chassis: The ports of the process.
        bus: The connection to the broker.
        http_transport: Carries HTTP tools; None connects for real, to allowed addresses only.
        open_mcp: Opens connections to MCP servers; None dials them.
        make_runner: Makes what runs commands.
    """

    def __init__(
        self, settings: SandboxSettings, chassis: Chassis, bus: BusPart, *,
        http_transport: httpx.AsyncBaseTransport | None, open_mcp: OpenClient | None, ladder: Ladder | None,
        make_runner: MakeRunner,
    ) -> None:  # fmt: skip
        self._settings = settings
        self._chassis = chassis
        self._bus = bus
        self._http_transport = http_transport
        self._open_mcp = open_mcp
        self._given_ladder = ladder
        self._make_runner = make_runner
        self._tasks = TaskScope("sandbox", metrics=chassis.metrics)
        self._changed = asyncio.Event()
        self._told: object = None
        self._address = settings.advertised_address
        self._worker = settings.worker or chassis.ids.uuid7()
        self._servicer: SandboxServicer | None = None
        self._engine: Engine | None = None
        self._source: DefinitionSource | None = None
        self._allowance: Allowance | None = None
        self._slots: Slots | None = None
        self._registry: Registry | None = None
        self._runners: Runners | None = None
        self._level = ""

    def register(self, server: Any) -> None:
        """Adds the servicer to a server."""
        assert self._servicer is not None
        sandbox_pb2_grpc.add_SandboxServiceServicer_to_server(self._servicer, server)

    def listening(self, address: str) -> None:
        """Tells the address that the server got."""
        self._address = self._settings.advertised_address or address
        self._changed.set()

    async def start(self) -> None:
        """Tries what the machine can do and makes the engine.

        Raises:
            FailedPrecondition: The machine cannot give `isolation` or `min_isolation`.
        """
        settings, chassis = self._settings, self._chassis
        workspaces_dir, scratch_dir = (settings.data_dir.absolute() / name for name in ("workspaces", "scratch"))
        for directory in (workspaces_dir, scratch_dir):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        ladder = await self._ladder()
        strategy, _ = await choose(workspaces_dir, ladder.choose())
        workspaces = Workspaces(
            workspaces_dir, strategy,
            WorkspaceLimits(settings.workspace_max_entries, settings.workspace_max_bytes, settings.workspace_max_forks),
            chassis.clock,
        )  # fmt: skip
        chassis.metrics.set(m.ISOLATION, 1.0, level=ladder.in_use.value)
        self._level = ladder.in_use.value
        slots = Slots(
            authoritative=settings.authoritative_slots, speculative=settings.speculative_slots,
            queue=settings.authoritative_queue, changed=self._load_changed,
        )  # fmt: skip
        for name, total in (
            ("authoritative", settings.authoritative_slots),
            ("speculative", settings.speculative_slots),
        ):
            chassis.metrics.set(m.SLOTS, total, priority=name, state="total")
        secrets = Secrets(settings.secrets_directory)
        here = ladder.without(LevelName.POD)
        mcp = McpConnector(secrets, open_client=self._open_mcp, sandbox=StdioSandbox(here, str(scratch_dir)))
        engine = Engine(
            {
                HttpEndpoint: HttpConnector(
                    self._http_transport or _connecting(),
                    secrets,
                    chassis.clock,
                    max_bytes=settings.max_observation_bytes,
                ),
                McpEndpoint: mcp,
                PythonEndpoint: PythonConnector(threads=settings.authoritative_slots + settings.speculative_slots),
                CommandEndpoint: CommandConnector(
                    ladder, workspaces, str(scratch_dir), max_bytes=settings.max_observation_bytes,
                    make_runner=self._make_runner, pods=self._runners, reach_out=settings.runners_reach_out,
                    trusted=names(settings.trusted_servers),
                ),
            },
            workspaces, slots, chassis.clock,
            sizes=Sizes(inline_bytes=limits.INLINE_OBSERVATION_BYTES, chunk_bytes=limits.CHUNK_BYTES),
            ended=self._ended,
        )  # fmt: skip
        registry = Registry(mcp, self._tasks, self._changed.set)
        source = DefinitionSource(self._bus.bus, settings.policy_file, registry)
        self._engine, self._slots, self._registry, self._source = engine, slots, registry, source
        self._servicer = SandboxServicer(
            engine,
            registry,
            ladder,
            worker=self._worker,
            slots=(settings.authoritative_slots, settings.speculative_slots),
            tracing=self._chassis.tracing,
        )
        self._allowance = Allowance(self._bus.bus, settings.pool, settings.speculative_slots, slots.allow)
        await self._allowance.start()
        await source.start()
        await registry.listed(settings.list_tools_seconds)
        self._tasks.every(_LOOK_SECONDS, source.look, name="policy-file")
        self._tasks.every(_SWEEP_SECONDS, lambda: workspaces.sweep(settings.workspace_idle_seconds), name="sweep")
        self._tasks.keep(self._report, name="load-reports")

    async def _ladder(self) -> Ladder:
        settings = self._settings
        ladder = (self._given_ladder or await self._tried()).chosen(settings.isolation)
        ladder.choose(settings.min_isolation)
        return ladder

    async def _tried(self) -> Ladder:
        settings, tls = self._settings, self._settings.runners_tls()
        if not settings.runners or tls is None:
            return await machine_ladder(settings.runsc)
        self._runners = Runners(
            resolving(names(settings.runners)), tls, clock=self._chassis.clock, ids=self._chassis.ids,
            tasks=self._tasks, wait_seconds=settings.runners_wait_seconds, idle_seconds=settings.runners_idle_seconds,
            kept=settings.runners_kept,
        )  # fmt: skip
        self._runners.start()
        own_kernel = settings.runners_own_kernel
        return await machine_ladder(
            settings.runsc, PodLevel(self._runners, own_kernel=own_kernel), strength=strengths(own_kernel=own_kernel),
            trial_seconds=TRIAL_SECONDS + _LOOK_SECONDS * 10,
        )  # fmt: skip

    async def refuse(self, _grace_seconds: float) -> None:
        """Takes no new work and stops what runs ahead of time."""
        if self._engine is not None and self._servicer is not None:
            await self._engine.refuse()
            self._servicer.refuse()

    async def stop(self, grace_seconds: float) -> None:
        """Stops what the server's grace has left, then everything else."""
        if self._engine is not None:
            await self._engine.stop(grace_seconds * 0.7)
        if self._source is not None:
            await self._source.stop()
        if self._allowance is not None:
            await self._allowance.stop()
        await self._tasks.stop(grace_seconds * 0.2)

    def _load_changed(self) -> None:
        if self._news() != self._told:  # else nobody has to be woken, and this is twice in every call
            self._changed.set()
        if self._slots is not None:
            for name, speculative in (("authoritative", False), ("speculative", True)):
                self._chassis.metrics.set(
                    m.SLOTS, self._slots.taken(speculative=speculative), priority=name, state="busy"
                )

    def _ended(self, request: Request, finished: Finished) -> None:
        metrics = self._chassis.metrics
        authoritative = request.priority is Priority.AUTHORITATIVE
        metrics.observe(
            m.QUEUE_WAIT_SECONDS, finished.queued_seconds, priority="authoritative" if authoritative else "speculative"
        )
        metrics.observe(m.TOOL_SECONDS, finished.seconds, tool=request.invocation.tool.name)
        _count_end(metrics, request, finished)

    async def _report(self) -> None:
        """Publishes the load: at every change that others decide on, and every second without one.

        Authoritative seats alone are no news: nobody asks for a free one before a call, and there are two changes of
        them in every call.
        """
        loop = asyncio.get_running_loop()
        due_at = loop.time()
        while True:
            self._changed.clear()
            slots, registry, due = self._slots, self._registry, loop.time() >= due_at
            if due:
                due_at = loop.time() + self._settings.report_seconds
            if self._address and slots is not None and registry is not None:
                news = self._news()
                if due or news != self._told:
                    await self._bus.bus.notify(subjects.load(self._worker), self._load(slots, registry))
                    self._told = news
            try:
                async with asyncio.timeout_at(due_at):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def _news(self) -> object:
        """What others decide on."""
        slots, registry = self._slots, self._registry
        if slots is None or registry is None:
            return None
        return self._address, slots.speculative_free, slots.waiting, registry.generation

    def _load(self, slots: Slots, registry: Registry) -> bytes:
        return sandbox_pb2.LoadReport(
            worker=self._worker, address=self._address, authoritative_free=slots.authoritative_free,
            speculative_free=slots.speculative_free, authoritative_waiting=slots.waiting,
            tools_generation=registry.generation, pool=self._settings.pool,
            authoritative_running=slots.taken(speculative=False), speculative_running=slots.taken(speculative=True),
            speculative_refused=slots.refused, oldest_wait_seconds=slots.oldest_wait_seconds, isolation=self._level,
        ).SerializeToString()  # fmt: skip


def build(
    settings: SandboxSettings,
    *,
    clock: Clock | None = None,
    ids: Ids | None = None,
    bus: Bus | None = None,
    network: MakeNetwork | None = None,
    http_transport: httpx.AsyncBaseTransport | None = None,
    open_mcp: OpenClient | None = None,
    ladder: Ladder | None = None,
    make_runner: MakeRunner = CommandRunner,
) -> App:
    """Wires the service; what is given is used instead of the real thing.

    Args:
        settings: What the operator chose.
        clock: Tells the time.
        ids: Makes ids.
        bus: Carries definitions and load reports.
        network: Makes the network on which it listens; without one it is gRPC, with a metrics endpoint beside it.
        http_transport: Carries HTTP tools, such as httpx.ASGITransport in the simulation.
        open_mcp: Opens connections to MCP servers.
        ladder: Isolation levels; without it every level is tried on this machine, with real processes.
        make_runner: Makes what runs commands at a level; in the simulation nothing that lives in real time.
    """
    chassis = make_chassis(settings, clock=clock, ids=ids, make_network=network)
    bus_part = BusPart(settings, clock=chassis.clock, ids=chassis.ids, metrics=chassis.metrics, bus=bus)
    room = _Room(
        settings,
        chassis,
        bus_part,
        http_transport=http_transport,
        open_mcp=open_mcp,
        ladder=ladder,
        make_runner=make_runner,
    )
    server = Served(
        chassis.network,
        "sandbox",
        settings.listen_address,
        [room.register],
        services=[_SERVICE],
        listening=room.listening,
    )
    parts = [
        *chassis_parts(chassis, settings, expose_metrics=network is None),
        bus_part.part(),
        Part("worker", room, start_seconds=60.0 + (TRIAL_SECONDS if settings.runners else 0.0)),
        Part("server", server, stop_seconds=None),
        # Stops before the server does, so that the server's grace is for authoritative executions alone.
        Part("admission", Callbacks(stop=room.refuse)),
    ]
    return App(service="sandbox", parts=parts, metrics=chassis.metrics, drain_seconds=settings.drain_seconds)


def _connecting() -> httpx.AsyncBaseTransport:
    return EgressTransport(Connections(most=_CONNECTIONS, idle_most=_CONNECTIONS // 4))


def _count_end(metrics: Metrics, request: Request, finished: Finished) -> None:
    if finished.preempted:
        metrics.add(m.PREEMPTIONS)
    if finished.fault is not None and (limit := _LIMITS.get(finished.fault.reason.value)) is not None:
        metrics.add(m.LIMIT_HITS, limit=limit)
    endpoint = request.invocation.tool.endpoint
    if isinstance(endpoint, HttpEndpoint | McpEndpoint):
        ok = finished.ended is Ended.OK
        metrics.add(m.PROVIDER_REQUESTS, provider=request.invocation.tool.server.name, result="ok" if ok else "failed")
        if finished.fault is not None and finished.fault.reason.value == "RATE_LIMITED":
            metrics.add(m.RATE_LIMITED, provider=request.invocation.tool.server.name)
