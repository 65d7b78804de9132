"""The whole platform in one process, in memory: the production `build()` of every service, under virtual time."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc.aio
import httpx

from forerun.orchestrator.app import build as build_orchestrator
from forerun.orchestrator.settings import OrchestratorSettings
from forerun.predictor.app import build as build_predictor
from forerun.predictor.engine.engine import Engine
from forerun.predictor.settings import PredictorSettings
from forerun.runtime.app import App
from forerun.runtime.auth import CallToken, Role, token_digest
from forerun.runtime.bus_memory import MemoryBroker, MemoryBus
from forerun.runtime.bus_memory_faults import Faults
from forerun.runtime.chassis import MakeNetwork
from forerun.runtime.clock import Clock
from forerun.runtime.ids import Ids
from forerun.runtime.memory_network import MemoryFabric, MemoryNetwork
from forerun.runtime.metrics import Metrics
from forerun.runtime.network import NetworkOptions
from forerun.runtime.network_inbound import Inbound
from forerun.runtime.tracing import Tracing
from forerun.sandbox.app import build as build_sandbox
from forerun.sandbox.commands.runner import CommandRunner
from forerun.sandbox.connectors.command import MakeRunner
from forerun.sandbox.connectors.mcp import OpenClient
from forerun.sandbox.isolation.levels import Ladder, Level, LevelName
from forerun.sandbox.isolation.process import Process
from forerun.sandbox.settings import SandboxSettings
from forerun.snapshots.app import build as build_snapshots
from forerun.snapshots.settings import SnapshotsSettings
from forerun.verifier.app import build as build_verifier
from forerun.verifier.settings import VerifierSettings

TENANT: Final = "local"
USER_TOKEN: Final = "user-of-a-platform-in-memory"
_INTERNAL_TOKEN: Final = "services-of-a-platform-in-memory-0123456789"

SERVICES: Final = ("snapshots", "sandbox", "verifier", "predictor", "orchestrator")
"""In the order in which they start."""


def _address(name: str) -> str:
    return f"{name}:1"


def _service(name: str) -> str:
    """The service of a replica."""
    return name.partition("-")[0]


@dataclass(slots=True, kw_only=True)
class VirtualPlatform:
    """A platform in memory. Must be made and used inside a running loop, usually a `VirtualLoop`.

    Commands need a `ladder` and a loop in real time, because their processes live in it; without one none is executed.

    Attributes:
        directory: An empty directory for tokens and state.
        policy_file: Policies and tool servers.
        clock: Tells the time.
        ids: Makes ids and draws.
        http: Carries HTTP tools.
        engine: Another predictor engine.
        faults: What goes wrong on the bus.
        slots: Authoritative and speculative slots of the worker.
        settings: Further settings by service, field to value.
        ladder: Isolation levels for commands.
        make_runner: Makes what runs commands at a level; given something that needs no real time, commands run under
            virtual time, too.
        open_mcp: Opens connections to MCP servers; None dials them, which needs a loop in real time.
    """

    directory: Path
    policy_file: Path
    clock: Clock
    ids: Ids
    http: httpx.AsyncBaseTransport
    engine: Engine | None = None
    faults: Faults | None = None
    slots: tuple[int, int] = (64, 32)
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    ladder: Ladder | None = None
    make_runner: MakeRunner = CommandRunner
    open_mcp: OpenClient | None = None
    fabric: MemoryFabric = field(init=False)
    broker: MemoryBroker = field(init=False)
    bus: MemoryBus = field(init=False)
    apps: dict[str, App] = field(default_factory=dict)
    _buses: dict[str, MemoryBus] = field(default_factory=dict)
    _client: MemoryNetwork = field(init=False)

    def __post_init__(self) -> None:
        """Makes the wires."""
        self.fabric = MemoryFabric()
        self.broker = MemoryBroker(self.clock, faults=self.faults)
        self.bus = MemoryBus(self.broker, "cli")
        tokens = {"sha256": token_digest(USER_TOKEN), "tenant": TENANT, "principal": "user", "scope": "all"}
        tokens["role"] = Role.OPERATOR.value
        (self.directory / "tokens.json").write_text(json.dumps({"tokens": [tokens]}))
        (self.directory / "internal-token").write_text(_INTERNAL_TOKEN)
        inbound = Inbound(authenticator=None, metrics=Metrics(None), tracing=Tracing("client"))
        self._client = MemoryNetwork(self.fabric, inbound, source="client", token=CallToken(USER_TOKEN))

    async def start(self) -> None:
        """Starts all services."""
        for name in SERVICES:
            await self.start_service(name)

    async def stop(self, shutdown_seconds: float = 20.0) -> None:
        """Stops all services, last started first."""
        for service in reversed(SERVICES):
            for name in [one for one in self.apps if _service(one) == service]:
                await self.stop_service(name, shutdown_seconds)
        await self._client.close()
        await self.bus.close(1.0)

    async def start_service(self, name: str) -> None:
        """Starts one service, also again after it was stopped. `orchestrator-2` is a second replica of its service."""
        self._buses[name] = MemoryBus(self.broker, name)
        app = self._build(name)
        try:
            await app.start()
        except BaseException:
            await self._buses.pop(name).close(1.0)
            raise
        self.apps[name] = app

    async def stop_service(self, name: str, shutdown_seconds: float) -> None:
        """Stops one service in order."""
        app = self.apps.pop(name, None)
        if app is not None:
            await app.stop(shutdown_seconds)
            await self._buses.pop(name).close(1.0)

    def channel(self) -> grpc.aio.Channel:
        """A client's channel to the orchestrator."""
        return self.service_channel("orchestrator")

    def service_channel(self, name: str) -> grpc.aio.Channel:
        """A user's channel to another service, or to another replica."""
        return self._client.channel(_address(name))

    def _network(self, source: str) -> MakeNetwork:
        def make(inbound: Inbound, token: CallToken | None, options: NetworkOptions) -> MemoryNetwork:
            return MemoryNetwork(self.fabric, inbound, source=source, token=token, options=options)

        return make

    def _common(self, name: str) -> dict[str, Any]:
        return {
            "listen_address": _address(name),
            "token_file": self.directory / "tokens.json",
            "internal_token_file": self.directory / "internal-token",
        } | self.settings.get(_service(name), {})

    def _build(self, name: str) -> App:
        ports: dict[str, Any] = {
            "clock": self.clock,
            "ids": self.ids,
            "bus": self._buses[name],
            "network": self._network(name),
        }
        common = self._common(name)
        match _service(name):
            case "orchestrator":
                targets: dict[str, Any] = {
                    "sandbox_targets": (_address("sandbox"),),
                    "verifier_target": _address("verifier"),
                    "policy_file": self.policy_file,
                }
                return build_orchestrator(OrchestratorSettings(**(targets | common)), **ports)
            case "predictor":
                return build_predictor(PredictorSettings(**common), **ports, engine=self.engine)
            case "verifier":
                return build_verifier(VerifierSettings(**common), **ports)
            case "snapshots":
                return build_snapshots(
                    SnapshotsSettings(**({"data_dir": self.directory / "snapshots"} | common)), **ports
                )
            case _:
                worker: dict[str, Any] = {
                    "worker": "worker-1" if name == "sandbox" else name,
                    "policy_file": self.policy_file,
                    "data_dir": self.directory / name,
                    "authoritative_slots": self.slots[0],
                    "speculative_slots": self.slots[1],
                }
                ladder = self.ladder or Ladder(
                    (Level(LevelName.PROCESS, True, "in memory", "nothing: no command is executed"),),
                    {LevelName.PROCESS: Process(None)},
                )
                return build_sandbox(
                    SandboxSettings(**(worker | common)),
                    **ports,
                    http_transport=self.http,
                    ladder=ladder,
                    make_runner=self.make_runner,
                    open_mcp=self.open_mcp,
                )
