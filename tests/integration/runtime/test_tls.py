"""Both sides prove who they are; certificates change while a process runs; probes need none."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from forerun.cli.credentials.certificates import Pair, issue, new_authority
from forerun.cli.up.ports import free_ports
from forerun.client import NotConfigured
from forerun.client._channel import open_channel
from forerun.runtime.clock import SystemClock
from forerun.runtime.errors import FailedPrecondition, Unavailable
from forerun.runtime.ids import SystemIds
from forerun.runtime.metrics import Metrics
from forerun.runtime.network import ServerHandle, rpc_errors
from forerun.runtime.network_grpc import GrpcNetwork
from forerun.runtime.network_inbound import Inbound
from forerun.runtime.tls import Tls
from forerun.runtime.tracing import Tracing

SERVICE = "test.v1.Echo"
NAME = "forerun-services"


async def once(request: bytes, context: Any) -> bytes:
    return request


def register(server: Any) -> None:
    handlers: dict[str, Any] = {"Once": grpc.unary_unary_rpc_method_handler(once)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))


def network(tls: Tls | None, **options: Any) -> GrpcNetwork:
    inbound = Inbound(authenticator=None, metrics=Metrics("orchestrator"), tracing=Tracing("test"))
    return GrpcNetwork(inbound, tls=tls, **options)


async def ask(tls: Tls | None, address: str) -> bytes:
    """One call over a connection of its own."""
    caller = network(tls)
    try:
        with rpc_errors():
            stub: Any = caller.channel(address).unary_unary(f"/{SERVICE}/Once")
            answer: bytes = await stub(b"ping", timeout=5)
            return answer
    finally:
        await caller.close()


def write(folder: Path, pair: Pair, authority: Pair) -> Tls:
    folder.mkdir(exist_ok=True)
    tls = Tls(
        certificate_file=folder / "tls.crt", key_file=folder / "tls.key", ca_file=folder / "ca.crt", server_name=NAME
    )
    tls.certificate_file.write_bytes(pair.certificate)
    tls.key_file.write_bytes(pair.key)
    tls.ca_file.write_bytes(authority.certificate)
    return tls


@pytest.fixture(scope="module")
def authority() -> Pair:
    return new_authority(datetime.now(UTC))


@pytest.fixture
def free_port() -> int:
    (port,) = free_ports(1, SystemIds(SystemClock()))
    return port


@pytest.fixture
def mine(tmp_path: Path, authority: Pair) -> Tls:
    """What all services of an installation have."""
    return write(tmp_path / "mine", issue(authority, [NAME], datetime.now(UTC)), authority)


@pytest.fixture
def strangers(tmp_path: Path) -> Tls:
    """The same names, by another authority."""
    other = new_authority(datetime.now(UTC))
    return write(tmp_path / "strangers", issue(other, [NAME], datetime.now(UTC)), other)


async def serve(tls: Tls | None, **options: Any) -> ServerHandle:
    return await network(tls, **options).serve("echo", "127.0.0.1:0", [register], services=[SERVICE])


async def test_services_of_one_authority_reach_each_other_by_address(mine: Tls) -> None:
    server = await serve(mine)
    assert await ask(mine, server.address) == b"ping"
    await server.stop(0)


async def test_a_caller_of_another_authority_or_none_is_refused(mine: Tls, strangers: Tls) -> None:
    server = await serve(mine)
    nobody = replace(strangers, ca_file=mine.ca_file)
    for caller in (strangers, nobody, None):
        with pytest.raises(Unavailable):
            await ask(caller, server.address)
    await server.stop(0)


async def test_a_server_of_another_authority_is_not_trusted(mine: Tls, strangers: Tls) -> None:
    server = await serve(replace(strangers, ask_clients=False))
    with pytest.raises(Unavailable):
        await ask(mine, server.address)
    await server.stop(0)


async def test_a_server_must_have_the_name(mine: Tls) -> None:
    server = await serve(mine)
    with pytest.raises(Unavailable):
        await ask(replace(mine, server_name="somebody-else"), server.address)
    await server.stop(0)


async def test_agents_need_the_authority_only_where_clients_are_not_asked(mine: Tls) -> None:
    server = await serve(replace(mine, ask_clients=False))
    credentials = grpc.ssl_channel_credentials(mine.ca_file.read_bytes())
    options = [("grpc.ssl_target_name_override", NAME)]
    async with grpc.aio.secure_channel(server.address, credentials, options=options) as channel:
        stub: Any = channel.unary_unary(f"/{SERVICE}/Once")
        assert await stub(b"ping", timeout=5) == b"ping"
    await server.stop(0)


async def test_an_agent_finds_the_authority_by_its_environment(
    tmp_path: Path, authority: Pair, mine: Tls, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached = write(tmp_path / "reached", issue(authority, [NAME, "127.0.0.1"], datetime.now(UTC)), authority)
    server = await serve(replace(reached, ask_clients=False))
    monkeypatch.setenv("FORERUN_CA_FILE", str(mine.ca_file))
    async with open_channel(server.address, None) as channel:
        stub: Any = channel.unary_unary(f"/{SERVICE}/Once")
        assert await stub(b"ping", timeout=5) == b"ping"
    monkeypatch.setenv("FORERUN_CA_FILE", str(tmp_path / "gone"))
    with pytest.raises(NotConfigured, match="FORERUN_CA_FILE names"):
        open_channel(server.address, None)
    await server.stop(0)


async def test_new_certificates_are_used_from_the_next_connection_on(mine: Tls, strangers: Tls) -> None:
    server = await serve(mine)
    for before, after in zip(
        (mine.certificate_file, mine.key_file, mine.ca_file),
        (strangers.certificate_file, strangers.key_file, strangers.ca_file),
        strict=True,
    ):
        after_bytes = after.read_bytes()
        before.unlink()
        before.write_bytes(after_bytes)
    assert await ask(strangers, server.address) == b"ping"
    mine.key_file.write_bytes(b"half a key")
    assert await ask(strangers, server.address) == b"ping", "broken files replaced good ones"
    await server.stop(0)


async def test_probes_need_no_certificate(mine: Tls, free_port: int) -> None:
    server = await serve(mine, health_address=f"127.0.0.1:{free_port}")
    async with grpc.aio.insecure_channel(f"127.0.0.1:{free_port}") as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        found = await health.Check(health_pb2.HealthCheckRequest(), timeout=5)
        assert found.status == health_pb2.HealthCheckResponse.NOT_SERVING
        await server.set_serving(True)
        found = await health.Check(health_pb2.HealthCheckRequest(), timeout=5)
        assert found.status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            stub: Any = channel.unary_unary(f"/{SERVICE}/Once")
            await stub(b"ping", timeout=5)
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
    await server.stop(0)


async def test_a_missing_file_is_named(mine: Tls) -> None:
    mine.key_file.unlink()
    with pytest.raises(FailedPrecondition, match=r"tls\.key cannot be read"):
        await serve(mine)
