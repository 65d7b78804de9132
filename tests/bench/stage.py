"""The stage of a benchmark: a platform as `forerun up` starts it, real tools, an echo beside, a collector of spans."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc.aio
import httpx

from forerun.cli.up import SERVICES, Platform
from forerun.client import AsyncClient
from tests.bench.processes import cpu_seconds, resident_bytes, serving
from tests.bench.servers import TOOL_SECONDS

PROCESSES: Final = (*SERVICES, "broker")
_SLOTS: Final = 256


@dataclass(frozen=True, slots=True)
class Stage:
    """What a benchmark works with.

    Attributes:
        platform: The processes.
        client: An agent's connection.
        direct: The way of an agent without Forerun to the same tools.
        echo: The channel of the echo.
        echo_pid: Its server's process.
    """

    platform: Platform
    client: AsyncClient
    direct: httpx.AsyncClient
    echo: grpc.aio.Channel
    echo_pid: int

    def cpu(self) -> dict[str, float]:
        """CPU seconds of each process so far."""
        return {name: cpu_seconds(pid) for name, pid in self._pids().items()}

    def resident(self) -> dict[str, int]:
        """Bytes in RAM of each process."""
        return {name: resident_bytes(pid) for name, pid in self._pids().items()}

    async def launches(self) -> Mapping[str, int]:
        """Executions that have reached the tools, by tool, as the tools count them."""
        return dict((await self.direct.post("/launches", content=b"")).json())

    def _pids(self) -> dict[str, int]:
        return {name: pid for name in PROCESSES if (pid := self.platform.pid_of(name)) is not None}


@asynccontextmanager
async def staged() -> AsyncIterator[Stage]:
    """Starts everything."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="forerun-bench-")))
        tools, echo, spans = [await stack.enter_async_context(serving(kind)) for kind in ("tools", "echo", "spans")]
        file = folder / "policy.yaml"
        file.write_text(json.dumps(_policy(tools.port)))  # JSON is YAML
        platform = Platform(folder / "data", file, port=0, environment=_settings(spans.port))
        await stack.enter_async_context(platform)
        yield Stage(
            platform,
            await stack.enter_async_context(AsyncClient(platform.address, platform.token)),
            await stack.enter_async_context(
                httpx.AsyncClient(
                    base_url=f"http://127.0.0.1:{tools.port}", limits=httpx.Limits(max_connections=_SLOTS)
                )
            ),
            await stack.enter_async_context(grpc.aio.insecure_channel(f"127.0.0.1:{echo.port}")),
            echo.pid,
        )
        await asyncio.sleep(0)  # what is cancelled above ends before the servers do


def _settings(spans: int) -> dict[str, str]:
    """Telemetry is on, and no agent waits for another one's slot: neither is what is measured here."""
    traces = {f"FORERUN_{name.upper()}_OTLP_ENDPOINT": f"127.0.0.1:{spans}" for name in SERVICES}
    slots = {f"FORERUN_SANDBOX_{name}_SLOTS": str(_SLOTS) for name in ("AUTHORITATIVE", "SPECULATIVE")}
    return traces | slots


def _policy(tools: int) -> dict[str, Any]:
    """Everything that is allowed runs ahead as soon as it is believed. `instant` is asked for, never predicted."""
    resource = {"scope": "RESOURCE_SCOPE_SESSION"}
    contracts: list[dict[str, Any]] = [
        {
            "tool": name,
            "effect": "EFFECT_READ",
            "reads": [resource | {"template": name}],
            "speculate": name != "instant",
        }
        for name in ("instant", "walk", "stroll")
    ]
    contracts.append({"tool": "post", "effect": "EFFECT_WRITE", "writes": [resource | {"template": "log"}]})
    page = resource | {"template": "page/{id}"}
    contracts += [
        {"tool": "look", "effect": "EFFECT_READ", "reads": [page], "speculate": True},
        {"tool": "note", "effect": "EFFECT_WRITE", "writes": [page]},
        {"tool": "fetch", "effect": "EFFECT_READ", "reads": [page], "speculate": True},
        {"tool": "find", "effect": "EFFECT_READ", "reads": [resource | {"template": "index"}], "race": {}},
    ]
    policy = {
        "name": "bench", "mode": "MODE_EXACT", "alpha": 1, "lambdaPerSecond": 4, "minimumEvidence": 3, "auditShare": 0,
        "budget": {"concurrent": 1024, "initialCredits": 20, "creditsPerCall": 1}, "tools": contracts,
    }  # fmt: skip
    schema = json.dumps({"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]})
    specs = [
        {
            "name": name, "inputSchema": schema,
            "http": {
                "method": "POST", "url": f"http://127.0.0.1:{tools}/{name}", "jsonBody": True,
                "alternatives": [f"http://127.0.0.1:{tools}/other/{name}"],
            },
        }
        for name in TOOL_SECONDS
    ]  # fmt: skip
    return {"policies": [policy], "servers": [{"name": "tools", "tools": specs}]}
