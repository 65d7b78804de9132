"""The level `pod` with real runner processes: what a session's runner holds, and when it ends."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from forerun.cli.credentials.certificates import Purpose, issue, new_authority
from forerun.cli.credentials.runner_key import make_runner_key
from forerun.runtime.errors import (
    AlreadyExists,
    ForerunError,
    PermissionDenied,
    Unavailable,
)
from forerun.runtime.network import rpc_errors
from forerun.runtime.tls import Tls
from forerun.sandbox.commands.runner import CommandPlan, GuardLost
from forerun.sandbox.isolation.launch import Bind
from forerun.sandbox.isolation.limits import CommandLimits, LimitReason
from forerun.sandbox.runners.remote import Lost, Remote, tried
from forerun.v1 import runner_pb2, runner_pb2_grpc
from tests.integration.sandbox.runner_processes import (
    Authority,
    RunnerProcess,
    channel,
    ended,
    runners,
    start,
    until_ready,
)
from tests.integration.sandbox.runner_stage import ANN, begun, in_a_pod, plan, pool, runs, taken
from tests.integration.sandbox.test_commands import alive

NOW = datetime.now(UTC)


async def test_a_command_finds_its_workspace_and_all_its_changes_come_back(
    runner: RunnerProcess, authority: Authority, tmp_path: Path
) -> None:
    workspace = tmp_path / "workspace"
    (workspace / "old" / "deep").mkdir(parents=True)
    (workspace / "old" / "deep" / "file").write_text("1")
    (workspace / "same").write_bytes(b"s" * 3_000_000)
    (workspace / "same").chmod(0o640)
    (workspace / "link").symlink_to("same")
    os.utime(workspace / "same", ns=(10**18, 10**18))
    inode = (workspace / "same").stat().st_ino
    script = """
        set -e
        test "$(stat -c '%a %Y %s' same)" = '640 1000000000 3000000'; test "$(readlink link)" = same
        cat old/deep/file; rm -r old; mkdir -p new/empty; head -c 2500000 /dev/zero > new/big
        ln -sf new link; echo x > "$(printf 'a\\377b')"; chmod 500 new/empty; cat; echo err >&2; exit 3
    """
    async with taken(runner, authority) as remote:
        result = await remote.run(CommandPlan(
            ("/bin/sh", "-c", script), {"X": "1"}, Bind(str(workspace)), (), b"stdin", CommandLimits()
        ))  # fmt: skip
        assert (result.stdout.text, result.stderr.text, result.exit_code) == ("1stdin", "err\n", 3)
        assert sorted(os.listdir(os.fsencode(workspace))) == [b"a\xffb", b"link", b"new", b"same"]
        assert (workspace / "same").stat().st_ino == inode, "what did not change is not written"
        assert (workspace / "new" / "big").read_bytes() == bytes(2_500_000)
        assert ((workspace / "new" / "empty").stat().st_mode & 0o777, os.readlink(workspace / "link")) == (0o500, "new")
        again = await remote.run(plan("pwd; ls", workspace))
        assert again.stdout.text.splitlines()[1:] == ["a\ufffdb", "link", "new", "same"]
        assert (await remote.run(plan("pwd", workspace))).stdout.text == again.stdout.text.splitlines()[0] + "\n"


async def test_what_a_command_that_only_reads_writes_is_gone(
    runner: RunnerProcess, authority: Authority, tmp_path: Path
) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    async with taken(runner, authority) as remote:
        read = CommandPlan(
            ("/bin/sh", "-c", "echo 1 > new; cat new"), {}, Bind(str(workspace), read_only=True), (), None,
            CommandLimits(),
        )  # fmt: skip
        assert (await remote.run(read)).stdout.text == "1\n"
        assert list(workspace.iterdir()) == []


async def test_limits_end_a_command_as_at_every_level(
    runner: RunnerProcess, authority: Authority, tmp_path: Path
) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    async with taken(runner, authority) as remote:

        async def limit(script: str, **bounds: float) -> LimitReason | None:
            return (await remote.run(plan(script, workspace, ANN, speculative=False, **bounds))).limit

        assert await limit("sleep 30", wall_seconds=0.3) is LimitReason.TIME
        assert await limit("head -c 3000000 /dev/zero", output_total_bytes=1_000_000) is LimitReason.OUTPUT
        assert await limit("head -c 30000000 /dev/zero > f; sleep 5", disk_bytes=10_000_000) is LimitReason.DISK
        assert await limit("while :; do :; done", cpu_seconds=0.5) is LimitReason.CPU
        assert await limit("for i in $(seq 60); do sleep 20 & done; wait", pids=20) is LimitReason.PIDS
        hog = "x = bytearray(300_000_000); import time; time.sleep(20)"
        assert await limit(f"python3 -c '{hog}'", memory_bytes=100_000_000) is LimitReason.MEMORY
        assert list(workspace.iterdir()) == [], "what a limit ended changes nothing"
        cut = await remote.run(plan("head -c 100000 /dev/zero | tr '\\0' x", output_bytes=1000))
        assert (cut.stdout.total_bytes, cut.stdout.omitted_bytes) == (100_000, 99_000)
        assert "99000 bytes omitted" in cut.stdout.text


async def test_a_cancelled_command_is_dead_when_the_cancellation_returns(
    runner: RunnerProcess, authority: Authority
) -> None:
    async with taken(runner, authority) as remote:
        command = asyncio.ensure_future(remote.run(plan("setsid sleep 761 & sleep 761")))
        await begun("sleep\x00761")
        command.cancel()
        with pytest.raises(asyncio.CancelledError):
            await command
        assert alive("sleep\x00761") == []
        assert (await remote.run(plan("echo on"))).stdout.text == "on\n", "the runner is its session's still"


@in_a_pod
async def test_nothing_outlives_a_command_that_kills_its_guard(runner: RunnerProcess, authority: Authority) -> None:
    async with taken(runner, authority) as remote:
        with pytest.raises(GuardLost):
            await remote.run(plan("(setsid sleep 762 &); kill -9 $PPID; sleep 762"))
        assert alive("sleep\x00762") == []
        with pytest.raises(Lost) as over:
            await remote.run(plan("true"))
        assert not over.value.begun
    assert await runner.over() == 0


async def test_the_first_claim_counts_and_the_runner_ends_with_its_session(
    runner: RunnerProcess, authority: Authority
) -> None:
    tls = authority.worker_tls
    async with taken(runner, authority) as remote:
        with pytest.raises(AlreadyExists):
            await Remote.take(runner.address, tls, b"d" * 32)
        async with channel(authority, runner.address) as other:
            stub = runner_pb2_grpc.RunnerServiceStub(other)
            call = stub.Run(timeout=10.0)
            await call.write(runner_pb2.RunRequest(command=runner_pb2.RunCommand(claim=b"d" * 32, argv=["true"])))
            with pytest.raises(PermissionDenied), rpc_errors():
                await call.read()
        running_on = asyncio.ensure_future(remote.run(plan("sleep 763")))
        await begun("sleep\x00763")
    with pytest.raises(Lost):
        await running_on
    assert await runner.over() == 0
    assert alive("sleep\x00763") == []


async def test_a_runner_that_is_started_again_in_its_place_serves_nobody(
    runner: RunnerProcess, authority: Authority
) -> None:
    """Also where a command has left what looks like a key."""
    assert not (runner.root / "key" / "tls.key").exists()
    async with taken(runner, authority):
        pass
    await runner.over()
    again = start(runner.root)
    try:
        await asyncio.sleep(2.0)
        assert again.process.poll() is None, "it waits for its pod to go"
        with pytest.raises(ForerunError):
            await tried(again.address, authority.worker_tls)
    finally:
        ended(again)
    for name in ("tls.crt", "ca.crt"):
        (runner.root / "key" / name).unlink()
    make_runner_key(new_authority(NOW, "forged"), runner.root / "key", "127.0.0.1", NOW)
    forged = start(runner.root)
    try:
        until_ready(forged)
        with pytest.raises(Unavailable):
            await tried(forged.address, authority.worker_tls)
    finally:
        ended(forged)


async def test_a_runner_that_is_told_to_stop_lets_its_command_end(tmp_path: Path, authority: Authority) -> None:
    with runners(tmp_path / "runners", authority, 2) as found:
        async with pool(found, authority, wait=15.0) as mine:
            command = asyncio.ensure_future(mine.run(plan("echo begun; sleep 1.7691; echo done")))
            await begun("sleep\x001.7691")
            (used,) = [one for one in found if runs(one, "sleep\x001.7691")]
            os.kill(used.pid, signal.SIGTERM)
            await asyncio.sleep(0.2)
            # Nothing new begins in it, and nothing of the session is lost.
            assert (await mine.run(plan("echo elsewhere"))).stdout.text == "elsewhere\n"
            assert (await command).stdout.text == "begun\ndone\n"
            assert await used.over() == 0


async def test_a_session_s_runner_ends_with_its_worker(runner: RunnerProcess, authority: Authority) -> None:
    code = (
        "import asyncio, sys; from pathlib import Path\n"
        "from forerun.runtime.tls import Tls; from forerun.sandbox.runners.remote import Remote\n"
        "folder = Path(sys.argv[2])\n"
        "tls = Tls(certificate_file=folder/'tls.crt', key_file=folder/'tls.key', ca_file=folder/'ca.crt')\n"
        "async def main():\n"
        "    await Remote.take(sys.argv[1], tls, b'w' * 32); print('taken', flush=True); await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    command = [sys.executable, "-c", code, runner.address, str(authority.folder)]
    worker = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        assert worker.stdout is not None
        assert await worker.stdout.readline() == b"taken\n"
    finally:
        worker.kill()
        await worker.wait()
    assert await runner.over() == 0


async def test_only_workers_may_call(runner: RunnerProcess, authority: Authority, tmp_path: Path) -> None:
    """Neither the certificate of a service nor that of another runner opens a runner."""
    now = NOW
    services = new_authority(now)
    for name, pair in (
        ("service", issue(services, ["forerun-services"], now)),
        ("runner", issue(authority.pair, ["127.0.0.1"], now, purposes=(Purpose.SERVER,))),
    ):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "tls.crt").write_bytes(pair.certificate)
        (folder / "tls.key").write_bytes(pair.key)
        tls = Tls(certificate_file=folder / "tls.crt", key_file=folder / "tls.key", ca_file=authority.folder / "ca.crt")
        with pytest.raises(Unavailable):
            await tried(runner.address, tls)
    assert (await tried(runner.address, authority.worker_tls)).isolation == "process"


@in_a_pod
async def test_a_command_finds_no_credentials_and_cannot_become_its_runner(
    runner: RunnerProcess, authority: Authority
) -> None:
    async with taken(runner, authority) as remote:

        async def said(script: str) -> str:
            return (await remote.run(plan(script))).stdout.text

        found = await said(f"grep -rlsaE 'PRIVATE KEY|BEGIN EC' /mnt /run {authority.folder.parent} 2>/dev/null; true")
        assert found == ""
        assert await said("cat /proc/1/environ /proc/1/maps /proc/1/fd/* 2>/dev/null | head -c 100") == ""
        assert "FORERUN" not in await said(
            "cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n' | grep -v ^FORERUN_SESSION"
        )
        attach = (
            "import ctypes; c = ctypes.CDLL(None, use_errno=True); print(c.ptrace(16, 1, 0, 0), ctypes.get_errno())"
        )
        assert await said(f"python3 -c '{attach}'") == "-1 1\n"
        poke = 'open("/proc/1/mem", "r+b")'
        assert "PermissionError" in (await remote.run(plan(f"python3 -c '{poke}'"))).stderr.text
        assert await said("kill -9 1; kill -STOP 1; sleep 0.2; echo on") == "on\n"
    assert await runner.over() == 0
