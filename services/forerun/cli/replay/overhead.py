"""What the way through the platform costs: measured over real gRPC and HTTP on loopback, before a virtual replay.

The orchestrator, the verifier and a sandbox worker run with their production wiring on real sockets, the agent's client
calls a tool of the replay's own kind through them, and, paired with each call, directly. The difference is what the
platform adds to a call that it executes; a call that it answers from memory is quicker.
"""

from __future__ import annotations

import asyncio
import json
import socket
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from google.protobuf import json_format

from forerun.cli.replay import policies
from forerun.cli.replay.policies import Rules, ToolRule
from forerun.cli.replay.positions import Durations, record
from forerun.cli.replay.scoring import Overhead
from forerun.cli.replay.serving import served
from forerun.cli.replay.toolserver import ToolServer
from forerun.cli.replay.traces import Session
from forerun.client import AsyncClient, Call
from forerun.orchestrator.app import build as build_orchestrator
from forerun.orchestrator.settings import OrchestratorSettings
from forerun.runtime.app import App
from forerun.runtime.auth import token_digest
from forerun.runtime.bus_memory import MemoryBroker, MemoryBus
from forerun.runtime.clock import SystemClock
from forerun.sandbox.app import build as build_sandbox
from forerun.sandbox.isolation.levels import Ladder, Level, LevelName
from forerun.sandbox.isolation.process import Process
from forerun.sandbox.settings import SandboxSettings
from forerun.verifier.app import build as build_verifier
from forerun.verifier.settings import VerifierSettings

_WARM_UP = 10
_ROUNDS = 5
_PAIRS = 30
_AGENT = "probe"
_TOOL = "probe"
_TOKEN = "token-of-the-probe"
_STOP_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Measured:
    """What the platform adds to a call which it executes.

    Attributes:
        overhead: Of all pairs of calls.
        charged_ms: The median of the quietest round: what else runs on the machine is no property of the platform.
    """

    overhead: Overhead
    charged_ms: float


async def measure() -> Measured:
    """Measures in rounds of paired calls."""
    rules = Rules(_AGENT, {_TOOL: ToolRule("read", "probe")})
    nothing = Session("probe", _AGENT, "probe", ())
    tools = ToolServer({0: record(nothing, rules)}, Durations([], seed=0))
    with tempfile.TemporaryDirectory(prefix="forerun-probe-") as name:
        folder = Path(name)
        async with served(tools.app) as address:
            policy = policies.policy_file([policies.policy(rules, [_TOOL])], [_TOOL], address=address)
            (folder / "policies.yaml").write_text(json.dumps(json_format.MessageToDict(policy)))
            async with (
                _platform(folder) as target,
                httpx.AsyncClient(base_url=address) as direct,
                AsyncClient(target, _TOKEN) as client,
                client.session(_AGENT, label="probe.0") as session,
            ):
                added: list[float] = []
                for number in range(_WARM_UP + _ROUNDS * _PAIRS):
                    arguments = json.dumps({"number": number})
                    straight = await _seconds(direct.post(f"/probe.0/{_TOOL}", content=arguments))
                    through = await _seconds(session.call_tools([Call(_TOOL, arguments)]))
                    added.append((through - straight) * 1000.0)
    rounds = [added[start : start + _PAIRS] for start in range(_WARM_UP, len(added), _PAIRS)]
    return Measured(Overhead(tuple(added[_WARM_UP:])), max(0.0, min(statistics.median(one) for one in rounds)))


async def _seconds(work: Awaitable[object]) -> float:
    started_at = time.perf_counter()
    await work
    return time.perf_counter() - started_at


@asynccontextmanager
async def _platform(folder: Path) -> AsyncIterator[str]:
    """The services between an agent and its tools, on real sockets, with the bus in memory."""
    tokens = {"sha256": token_digest(_TOKEN), "tenant": "probe", "principal": "probe", "scope": "all"}
    (folder / "tokens.json").write_text(json.dumps({"tokens": [tokens]}))
    (folder / "internal-token").write_text("internal-token-of-the-probe-0123456789")
    tokens_file, internal_file, policy_file = (
        folder / name for name in ("tokens.json", "internal-token", "policies.yaml")
    )
    orchestrator, verifier, sandbox = (f"127.0.0.1:{port}" for port in _free_ports(3))
    broker = MemoryBroker(SystemClock())
    buses = {name: MemoryBus(broker, name) for name in ("verifier", "sandbox", "orchestrator")}
    apps = [
        build_verifier(
            VerifierSettings(listen_address=verifier, token_file=tokens_file, internal_token_file=internal_file),
            bus=buses["verifier"],
        ),
        build_sandbox(
            SandboxSettings(
                listen_address=sandbox,
                token_file=tokens_file,
                internal_token_file=internal_file,
                policy_file=policy_file,
                data_dir=folder / "sandbox",
            ),
            bus=buses["sandbox"],
            ladder=Ladder(
                (Level(LevelName.PROCESS, True, "no command is executed", "nothing"),),
                {LevelName.PROCESS: Process(None)},
            ),
        ),
        build_orchestrator(
            OrchestratorSettings(
                listen_address=orchestrator,
                token_file=tokens_file,
                internal_token_file=internal_file,
                policy_file=policy_file,
                sandbox_targets=(sandbox,),
                verifier_target=verifier,
            ),
            bus=buses["orchestrator"],
        ),
    ]
    started: list[App] = []
    try:
        for app in apps:
            await app.start()
            started.append(app)
        yield orchestrator
    finally:
        for app in reversed(started):
            await app.stop(_STOP_SECONDS)
        for bus in buses.values():
            await bus.close(1.0)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def run() -> Measured:
    """Measures on a loop of its own."""
    return asyncio.run(measure())
