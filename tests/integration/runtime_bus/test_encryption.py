"""Brokers that encrypt: what services connect with, what they refuse, and how brokers of a cluster find each other."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from forerun.cli.broker import Login, until_done
from forerun.cli.credentials.certificates import issue, new_authority
from forerun.cli.up.ports import free_ports
from forerun.orchestrator.settings import OrchestratorSettings
from forerun.runtime import subjects
from forerun.runtime.broker import find_server, new_passwords
from forerun.runtime.bus_connect import BusPart
from forerun.runtime.clock import SystemClock
from forerun.runtime.errors import ErrorReason, FailedPrecondition, Unavailable
from forerun.runtime.ids import SystemIds
from forerun.runtime.metrics import Metrics
from forerun.runtime.tls import trusting
from forerun.runtime.topology import TOPOLOGY, ensure
from forerun.runtime.topology_render import Cluster, ServerOptions, ServerTls, render_config

CLOCK = SystemClock()
IDS = SystemIds(CLOCK)
PASSWORDS = new_passwords(IDS)


def certificates(folder: Path) -> ServerTls:
    """A broker's certificate of an authority of its own."""
    authority = new_authority(datetime.now(UTC))
    pair = issue(authority, ["localhost", "127.0.0.1"], datetime.now(UTC))
    folder.mkdir()
    tls = ServerTls(folder / "tls.crt", folder / "tls.key", folder / "ca.crt")
    tls.certificate_file.write_bytes(pair.certificate)
    tls.key_file.write_bytes(pair.key)
    tls.ca_file.write_bytes(authority.certificate)
    return tls


@asynccontextmanager
async def broker(folder: Path, options: ServerOptions) -> AsyncIterator[asyncio.subprocess.Process]:
    """A nats-server with the configuration that production renders."""
    config = folder / f"{options.name}.conf"
    config.write_text(render_config(TOPOLOGY, options))
    process = await asyncio.create_subprocess_exec(
        str(find_server()), "-c", str(config), stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        async with asyncio.timeout(10):
            while True:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", options.port)
                except OSError:
                    await asyncio.sleep(0.02)
                else:
                    writer.close()
                    break
        yield process
    finally:
        process.kill()
        await process.wait()


def options(folder: Path, port: int, tls: ServerTls | None) -> ServerOptions:
    return ServerOptions(folder / "jetstream", PASSWORDS, port=port, tls=tls)


def part(folder: Path, url: str, ca_file: Path | None, seconds: float = 10.0) -> BusPart:
    """An orchestrator's connection, as its process makes it."""
    password = folder / "password"
    password.write_text(PASSWORDS["orchestrator"])
    settings = OrchestratorSettings(
        nats_url=url, nats_password_file=password, nats_ca_file=ca_file, nats_connect_seconds=seconds
    )
    return BusPart(settings, clock=CLOCK, ids=IDS, metrics=Metrics("orchestrator"))


async def connected(made: BusPart, wanted: bool) -> None:
    async with asyncio.timeout(15):
        while made.bus.connected is not wanted:  # noqa: ASYNC110  (the port tells nobody)
            await asyncio.sleep(0.02)


async def test_a_service_connects_encrypted_also_after_the_broker_was_away(tmp_path: Path) -> None:
    (port,) = free_ports(1, IDS)
    tls = certificates(tmp_path / "tls")
    made = part(tmp_path, f"tls://localhost:{port}", tls.ca_file)
    async with broker(tmp_path, options(tmp_path, port, tls)):
        login = Login(f"tls://localhost:{port}", "admin", PASSWORDS["admin"], tls.ca_file)
        await until_done(login, 10.0, ensure)
        await made.start()
        assert made.bus.connected
    try:
        await connected(made, False)
        for _ in range(20):  # tries to connect come and go meanwhile
            await made.bus.notify(subjects.demand("o"), b"dropped")
            await asyncio.sleep(0.05)
        async with broker(tmp_path, options(tmp_path, port, tls)):
            await connected(made, True)
    finally:
        await made.stop(2.0)


async def test_the_broker_hears_nobody_who_does_not_encrypt(tmp_path: Path) -> None:
    (port,) = free_ports(1, IDS)
    async with broker(tmp_path, options(tmp_path, port, certificates(tmp_path / "tls"))):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        greeting: dict[str, Any] = json.loads((await reader.readline()).removeprefix(b"INFO "))
        assert greeting["tls_required"]
        login = {"user": "orchestrator", "pass": PASSWORDS["orchestrator"], "verbose": False}
        writer.write(b"CONNECT " + json.dumps(login).encode() + b"\r\nPING\r\n")
        async with asyncio.timeout(15):
            assert b"PONG" not in await reader.read()
        writer.close()


async def test_a_broker_of_another_authority_is_not_connected_to(tmp_path: Path) -> None:
    (port,) = free_ports(1, IDS)
    others = certificates(tmp_path / "others")
    async with broker(tmp_path, options(tmp_path, port, certificates(tmp_path / "tls"))):
        with pytest.raises(Unavailable):
            await part(tmp_path, f"tls://localhost:{port}", others.ca_file, seconds=1.5).start()


async def test_a_password_is_not_said_to_a_broker_that_does_not_encrypt(tmp_path: Path) -> None:
    heard = bytearray()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id":"x","version":"2.12.0","proto":1,"max_payload":1000,"auth_required":true}\r\n')
        while data := await reader.read(1000):
            heard.extend(data)
        writer.close()

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    tls = certificates(tmp_path / "tls")
    async with server:
        with pytest.raises(Unavailable):
            await part(tmp_path, f"tls://127.0.0.1:{port}", tls.ca_file, seconds=1.5).start()
        with pytest.raises(Unavailable):  # the control: without tls:// it is said
            await part(tmp_path, f"nats://127.0.0.1:{port}", tls.ca_file, seconds=1.5).start()
        assert heard.count(PASSWORDS["orchestrator"].encode()) > 0
        heard.clear()
        with pytest.raises(Unavailable):
            await part(tmp_path, f"tls://127.0.0.1:{port}", tls.ca_file, seconds=1.5).start()
        assert bytes(heard) == b""


async def test_brokers_of_a_cluster_prove_who_they_are_to_each_other(tmp_path: Path) -> None:
    ports = free_ports(6, IDS)
    tls, others = certificates(tmp_path / "tls"), certificates(tmp_path / "others")
    routes = tuple(f"127.0.0.1:{port}" for port in ports[1:6:3])

    def member(number: int, shown: ServerTls) -> ServerOptions:
        client, peer, monitor = ports[3 * number : 3 * number + 3]
        return replace(
            options(tmp_path / f"n{number}", client, shown),
            name=f"n{number}", cluster=Cluster(peer, routes), monitor_port=monitor,
        )  # fmt: skip

    async def routes_of_first() -> int:
        async with httpx.AsyncClient(trust_env=False) as client:
            return int((await client.get(f"http://127.0.0.1:{ports[2]}/routez")).json()["num_routes"])

    async with broker(tmp_path, member(0, tls)):
        async with broker(tmp_path, member(1, others)):
            await asyncio.sleep(2.0)  # longer than a route takes below
            assert await routes_of_first() == 0
        async with broker(tmp_path, member(1, tls)), asyncio.timeout(15):
            while await routes_of_first() == 0:  # noqa: ASYNC110  (another process gives no event)
                await asyncio.sleep(0.05)


def test_what_is_no_authority_is_said(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_text("nothing")
    with pytest.raises(FailedPrecondition, match="holds no certificate") as caught:
        trusting(tmp_path / "ca.crt")
    assert caught.value.reason is ErrorReason.SETTING_INVALID
