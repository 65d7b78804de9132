"""`forerun broker`, as the pods of an installation call it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from forerun.cli.main import main
from forerun.runtime.broker import Broker, new_passwords
from forerun.runtime.bus_nats import NatsBus
from forerun.runtime.bus_nats_wire import NatsOptions
from forerun.runtime.clock import SystemClock
from forerun.runtime.ids import SystemIds
from forerun.runtime.settings import EXIT_MISSING
from forerun.runtime.topology import POLICIES
from forerun.v1 import policy_pb2

ROUTES = ("--route", "nats-0.nats:6222", "--route", "nats-1.nats:6222")


@pytest.fixture
def passwords(tmp_path: Path) -> Path:
    """A folder as a mounted Secret has it."""
    folder = tmp_path / "passwords"
    folder.mkdir()
    for user, password in new_passwords(SystemIds(SystemClock())).items():
        (folder / user).write_text(password)
    return folder


def contents(folder: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in folder.iterdir()}


@pytest.fixture
async def broker(tmp_path: Path, passwords: Path) -> AsyncIterator[Broker]:
    broker = Broker(tmp_path / "broker", contents(passwords))
    await broker.start()
    yield broker
    await broker.stop()


async def run(*arguments: str | Path) -> int:
    """The command has an event loop of its own, as in a process of its own."""
    return await asyncio.to_thread(main, ["broker", *map(str, arguments)])


async def test_a_broker_may_be_set_up_again(broker: Broker, passwords: Path) -> None:
    for _ in range(2):
        assert await run("setup", "--server", broker.url, "--passwords", passwords) == 0


async def test_a_wrong_password_is_named(broker: Broker, passwords: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (passwords / "admin").write_text("guessed")
    assert await run("setup", "--server", broker.url, "--passwords", passwords, "--seconds", "0") != 0
    assert "the broker refuses user 'admin'" in capsys.readouterr().err


async def test_a_policy_file_is_published_and_taken_back(broker: Broker, passwords: Path, tmp_path: Path) -> None:
    assert await run("setup", "--server", broker.url, "--passwords", passwords) == 0
    file = tmp_path / "policy.yaml"
    publish = ["policy", "publish", str(file), "--name", "values", "--server", broker.url, "--password-file"]
    publish += [str(passwords / "operator"), "--seconds", "0"]
    file.write_text("policies: [{name: mine, mode: MODE_EXACT}]")
    assert await asyncio.to_thread(main, publish) == 0
    assert await published(broker) == {"values": ["mine"]}
    file.write_text("policies: [{name: mine, tools: [{tool: t, effect: EFFECT_PURE, consuming: true}]}]")
    assert await asyncio.to_thread(main, publish) != 0
    assert await published(broker) == {"values": ["mine"]}, "a broken file replaced a good one"
    file.write_text("{}")
    assert await asyncio.to_thread(main, publish) == 0
    assert await published(broker) == {}


async def test_models_alone_are_published_and_taken_back(broker: Broker, passwords: Path, tmp_path: Path) -> None:
    """Models have no custom resource, so this is how an installation gets them."""
    assert await run("setup", "--server", broker.url, "--passwords", passwords) == 0
    file = tmp_path / "models.yaml"
    publish = ["policy", "publish", str(file), "--name", "models", "--server", broker.url, "--password-file"]
    publish += [str(passwords / "operator"), "--seconds", "0"]
    file.write_text("models: [{name: m, providers: [{name: house, url: 'http://models:8000/v1', secret: key}]}]")
    assert await asyncio.to_thread(main, publish) == 0
    (held,) = (await stored(broker)).values()
    assert [(model.name, model.providers[0].secret) for model in held.models] == [("m", "key")]
    file.write_text("models: [{name: m}]")
    assert await asyncio.to_thread(main, publish) != 0
    assert list((await stored(broker)).values()) == [held], "a broken file replaced a good one"
    file.write_text("{}")
    assert await asyncio.to_thread(main, publish) == 0
    assert await stored(broker) == {}


async def published(broker: Broker) -> dict[str, list[str]]:
    """Names of policies by the name under which they were published."""
    return {key: [policy.name for policy in file.policies] for key, file in (await stored(broker)).items()}


async def stored(broker: Broker) -> dict[str, policy_pb2.PolicyFile]:
    """What was published, by its name, as an orchestrator reads it."""
    clock = SystemClock()
    options = NatsOptions(servers=(broker.url,), user="orchestrator", password=broker.password("orchestrator"))
    bus = await NatsBus.connect(options, clock=clock, ids=SystemIds(clock), timeout_seconds=10.0)
    try:
        bucket = bus.kv(POLICIES)
        found = {key: await bucket.get(key) for key in await bucket.keys()}
    finally:
        await bus.close(1.0)
    return {key: policy_pb2.PolicyFile.FromString(entry.value) for key, entry in found.items() if entry is not None}


def test_a_missing_password_is_named(passwords: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (passwords / "verifier").unlink()
    assert main(["broker", "config", "--passwords", str(passwords), "--store", "/data"]) == EXIT_MISSING
    assert str(passwords / "verifier") in capsys.readouterr().err


def test_servers_of_a_cluster_know_each_other(passwords: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["broker", "config", "--passwords", str(passwords), "--store", "/data", "--name", "nats-1", *ROUTES]
    assert main([*command, "--sync-always"]) == 0
    config = json.loads(capsys.readouterr().out)
    assert config["server_name"] == "nats-1"
    assert config["cluster"]["routes"] == ["nats://nats-0.nats:6222", "nats://nats-1.nats:6222"]
    assert config["jetstream"]["sync_interval"] == "always"
    users = {user["user"]: user["password"] for user in config["accounts"]["FORERUN"]["users"]}
    assert users == contents(passwords)
