"""Where the client finds the platform."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from forerun.client import AsyncClient, NotConfigured, local_data_dir
from forerun.client._channel import target_of
from forerun.client._local import resolve


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("FORERUN_ADDRESS", raising=False)
    monkeypatch.delenv("FORERUN_TOKEN", raising=False)
    monkeypatch.setenv("FORERUN_DATA", str(tmp_path))
    return tmp_path


def write_run(data: Path) -> None:
    (data / "token").write_text("local-token\n")
    (data / "run.json").write_text(json.dumps({"address": "127.0.0.1:7400", "token_file": str(data / "token")}))


def test_given_values_come_first(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(data)
    monkeypatch.setenv("FORERUN_ADDRESS", "env:1")
    monkeypatch.setenv("FORERUN_TOKEN", "env-token")
    assert resolve("given:1", "given-token") == ("given:1", "given-token")
    assert resolve(None, None) == ("env:1", "env-token")


def test_the_local_platform_is_found(data: Path) -> None:
    write_run(data)
    assert resolve(None, None) == ("127.0.0.1:7400", "local-token")
    assert resolve("127.0.0.1:7400", None) == ("127.0.0.1:7400", "local-token")


def test_the_local_token_is_not_sent_elsewhere(data: Path) -> None:
    write_run(data)
    with pytest.raises(NotConfigured, match="CREDENTIAL_MISSING"):
        resolve("elsewhere:7400", None)


def test_several_addresses_are_one_target() -> None:
    assert target_of("forerun.example:7400") == "forerun.example:7400"
    assert target_of("127.0.0.1:7400, 127.0.0.1:7401") == "ipv4:127.0.0.1:7400,127.0.0.1:7401"
    assert target_of("[::1]:7400,[::1]:7401") == "ipv6:[::1]:7400,[::1]:7401"


@pytest.mark.parametrize("address", ["one:1,two:2", "127.0.0.1:1,[::1]:2", "127.0.0.1:1,127.0.0.2", "127.0.0.1:1,"])
async def test_several_addresses_that_are_none_are_named(address: str) -> None:
    with pytest.raises(NotConfigured, match=r"ADDRESS_INVALID.*one DNS name"):
        await AsyncClient(address, "token").__aenter__()


async def test_nothing_known_is_said_with_what_to_do(data: Path) -> None:
    with pytest.raises(NotConfigured, match="forerun up"):
        await AsyncClient().__aenter__()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"address": "a:1"}', '{"address": "a:1", "token_file": "/nowhere"}'])
def test_a_broken_run_file_is_named(data: Path, text: str) -> None:
    (data / "run.json").write_text(text)
    with pytest.raises(NotConfigured, match=r"run\.json|forerun up"):
        resolve(None, None)


def test_the_data_directory_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    assert local_data_dir({"FORERUN_DATA": "/x"}) == Path("/x")
    assert local_data_dir({"XDG_STATE_HOME": "/state"}) == Path("/state/forerun")
    assert local_data_dir({}) == Path.home() / ".local" / "state" / "forerun"
