"""One suite for every network: what services rely on, whichever wires carry their calls."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from forerun.runtime import metrics_table as m
from forerun.runtime.auth import Authenticator, CallToken, current_caller, on_behalf_of
from forerun.runtime.clock import SystemClock
from forerun.runtime.errors import (
    Aborted,
    Bug,
    DeadlineExceeded,
    ErrorReason,
    FailedPrecondition,
    ForerunError,
    InvalidArgument,
    ResourceExhausted,
    Unauthenticated,
    Unavailable,
    never_started,
)
from forerun.runtime.memory_network import MemoryFabric, MemoryNetwork
from forerun.runtime.metrics import Metrics
from forerun.runtime.network import LIVENESS_SERVICE, Network, NetworkOptions, ServerHandle, rpc_errors
from forerun.runtime.network_grpc import GrpcNetwork
from forerun.runtime.network_inbound import Inbound
from forerun.runtime.tracing import Tracing, current_trace, use_trace

SERVICE = "test.v1.Echo"
LIMIT = 64 * 1024
TOKEN = "user-token"


@dataclass
class Echo:
    """A servicer whose behaviour the request chooses."""

    started: asyncio.Event = field(default_factory=asyncio.Event)
    release: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    sent: int = 0
    trace: str | None = None

    async def once(self, request: bytes, context: Any) -> bytes:
        return await self._answer(request, context)

    async def down(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        try:
            count, _, size = request.partition(b" ")
            for number in range(int(count)):
                self.sent += 1
                yield b"%d" % number + b" " * int(size or 0)
            self.started.set()
            await self.release.wait()
            raise Aborted(ErrorReason.STATE_CONFLICT, "enough", metadata={"sent": str(self.sent)})
        finally:
            self.ended.set()

    async def up(self, requests: AsyncIterator[bytes], context: Any) -> bytes:
        total = 0
        async for request in requests:
            total += int(request)
        return b"%d" % total

    async def both(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        self.started.set()
        try:
            async for request in requests:
                yield await self._answer(request, context)
        finally:
            self.ended.set()

    async def _answer(self, request: bytes, context: Any) -> bytes:
        command, _, argument = request.partition(b" ")
        if command == b"wait":
            self.started.set()
            try:
                await self.release.wait()
            finally:
                self.ended.set()
        elif command == b"fail":
            raise ResourceExhausted(
                ErrorReason.RATE_LIMITED, "slow down", metadata={"limit": "5"}, retry_after_seconds=1.5
            )
        elif command == b"bug":
            raise ValueError("secret detail")
        elif command == b"cancel":
            raise asyncio.CancelledError
        elif command == b"abort":
            await context.abort(grpc.StatusCode.NOT_FOUND, "by hand")
        elif command == b"big":
            return b"x" * int(argument)
        elif command == b"who":
            caller = current_caller()
            return f"{caller.tenant}/{caller.principal}/{caller.role}".encode()
        elif command == b"trace":
            return (current_trace() or "").encode()
        elif command == b"metadata":
            return b",".join(value.encode() for key, value in context.invocation_metadata() if key == "x-test")
        return request

    def register(self, server: Any) -> None:
        handlers: dict[str, Any] = {
            "Once": grpc.unary_unary_rpc_method_handler(self.once),
            "Down": grpc.unary_stream_rpc_method_handler(self.down),
            "Up": grpc.stream_unary_rpc_method_handler(self.up),
            "Both": grpc.stream_stream_rpc_method_handler(self.both),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        server.add_registered_method_handlers(SERVICE, handlers)


class Stub:
    """What protoc would generate."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.once: Any = channel.unary_unary(f"/{SERVICE}/Once")
        self.down: Any = channel.unary_stream(f"/{SERVICE}/Down")
        self.up: Any = channel.stream_unary(f"/{SERVICE}/Up")
        self.both: Any = channel.stream_stream(f"/{SERVICE}/Both")
        self.missing: Any = channel.unary_unary(f"/{SERVICE}/Missing")


@dataclass
class World:
    make: Callable[..., Network]
    network: Network
    metrics: Metrics
    echo: Echo
    server: ServerHandle
    stub: Stub
    token_file: Path


@pytest.fixture(params=["grpc", "memory"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    token_file = tmp_path / "tokens.json"
    write_tokens(token_file, TOKEN)
    metrics = Metrics("orchestrator")
    fabric = MemoryFabric()
    authenticator = Authenticator(SystemClock(), token_file=token_file, internal_token="internal")
    inbound = Inbound(authenticator=authenticator, metrics=metrics, tracing=Tracing("test"))
    options = NetworkOptions(max_message_bytes=LIMIT, stream_window_messages=4)
    networks: list[Network] = []

    def make(token: str | None = TOKEN) -> Network:
        call_token = None if token is None else CallToken(token)
        network: Network = (
            GrpcNetwork(inbound, token=call_token, options=options)
            if request.param == "grpc"
            else MemoryNetwork(fabric, inbound, source="tester", token=call_token, options=options)
        )
        networks.append(network)
        return network

    network = make()
    echo = Echo()
    server = await network.serve("echo", "127.0.0.1:0", [echo.register], services=[SERVICE])
    yield World(make, network, metrics, echo, server, Stub(network.channel(server.address)), token_file)
    for each in networks:
        await each.close()
    await server.stop(0)


def write_tokens(path: Path, *tokens: str) -> None:
    entries = [
        {"sha256": hashlib.sha256(token.encode()).hexdigest(), "tenant": "acme", "principal": "ann", "scope": "read"}
        for token in tokens
    ]
    path.write_text(json.dumps({"tokens": entries}))


async def failure(call: Awaitable[Any]) -> ForerunError:
    with pytest.raises(ForerunError) as raised, rpc_errors():
        await call
    return raised.value


async def numbers(*values: int) -> AsyncIterator[bytes]:
    for value in values:
        yield b"%d" % value


# ---------------------------------------------------------------- the four kinds


async def test_unary(world: World) -> None:
    assert await world.stub.once(b"hello", timeout=5) == b"hello"


async def test_stream_of_responses_then_its_error(world: World) -> None:
    world.echo.release.set()
    got = []
    with pytest.raises(Aborted, match="enough") as raised, rpc_errors():
        async for item in world.stub.down(b"50"):
            got.append(int(item))
    assert got == list(range(50))
    assert raised.value.metadata == {"sent": "50"}
    assert raised.value.reason is ErrorReason.STATE_CONFLICT


async def test_stream_of_requests(world: World) -> None:
    assert await world.stub.up(numbers(1, 2, 39), timeout=5) == b"42"
    call = world.stub.up(timeout=5)
    for value in (3, 4):
        await call.write(b"%d" % value)
    await call.done_writing()
    assert await call == b"7"


async def test_streams_both_ways(world: World) -> None:
    call = world.stub.both()
    for text in (b"a", b"b", b"c"):
        await call.write(text)
        assert await call.read() == text
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF
    assert await call.code() is grpc.StatusCode.OK
    assert [item async for item in world.stub.both(numbers(*range(100)))] == [b"%d" % n for n in range(100)]


async def test_metadata_arrives(world: World) -> None:
    assert await world.stub.once(b"metadata", timeout=5, metadata=(("x-test", "v1"),)) == b"v1"


async def test_unknown_method(world: World) -> None:
    error = await failure(world.stub.missing(b"", timeout=5))
    assert (type(error), error.reason) == (FailedPrecondition, ErrorReason.METHOD_NOT_FOUND)


# ---------------------------------------------------------------- errors


async def test_typed_errors_cross_with_reason_metadata_and_delay(world: World) -> None:
    error = await failure(world.stub.once(b"fail", timeout=5))
    assert type(error) is ResourceExhausted
    assert (error.reason, error.message, error.metadata) == (ErrorReason.RATE_LIMITED, "slow down", {"limit": "5"})
    assert error.retry_after_seconds == 1.5


async def test_errors_in_the_middle_of_a_stream(world: World) -> None:
    call = world.stub.both(numbers(1))
    assert [item async for item in call] == [b"1"]
    call = world.stub.both()
    await call.write(b"ok")
    assert await call.read() == b"ok"
    await call.write(b"fail")
    assert (await failure(call.read())).reason is ErrorReason.RATE_LIMITED
    assert world.echo.ended.is_set()


async def test_unexpected_exceptions_tell_nothing(world: World, caplog: pytest.LogCaptureFixture) -> None:
    error = await failure(world.stub.once(b"bug", timeout=5))
    assert (type(error), error.reason) == (Bug, ErrorReason.INTERNAL)
    assert "secret" not in error.message
    assert [record.exc_info is not None for record in caplog.records if record.message == "handler failed"] == [True]


async def test_a_handler_may_abort_by_hand(world: World) -> None:
    error = await failure(world.stub.once(b"abort", timeout=5))
    assert (error.code, error.message) == (grpc.StatusCode.NOT_FOUND, "by hand")


async def test_a_cancelled_handler_does_not_leave_its_client_waiting(world: World) -> None:
    call = world.stub.both()
    await call.write(b"cancel")
    async with asyncio.timeout(5):
        error = await failure(call.read())
    assert (type(error), error.reason) == (Unavailable, ErrorReason.CALL_INTERRUPTED)


# ---------------------------------------------------------------- deadlines and cancellation


async def test_unary_calls_need_a_deadline_on_both_sides(world: World) -> None:
    with pytest.raises(InvalidArgument) as raised:
        await world.stub.once(b"x")
    assert raised.value.reason is ErrorReason.DEADLINE_MISSING
    raw = world.network.channel(world.server.address)._inner  # type: ignore[attr-defined]  # a client that is not ours
    metadata = CallToken(TOKEN).metadata()
    error = await failure(Stub(raw).once(b"x", metadata=metadata))
    assert error.reason is ErrorReason.DEADLINE_MISSING
    assert error.metadata == {"method": f"/{SERVICE}/Once"}


async def test_a_deadline_ends_both_sides(world: World) -> None:
    error = await failure(world.stub.once(b"wait", timeout=0.05))
    assert (type(error), error.reason) == (DeadlineExceeded, ErrorReason.DEADLINE_EXCEEDED)
    async with asyncio.timeout(5):
        await world.echo.ended.wait()


async def test_cancelling_a_unary_call_reaches_the_handler(world: World) -> None:
    call = world.stub.once(b"wait", timeout=60)
    await world.echo.started.wait()
    assert call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    async with asyncio.timeout(5):
        await world.echo.ended.wait()
    assert call.cancelled()


async def test_cancelling_the_waiting_task_reaches_the_handler(world: World) -> None:
    async def wait() -> None:
        await world.stub.once(b"wait", timeout=60)

    task = asyncio.create_task(wait())
    await world.echo.started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with asyncio.timeout(5):
        await world.echo.ended.wait()


async def test_cancelling_streams_reaches_the_handler(world: World) -> None:
    call = world.stub.down(b"2")
    assert await call.read() == b"0"
    await world.echo.started.wait()
    call.cancel()
    async with asyncio.timeout(5):
        await world.echo.ended.wait()

    world.echo.started.clear()
    world.echo.ended.clear()
    stream = world.stub.both()
    await stream.write(b"x")
    assert await stream.read() == b"x"
    stream.cancel()
    async with asyncio.timeout(5):
        await world.echo.ended.wait()


async def test_a_handler_that_a_slow_client_blocks_is_cancelled_too(world: World) -> None:
    call = world.stub.down(b"100000 16000")
    assert (await call.read()).strip() == b"0"
    call.cancel()
    async with asyncio.timeout(10):
        await world.echo.ended.wait()
    assert world.echo.sent < 100_000


async def test_a_slow_reader_holds_the_writer_back(world: World) -> None:
    call = world.stub.down(b"100000 16000")
    assert (await call.read()).strip() == b"0"
    previous = -1
    async with asyncio.timeout(20):
        while world.echo.sent != previous:  # until the windows of the network are full
            previous = world.echo.sent
            await asyncio.sleep(0.2)
    assert world.echo.sent < 100_000
    call.cancel()


# ---------------------------------------------------------------- size


@pytest.mark.parametrize("size", [LIMIT - 1024, LIMIT + 1])
async def test_messages_up_to_the_limit_pass_and_larger_ones_name_size_and_limit(world: World, size: int) -> None:
    if size < LIMIT:
        assert len(await world.stub.once(b"x" * size, timeout=5)) == size
        assert len(await world.stub.once(b"big %d" % size, timeout=5)) == size
        return
    for request in (b"x" * size, b"big %d" % size):
        with pytest.raises(ResourceExhausted) as refused, rpc_errors():
            await world.stub.once(request, timeout=5)
        error = refused.value
        assert error.reason is ErrorReason.MESSAGE_TOO_LARGE
        assert error.metadata == {"limit": "MESSAGE_BYTES", "size_bytes": str(size), "limit_bytes": str(LIMIT)}
        assert str(size) in error.message
        assert str(LIMIT) in error.message
    stream = world.stub.both()
    with pytest.raises(ResourceExhausted) as raised, rpc_errors():
        await stream.write(b"x" * size)
        await stream.read()
    assert raised.value.metadata["limit_bytes"] == str(LIMIT)


# ---------------------------------------------------------------- callers


async def test_the_caller_is_the_tokens(world: World) -> None:
    assert await world.stub.once(b"who", timeout=5) == b"acme/ann/user"
    error = await failure(Stub(world.make(None).channel(world.server.address)).once(b"who", timeout=5))
    assert (type(error), error.reason) == (Unauthenticated, ErrorReason.CREDENTIAL_MISSING)
    assert "forerun up" in error.message
    error = await failure(Stub(world.make("wrong").channel(world.server.address)).once(b"who", timeout=5))
    assert (type(error), error.reason) == (Unauthenticated, ErrorReason.CREDENTIAL_REFUSED)


async def test_only_services_act_for_others(world: World) -> None:
    caller = Authenticator(SystemClock(), token_file=world.token_file).caller(CallToken(TOKEN).metadata())
    metadata = on_behalf_of(caller)
    service = Stub(world.make("internal").channel(world.server.address))
    assert await service.once(b"who", timeout=5, metadata=metadata) == b"acme/ann/service"
    error = await failure(world.stub.once(b"who", timeout=5, metadata=metadata))
    assert error.reason is ErrorReason.CALLER_NOT_ALLOWED


async def test_revoking_a_token_ends_new_calls_and_open_streams(world: World) -> None:
    stream = world.stub.both()
    await stream.write(b"a")
    assert await stream.read() == b"a"
    write_tokens(world.token_file, "another-token-altogether")
    async with asyncio.timeout(3):
        while True:
            try:
                with rpc_errors():
                    await world.stub.once(b"x", timeout=5)
                await asyncio.sleep(0.05)
            except Unauthenticated:
                break
    await stream.write(b"b")
    assert (await failure(stream.read())).reason is ErrorReason.CREDENTIAL_REFUSED


# ---------------------------------------------------------------- telemetry


async def test_the_trace_context_reaches_the_handler(world: World) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    use_trace(trace)
    assert await world.stub.once(b"trace", timeout=5) == trace.encode()
    assert [item async for item in world.stub.both(requests(b"trace"))] == [trace.encode()]
    use_trace(None)
    assert await world.stub.once(b"trace", timeout=5) == b""


async def requests(*values: bytes) -> AsyncIterator[bytes]:
    for value in values:
        yield value


async def test_calls_are_counted_by_method_and_code(world: World) -> None:
    await world.stub.once(b"x", timeout=5)
    await failure(world.stub.once(b"fail", timeout=5))
    await failure(world.stub.once(b"abort", timeout=5))
    method = f"/{SERVICE}/Once"
    await world.server.stop(5)  # a client knows of the end before it is counted
    assert world.metrics.value(m.RPC_CALLS, method=method, code="OK") == 1
    assert world.metrics.value(m.RPC_CALLS, method=method, code="RESOURCE_EXHAUSTED") == 1
    assert world.metrics.value(m.RPC_CALLS, method=method, code="NOT_FOUND") == 1
    assert world.metrics.value(m.RPC_SECONDS, method=method) == 3
    assert world.metrics.value(m.RPC_ACTIVE, method=method) == 0


# ---------------------------------------------------------------- life


async def test_health_by_service_without_a_token(world: World) -> None:
    health: Any = health_pb2_grpc.HealthStub(world.make(None).channel(world.server.address))

    async def status(service: str) -> int:
        reply = await health.Check(health_pb2.HealthCheckRequest(service=service), timeout=5)
        return int(reply.status)

    assert await status(SERVICE) == health_pb2.HealthCheckResponse.NOT_SERVING
    assert await status(LIVENESS_SERVICE) == health_pb2.HealthCheckResponse.SERVING
    await world.server.set_serving(True)
    assert await status(SERVICE) == await status("") == health_pb2.HealthCheckResponse.SERVING
    assert (await failure(health.Check(health_pb2.HealthCheckRequest(service="no.such"), timeout=5))).code is (
        grpc.StatusCode.NOT_FOUND
    )


async def test_shutdown_says_not_serving_first_and_lets_calls_finish(world: World) -> None:
    await world.server.set_serving(True)
    health: Any = health_pb2_grpc.HealthStub(world.network.channel(world.server.address))
    watch = health.Watch(health_pb2.HealthCheckRequest(service=SERVICE))
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
    call = world.stub.once(b"wait", timeout=30)
    await world.echo.started.wait()

    stopping = asyncio.create_task(world.server.stop(20))
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
    assert not call.done()
    error = await failure(world.stub.once(b"new", timeout=5))
    assert (type(error), error.reason) == (Unavailable, ErrorReason.SHUTTING_DOWN)
    # It may be asked again, whatever it is, and not before this server has gone.
    assert never_started(error) and (error.retry_after_seconds or 0) > 0
    assert await watch.read() is grpc.aio.EOF
    world.echo.release.set()
    assert await call == b"wait"
    async with asyncio.timeout(10):
        await stopping


async def test_shutdown_ends_what_outlasts_the_grace(world: World) -> None:
    call = world.stub.both()
    await call.write(b"wait")
    await world.echo.started.wait()
    async with asyncio.timeout(5):
        await world.server.stop(0.1)
        error = await failure(call.read())
    assert (type(error), error.reason) == (Unavailable, ErrorReason.CALL_INTERRUPTED)
    assert not never_started(error)
    assert world.echo.ended.is_set()


async def test_a_taken_address_is_an_error(world: World) -> None:
    with pytest.raises(FailedPrecondition, match=r"cannot listen on"):
        await world.network.serve("second", world.server.address, [], services=[])


async def test_nobody_listens(world: World) -> None:
    await world.server.stop(0)
    for _ in range(3):  # the first try finds the connection gone, later ones know that nobody answered
        error = await failure(world.stub.once(b"x", timeout=5))
        assert (type(error), error.reason) == (Unavailable, ErrorReason.PEER_UNAVAILABLE)
        assert never_started(error)


async def test_closing_the_network_cancels_its_calls(world: World) -> None:
    call = world.stub.both()
    await call.write(b"x")
    assert await call.read() == b"x"
    await world.network.close()
    async with asyncio.timeout(5):
        await world.echo.ended.wait()
