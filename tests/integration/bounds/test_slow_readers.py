"""A client that does not read, over real sockets: HTTP/2 pushes back, and the platform's memory has a bound."""

from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from starlette.responses import Response

from forerun.core import limits
from forerun.orchestrator.app import build as build_orchestrator
from forerun.orchestrator.settings import OrchestratorSettings
from forerun.runtime.app import App
from forerun.runtime.auth import token_digest
from forerun.runtime.bus_memory import MemoryBroker, MemoryBus
from forerun.runtime.clock import SystemClock
from forerun.runtime.errors import ErrorReason, from_rpc_error
from forerun.runtime.ids import SystemIds
from forerun.sandbox.app import build as build_sandbox
from forerun.sandbox.isolation.levels import Ladder, Level, LevelName
from forerun.sandbox.isolation.process import Process
from forerun.sandbox.settings import SandboxSettings
from forerun.v1 import session_pb2, session_pb2_grpc
from tests.integration.bounds.conftest import RULES, batch_of, hello_of
from tests.integration.cases.conftest import Run, Tools

TOKEN = "reader"
COUNT, SIZE = 40, 1_000_000


def address_of(app: App) -> str:
    """Where a service listens."""
    served: Any = next(part.component for part in app.parts if part.name == "server")
    return str(served.address)


def services(directory: Path, tools: Tools) -> tuple[list[App], list[MemoryBus]]:
    """A worker and an orchestrator with real gRPC between them and an in-memory bus."""
    clock = SystemClock()
    broker = MemoryBroker(clock)
    (directory / "policy.yaml").write_text(json.dumps(RULES))
    entry = {"sha256": token_digest(TOKEN), "tenant": "t", "principal": "p", "scope": ""}
    (directory / "tokens.json").write_text(json.dumps({"tokens": [entry]}))
    (directory / "internal-token").write_text("an-internal-token-of-a-test-0123456789")
    common: dict[str, Any] = {
        "listen_address": "127.0.0.1:0",
        "token_file": directory / "tokens.json",
        "internal_token_file": directory / "internal-token",
        "policy_file": directory / "policy.yaml",
    }
    buses = [MemoryBus(broker, name) for name in ("sandbox", "orchestrator")]
    ladder = Ladder((Level(LevelName.PROCESS, True, "", ""),), {LevelName.PROCESS: Process(None)})
    sandbox = build_sandbox(
        SandboxSettings(worker="w", data_dir=directory / "sandbox", **common),
        clock=clock, bus=buses[0], http_transport=httpx.ASGITransport(app=tools.app()), ladder=ladder,
    )  # fmt: skip
    orchestrator = build_orchestrator(OrchestratorSettings(**common), clock=clock, bus=buses[1])
    return [sandbox, orchestrator], buses


async def test_a_client_that_does_not_read_is_sent_away_and_gets_everything_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "STREAM_BYTES", 8 * limits.MIB)
    tools = Tools()

    def body(number: int) -> bytes:
        return bytes([number]) * SIZE

    async def big(run: Run) -> Response:
        return Response(body(run.arguments["bytes"]), media_type="application/octet-stream")

    tools.answers["big"] = big
    apps, buses = services(tmp_path, tools)
    for app in apps:
        await app.start()
    try:
        calls = [("big", b'{"bytes":%d}' % number) for number in range(COUNT)]
        session, found = SystemIds(SystemClock()).uuid7(), dict[int, bytes]()
        sent_away = 0
        async with grpc.aio.insecure_channel(address_of(apps[1])) as channel:
            stub = session_pb2_grpc.SessionServiceStub(channel)
            while len(found) < COUNT:
                stream: Any = stub.Connect(metadata=(("authorization", f"Bearer {TOKEN}"),))
                hello = hello_of(session, resume=bool(sent_away))
                await stream.write(session_pb2.ConnectRequest(hello=hello))
                await stream.read()
                batch = batch_of(1, *calls, leave_out=found)
                await stream.write(session_pb2.ConnectRequest(batch=batch))
                while len(tools.runs) < COUNT or any(run.ended is None for run in tools.runs):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)  # it reads nothing until all tools have answered
                sent_away += await read_all(stream, found)
        assert [found[number] for number in range(COUNT)] == [hashlib.sha256(body(n)).digest() for n in range(COUNT)]
        assert len(tools.runs) == COUNT and sent_away
    finally:
        for app in reversed(apps):
            await app.stop(5.0)
        for bus in buses:
            await bus.close(1.0)


async def read_all(stream: Any, found: dict[int, bytes]) -> bool:
    """Reads results until all are there; True where the platform sent the client away."""
    try:
        while len(found) < COUNT:
            message = await stream.read()
            if message is grpc.aio.EOF:
                code = await stream.code()
                raise AssertionError(f"the stream ended with {code}")
            if message.HasField("result"):
                result = message.result
                found[result.call.index] = hashlib.sha256(result.observation.content).digest()
    except grpc.aio.AioRpcError as error:
        refused = from_rpc_error(error)
        assert refused.reason is ErrorReason.QUEUE_FULL and refused.metadata["limit"] == "STREAM_BYTES"
        return True
    stream.cancel()
    return False
