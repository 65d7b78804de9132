"""Real processes: signals, hanging parts, and process pools beside a running gRPC server."""

import asyncio
import hashlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from forerun.runtime.auth import CallToken

PROGRAM = Path(__file__).with_name("echo_service.py")
METADATA = CallToken("token").metadata()


@dataclass
class Running:
    process: asyncio.subprocess.Process
    address: str
    channel: grpc.aio.Channel

    def once(self, request: bytes) -> Any:
        callable_: Any = self.channel.unary_unary("/test.v1.Echo/Once")
        return callable_(request, timeout=30, metadata=METADATA)


Start = Callable[..., Awaitable[Running]]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    tokens = tmp_path / "tokens.json"
    digest = hashlib.sha256(b"token").hexdigest()
    tokens.write_text(json.dumps({"tokens": [{"sha256": digest, "tenant": "t", "principal": "p", "scope": ""}]}))
    running: list[Running] = []

    async def begin(**settings: str) -> Running:
        environment = os.environ | {"FORERUN_ECHO_TOKEN_FILE": str(tokens)}
        environment |= {f"FORERUN_ECHO_{name.upper()}": value for name, value in settings.items()}
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(PROGRAM),
            stdout=asyncio.subprocess.PIPE,
            env=environment,
            start_new_session=True,  # so that its process pool can be ended with it
        )
        assert process.stdout is not None
        address = (await process.stdout.readline()).decode().strip()
        channel = grpc.aio.insecure_channel(address)
        running.append(Running(process, address, channel))
        await serving(channel)
        return running[-1]

    yield begin
    for each in running:
        await each.channel.close()
        with suppress(ProcessLookupError):
            os.killpg(each.process.pid, signal.SIGKILL)
        await each.process.communicate()


async def serving(channel: grpc.aio.Channel) -> None:
    health: Any = health_pb2_grpc.HealthStub(channel)
    async for reply in health.Watch(health_pb2.HealthCheckRequest(service="test.v1.Echo"), timeout=30):
        if reply.status == health_pb2.HealthCheckResponse.SERVING:
            return


async def exit_code(service: Running, seconds: float) -> int:
    async with asyncio.timeout(seconds):
        return await service.process.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_call_in_flight_completes_and_the_process_exits_cleanly(start: Start, number: signal.Signals) -> None:
    service = await start()
    call = service.once(b"sleep 1")
    assert await service.once(b"hello") == b"hello"  # so the first call has arrived, too
    service.process.send_signal(number)
    assert await call == b"sleep 1"
    assert await exit_code(service, 10) == 0


async def test_an_idle_process_stops_at_once(start: Start) -> None:
    service = await start()
    service.process.terminate()
    assert await exit_code(service, 5) == 0


async def test_what_outlasts_the_bound_is_ended_with_a_typed_error(start: Start) -> None:
    service = await start(shutdown_seconds="2")
    call = service.once(b"sleep 60")
    assert await service.once(b"hello") == b"hello"
    service.process.terminate()
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call
    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
    assert raised.value.details() == "the service ended this call"
    assert await exit_code(service, 10) == 0


async def test_a_second_signal_cuts_the_stop_short(start: Start) -> None:
    service = await start(shutdown_seconds="300")
    call = service.once(b"sleep 60")
    assert await service.once(b"hello") == b"hello"
    health: Any = health_pb2_grpc.HealthStub(service.channel)
    watch = health.Watch(health_pb2.HealthCheckRequest(service="test.v1.Echo"))
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
    service.process.terminate()
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
    service.process.terminate()
    assert await exit_code(service, 10) == 1
    with pytest.raises(grpc.aio.AioRpcError):
        await call


async def test_a_thread_that_hangs_does_not_keep_the_process(start: Start) -> None:
    service = await start(shutdown_seconds="3", hang_at_stop="true")
    service.process.terminate()
    assert await exit_code(service, 15) == 1


async def test_a_process_pool_that_calls_grpc_works_beside_a_running_server(start: Start) -> None:
    service = await start()
    assert await service.once(b"pool token") == b"from the pool"  # starts the pool's process
    for _ in range(10):
        async with asyncio.timeout(2):
            assert await service.once(b"pool token") == b"from the pool"


async def test_missing_and_wrong_settings_have_their_exit_codes(tmp_path: Path) -> None:
    async def run(*arguments: str, **settings: str) -> tuple[int | None, str]:
        environment = os.environ | {f"FORERUN_ECHO_{name.upper()}": value for name, value in settings.items()}
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(PROGRAM), *arguments, stderr=asyncio.subprocess.PIPE, env=environment
        )
        _, told = await process.communicate()
        return process.returncode, told.decode()

    results = await asyncio.gather(
        run(token_file=str(tmp_path / "absent")), run(listen_address="192.0.2.1:1"), run("--wrong")
    )
    assert [code for code, _ in results] == [3, 2, 2]
    assert "FORERUN_ECHO_TOKEN_FILE" in results[0][1]
    assert "listen_address" in results[1][1]
