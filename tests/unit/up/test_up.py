"""The parts of `forerun up` that need no process."""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import os
import signal
import socket
import stat
from pathlib import Path

import pytest
from rich.console import Console

from forerun.cli.up import Platform
from forerun.cli.up.directory import DataDirectory
from forerun.cli.up.layout import SERVICES, Layout, instances
from forerun.cli.up.live import describe
from forerun.cli.up.ports import free_ports, is_free
from forerun.cli.up.processes import Backoff, log_tail
from forerun.client import Totals
from forerun.orchestrator.settings import OrchestratorSettings
from forerun.predictor.settings import PredictorSettings
from forerun.runtime.auth import read_token_file, token_digest
from forerun.runtime.clock import SystemClock
from forerun.runtime.errors import FailedPrecondition, InvalidArgument
from forerun.runtime.ids import SeededIds
from forerun.runtime.policy import policies_of, read_policy_file
from forerun.runtime.secrets import write_secret
from forerun.runtime.settings import load_settings
from forerun.sandbox.settings import SandboxSettings
from forerun.snapshots.settings import SnapshotsSettings
from forerun.verifier.settings import VerifierSettings

KINDS = (SnapshotsSettings, SandboxSettings, VerifierSettings, PredictorSettings, OrchestratorSettings)


def ids() -> SeededIds:
    return SeededIds(1, SystemClock())


def test_ports_are_free_and_outside_of_the_kernels_own_range() -> None:
    ports = free_ports(10, ids())
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert len(set(ports)) == 10 and all(is_free(port) for port in ports)
    if lowest > 21_000:
        assert max(ports) < lowest
    with socket.create_server(("127.0.0.1", ports[0])):
        assert not is_free(ports[0])
        assert ports[0] not in free_ports(10, ids())


def test_a_directory_is_used_by_one_platform_at_a_time(tmp_path: Path) -> None:
    first, second = DataDirectory(tmp_path / "data"), DataDirectory(tmp_path / "data")
    second.look()
    assert list(tmp_path.iterdir()) == []
    first.lock()
    for attempt in (second.lock, second.look):
        with pytest.raises(FailedPrecondition, match="--data"):
            attempt()
    first.release()
    second.look()
    second.lock()
    second.release()
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        for attempt in (DataDirectory(path).lock, DataDirectory(path).look):
            with pytest.raises(FailedPrecondition, match="cannot be used"):
                attempt()


def test_the_users_token_stays_and_the_others_change(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path)
    directory.lock()
    token = directory.prepare({"orchestrator": "one"}, ids())
    internal = directory.internal_token_file.read_text()
    assert directory.prepare({"orchestrator": "two"}, SeededIds(2, SystemClock())) == token
    assert directory.internal_token_file.read_text() != internal
    assert directory.password_file("orchestrator").read_text() == "two\n"
    (caller,) = read_token_file(directory.tokens_file).items()
    assert caller[0] == token_digest(token) and caller[1].tenant == "local" and caller[1].principal
    # The policy file to start with is one that works, and is not written over.
    assert policies_of(read_policy_file(directory.policy_file)).items == ()
    directory.policy_file.write_text("policies: []\n")
    directory.prepare({}, ids())
    assert directory.policy_file.read_text() == "policies: []\n"
    directory.release()


def test_secrets_are_for_their_owner(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("old")
    path.chmod(0o644)
    write_secret(path, "new")
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("new", 0o600)
    assert [one.name for one in tmp_path.iterdir()] == ["secret"]


def test_every_service_understands_what_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = DataDirectory(tmp_path)
    directory.lock()
    directory.prepare(dict.fromkeys(SERVICES, "password"), ids())
    layout = Layout(
        directory=directory,
        policy_file=directory.policy_file,
        ports={name: 7000 + number for number, name in enumerate(SERVICES)},
        metrics_ports={name: 8000 + number for number, name in enumerate(SERVICES)},
        nats_url="nats://127.0.0.1:4222",
    )
    assert [kind.service() for kind in KINDS] == list(SERVICES)
    for kind in KINDS:
        for name, value in layout.environment(kind.service()).items():
            monkeypatch.setenv(name, value)
        assert load_settings(kind).listen_address == layout.address(kind.service())
    assert load_settings(OrchestratorSettings).sandbox_targets == (layout.address("sandbox"),)
    directory.release()


def test_replicas_have_their_own_ports_and_data_and_know_each_other(tmp_path: Path) -> None:
    replicas = {"orchestrator": 2, "sandbox": 2, "verifier": 3}
    names = instances(replicas)
    assert list(names) == [
        "snapshots", "sandbox", "sandbox-2", "verifier", "verifier-2", "verifier-3", "predictor", "orchestrator",
        "orchestrator-2",
    ]  # fmt: skip
    layout = Layout(
        directory=DataDirectory(tmp_path),
        policy_file=tmp_path / "policy.yaml",
        ports={name: 7000 + number for number, name in enumerate(names)},
        metrics_ports={name: 8000 + number for number, name in enumerate(names)},
        nats_url="nats://127.0.0.1:4222",
        replicas=replicas,
    )
    workers = [layout.environment(name) for name in ("sandbox", "sandbox-2")]
    for name in ("LISTEN_ADDRESS", "METRICS_ADDRESS", "DATA_DIR"):
        assert len({one[f"FORERUN_SANDBOX_{name}"] for one in workers}) == 2
    second = layout.environment("orchestrator-2")
    assert json.loads(second["FORERUN_ORCHESTRATOR_SANDBOX_TARGETS"]) == ["127.0.0.1:7001", "127.0.0.1:7002"]
    target = second["FORERUN_ORCHESTRATOR_VERIFIER_TARGET"]
    assert target == "ipv4:127.0.0.1:7003,127.0.0.1:7004,127.0.0.1:7005"
    assert layout.addresses("orchestrator") == ["127.0.0.1:7007", "127.0.0.1:7008"]


@pytest.mark.parametrize("replicas", [{"predictor": 2}, {"snapshots": 2}, {"sandbox": 0}, {"sandbox": 9}, {"x": 1}])
def test_replicas_that_cannot_be(tmp_path: Path, replicas: dict[str, int]) -> None:
    with pytest.raises(InvalidArgument, match=r"orchestrator, sandbox, verifier may have 1 to 8"):
        Platform(tmp_path, replicas=replicas)


def test_pauses_grow_and_end() -> None:
    backoff = Backoff()
    quick = [backoff.next_seconds(0.1) for _ in range(10)]
    assert quick == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0, 5.0, 5.0]
    assert backoff.next_seconds(0.1) is None
    patient = Backoff()
    assert {patient.next_seconds(60.0) for _ in range(100)} == {0.2}
    # Whoever kills it knows why it ended.
    assert {patient.next_seconds(0.1, asked_for=True) for _ in range(100)} == {0.2}


def test_the_end_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert log_tail(log) == ""
    log.write_text("".join(f"line {number}\n" for number in range(10_000)))
    assert log_tail(log).splitlines() == [f"line {number}" for number in range(9_985, 10_000)]


def test_the_line() -> None:
    assert describe(None, 0) == "waiting for the orchestrator"
    empty = describe(Totals(sessions=1), 0)
    assert empty == "1 session · 0 calls · hit rate – · waste 0.0 s · saved (estimate) 0.0 s"
    totals = Totals(
        calls=10, launched=4, outcomes={"ready": 2, "joined": 1, "miss": 1}, speculable_calls=6, sessions=2,
        wasted_seconds=1.25, saved_estimated_seconds=7.5, memo_hits=1, unknown=1,
    )  # fmt: skip
    assert describe(totals, 2) == (
        "2 sessions · 10 calls · hit rate 75 % · waste 1.2 s · saved (estimate) 7.5 s · "
        "1 from memory · 1 with unknown outcome · 2 restarts"
    )


def test_arguments_of_the_command() -> None:
    from forerun.cli.up.command import add_parser

    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    args = parser.parse_args(["up", "--data", "x", "--policy", "y"])
    assert (args.data, args.policy, args.port, args.check) == (Path("x"), Path("y"), 7400, False)
    assert args.replicas == []
    args = parser.parse_args(["up", "--replicas", "orchestrator=2", "--replicas", "sandbox=3"])
    assert dict(args.replicas) == {"orchestrator": 2, "sandbox": 3}
    with pytest.raises(SystemExit):
        parser.parse_args(["up", "--replicas", "orchestrator"])


async def test_a_hangup_restarts_one_process_after_another(tmp_path: Path) -> None:
    from forerun.cli.up.command import roll_when_asked

    class Rolled(Platform):
        times = 0

        async def roll(self) -> None:
            self.times += 1

    platform, screen = Rolled(tmp_path), io.StringIO()
    waiting = asyncio.ensure_future(roll_when_asked(platform, Console(file=screen)))
    await asyncio.sleep(0)
    for times in (1, 2):
        os.kill(os.getpid(), signal.SIGHUP)
        async with asyncio.timeout(5):
            while screen.getvalue().count("all are restarted") < times:  # noqa: ASYNC110  (a screen gives no event)
                await asyncio.sleep(0.01)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert platform.times == 2
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
