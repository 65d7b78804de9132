"""Keepalive, scaled down: idle streams survive, bad clients are told so, broken connections are made again."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest

from forerun.runtime.errors import Unavailable
from forerun.runtime.metrics import Metrics
from forerun.runtime.network import NetworkOptions, rpc_errors
from forerun.runtime.network_grpc import GrpcNetwork
from forerun.runtime.network_inbound import Inbound
from forerun.runtime.tracing import Tracing

SERVICE = "test.v1.Echo"


async def both(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
    async for request in requests:
        yield request


def register(server: Any) -> None:
    handlers: dict[str, Any] = {"Both": grpc.stream_stream_rpc_method_handler(both)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))


def network(options: NetworkOptions) -> GrpcNetwork:
    return GrpcNetwork(
        Inbound(authenticator=None, metrics=Metrics("orchestrator"), tracing=Tracing("test")), options=options
    )


# Production's 30 s and 5 s, divided by 30: a client pings once a second, as often as the library lets it. Three
# pings too many are borne, so a server that did not know what it should tolerate would break the connection after 4 s.
SCALED = NetworkOptions(keepalive_seconds=1.0, keepalive_timeout_seconds=0.5, tolerated_ping_seconds=5.0 / 30.0)
SILENCE_SECONDS = 8.0


async def test_an_idle_stream_survives_many_pings() -> None:
    mesh = network(SCALED)
    server = await mesh.serve("echo", "127.0.0.1:0", [register], services=[SERVICE])
    call: Any = mesh.channel(server.address).stream_stream(f"/{SERVICE}/Both")()
    await call.write(b"a")
    assert await call.read() == b"a"
    await asyncio.sleep(SILENCE_SECONDS)
    await call.write(b"b")
    assert await call.read() == b"b"
    call.cancel()
    await mesh.close()
    await server.stop(0)


async def test_an_idle_connection_survives_many_pings_without_a_call() -> None:
    mesh = network(SCALED)
    peers: list[str] = []

    async def peer(request: bytes, context: Any) -> bytes:
        peers.append(context.peer())
        return request

    def register_peer(server: Any) -> None:
        handlers: dict[str, Any] = {"Peer": grpc.unary_unary_rpc_method_handler(peer)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))

    server = await mesh.serve("echo", "127.0.0.1:0", [register_peer], services=[SERVICE])
    stub: Any = mesh.channel(server.address).unary_unary(f"/{SERVICE}/Peer")
    await stub(b"", timeout=10.0)
    await asyncio.sleep(SILENCE_SECONDS)
    await stub(b"", timeout=10.0)
    assert peers[0] == peers[1], "another connection was made: the first one was told to go away"
    await mesh.close()
    await server.stop(0)


async def test_a_client_that_pings_too_often_gets_a_typed_error_and_connects_again() -> None:
    strict = network(NetworkOptions(tolerated_ping_seconds=300.0))
    eager = network(NetworkOptions(keepalive_seconds=0.1))
    server = await strict.serve("echo", "127.0.0.1:0", [register], services=[SERVICE])
    stub: Any = eager.channel(server.address).stream_stream(f"/{SERVICE}/Both")
    call = stub()
    await call.write(b"a")
    assert await call.read() == b"a"
    with pytest.raises(Unavailable, match=r"(?i)too.many.pings"), rpc_errors():
        async with asyncio.timeout(20):
            await call.read()
    again = stub(wait_for_ready=True)
    await again.write(b"b")
    assert await again.read() == b"b"
    again.cancel()
    await eager.close()
    await strict.close()
    await server.stop(0)


async def test_a_server_that_returns_is_reached_again_soon() -> None:
    mesh = network(NetworkOptions())
    server = await mesh.serve("echo", "127.0.0.1:0", [register], services=[SERVICE])
    stub: Any = mesh.channel(server.address).stream_stream(f"/{SERVICE}/Both")
    call = stub()
    await call.write(b"a")
    assert await call.read() == b"a"
    await server.stop(0)
    again = await mesh.serve("echo", server.address, [register], services=[SERVICE])
    async with asyncio.timeout(10):
        call = stub(wait_for_ready=True)
        await call.write(b"b")
        assert await call.read() == b"b"
    call.cancel()
    await mesh.close()
    await again.stop(0)
