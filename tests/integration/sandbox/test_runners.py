"""The level `pod` with real runner processes: what a session's runner holds, and who gets which."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import grpc.aio
import pytest

from forerun.cli.credentials.certificates import Purpose, issue, new_authority
from forerun.cli.credentials.runner_key import make_runner_key
from forerun.runtime.bus_memory import MemoryBroker, MemoryBus
from forerun.runtime.clock import SystemClock
from forerun.runtime.errors import (
    AlreadyExists,
    ErrorReason,
    FailedPrecondition,
    ForerunError,
    PermissionDenied,
    Unavailable,
)
from forerun.runtime.ids import SystemIds
from forerun.runtime.metrics import Metrics
from forerun.runtime.network import rpc_errors
from forerun.runtime.tasks import TaskScope
from forerun.runtime.tls import Tls
from forerun.sandbox.commands.runner import CommandPlan, GuardLost
from forerun.sandbox.connectors.port import Ended, ToolFault
from forerun.sandbox.demand import Demand
from forerun.sandbox.isolation.launch import Bind, SetupFailed
from forerun.sandbox.isolation.limits import CommandLimits, LimitReason
from forerun.sandbox.owner import Owner
from forerun.sandbox.runners.pool import Runners
from forerun.sandbox.runners.remote import Lost, Remote, tried
from forerun.v1 import common_pb2, runner_pb2, runner_pb2_grpc, sandbox_pb2
from tests.integration.sandbox.runner_processes import (
    AS_IN_A_POD,
    Authority,
    RunnerProcess,
    channel,
    ended,
    runners,
    start,
    until_ready,
)
from tests.integration.sandbox.test_commands import alive
from tests.integration.sandbox.test_service import Worker, running

CLAIM = b"c" * 32
NOW = datetime.now(UTC)
ANN, BOB, EVE = Owner("acme", "s1"), Owner("acme", "s2"), Owner("acme", "s3")
in_a_pod = pytest.mark.skipif(not AS_IN_A_POD, reason="needs root, unshare and setpriv: a process namespace of its own")


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.new(tmp_path / "authority")


@pytest.fixture
def runner(tmp_path: Path, authority: Authority) -> Iterator[RunnerProcess]:
    with runners(tmp_path / "runners", authority, 1) as (made,):
        yield made


def plan(
    script: str, workspace: Path | None = None, owner: Owner = ANN, *, speculative: bool = False, **limits: float
) -> CommandPlan:
    bounds = CommandLimits(**{"pids": 64, "wall_seconds": 20.0, **limits})  # type: ignore[arg-type]
    bind = None if workspace is None else Bind(str(workspace))
    return CommandPlan(("/bin/sh", "-c", script), {}, bind, (), None, bounds, owner, Demand(not speculative))


@asynccontextmanager
async def taken(runner: RunnerProcess, authority: Authority) -> AsyncIterator[Remote]:
    remote = await Remote.take(runner.address, authority.worker_tls, CLAIM)
    try:
        yield remote
    finally:
        await remote.end()


@asynccontextmanager
async def pool(
    found: Sequence[RunnerProcess],
    authority: Authority,
    *,
    wait: float = 1.0,
    idle: float = 60.0,
    kept: int = 0,
    sweeps: bool = True,
) -> AsyncIterator[Runners]:
    clock, tasks = SystemClock(), TaskScope("test", metrics=Metrics("test"))

    async def discover() -> list[str]:
        return [one.address for one in found]

    made = Runners(
        discover, authority.worker_tls, clock=clock, ids=SystemIds(clock), tasks=tasks, wait_seconds=wait,
        idle_seconds=idle, kept=kept,
    )  # fmt: skip
    if sweeps:
        made.start()
    try:
        yield made
    finally:
        await made.close()
        await tasks.stop(1.0)


async def begun(where: str) -> None:
    """A command with this in its arguments runs."""
    for _ in range(500):
        if alive(where):
            return
        await asyncio.sleep(0.02)
    raise AssertionError("the command did not begin")


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
            (used,) = [one for one in found if _runs(one, "sleep\x001.7691")]
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


async def test_two_sessions_have_two_runners(tmp_path: Path, authority: Authority) -> None:
    with runners(tmp_path / "runners", authority, 2) as found:
        async with pool(found, authority) as mine:
            ann = asyncio.ensure_future(mine.run(plan("echo secret > $HOME/ann; sleep 764", owner=ANN)))
            await begun("sleep\x00764")
            if AS_IN_A_POD:
                seen = await mine.run(plan("ps ax | grep -c '[s]leep 764'; grep -rsl secret /mnt; true", owner=BOB))
                assert seen.stdout.text == "0\n"
            assert (await mine.run(plan("echo bob", owner=BOB))).stdout.text == "bob\n"
            with pytest.raises(ToolFault) as full:
                await mine.run(plan("true", owner=Owner("other", "s1"), speculative=True))
            assert full.value.reason is ErrorReason.NO_FREE_RUNNER
            ann.cancel()
            await asyncio.gather(ann, return_exceptions=True)


async def test_no_free_runner_is_a_typed_error_after_a_bounded_wait(
    runner: RunnerProcess, authority: Authority
) -> None:
    async with pool([runner], authority, wait=1.0) as mine:
        busy = asyncio.ensure_future(mine.run(plan("sleep 765", owner=ANN)))
        await begun("sleep\x00765")
        asked_at = time.monotonic()
        with pytest.raises(ToolFault, match="runners_wait_seconds") as refused:
            await mine.run(plan("true", owner=BOB))
        assert 0.9 < time.monotonic() - asked_at < 5.0
        fault = refused.value
        assert (fault.ended, fault.reason, fault.not_started) == (
            Ended.UNAVAILABLE, ErrorReason.NO_FREE_RUNNER, True
        )  # fmt: skip
        assert not busy.done(), "a command that an agent waits for keeps its runner"
        busy.cancel()
        await asyncio.gather(busy, return_exceptions=True)


async def test_work_ahead_of_time_leaves_runners_to_agents_and_gives_its_own_back(
    tmp_path: Path, authority: Authority
) -> None:
    with runners(tmp_path / "runners", authority, 2) as found:
        async with pool(found[:1], authority, kept=1) as mine:
            with pytest.raises(ToolFault, match="kept"):
                await mine.run(plan("true", owner=ANN, speculative=True))
        listed = [found[0]]
        async with pool(listed, authority, wait=20.0) as mine:
            ahead = asyncio.ensure_future(mine.run(plan("sleep 766", owner=ANN, speculative=True)))
            await begun("sleep\x00766")
            asked = asyncio.ensure_future(mine.run(plan("echo bob", owner=BOB)))
            with pytest.raises(ToolFault) as preempted:
                await ahead
            assert preempted.value.reason is ErrorReason.PREEMPTED
            assert await found[0].over() == 0
            listed.append(found[1])  # the one that a cluster starts in its place
            assert (await asked).stdout.text == "bob\n"


async def test_a_promoted_command_keeps_its_runner(runner: RunnerProcess, authority: Authority) -> None:
    async with pool([runner], authority, wait=1.0) as mine:
        ahead = plan("echo ann; sleep 768", owner=ANN, speculative=True)
        running = asyncio.ensure_future(mine.run(ahead))
        await begun("sleep\x00768")
        ahead.demand.asked_for = True
        with pytest.raises(ToolFault) as refused:
            await mine.run(plan("true", owner=BOB))
        assert refused.value.reason is ErrorReason.NO_FREE_RUNNER
        assert not running.done()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_an_idle_session_lets_go_and_takes_another_one(tmp_path: Path, authority: Authority) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    with runners(tmp_path / "runners", authority, 2) as found:
        async with pool(found, authority, wait=15.0, idle=0.5) as mine:
            await mine.run(plan("echo 1 > one", workspace))
            codes = await asyncio.wait_for(_first_over(found), 15.0)
            assert codes == 0
            assert (await mine.run(plan("cat one", workspace))).stdout.text == "1\n"


async def _first_over(found: Sequence[RunnerProcess]) -> int:
    while True:
        for one in found:
            if (code := one.process.poll()) is not None:
                return code
        await asyncio.sleep(0.02)


async def test_a_runner_that_dies_under_a_command_is_an_end_that_nobody_knows(
    tmp_path: Path, authority: Authority
) -> None:
    with runners(tmp_path / "runners", authority, 2) as found:
        async with pool(found, authority, wait=15.0) as mine:
            command = asyncio.ensure_future(mine.run(plan("echo begun; sleep 767")))
            await begun("sleep\x00767")
            (used,) = [one for one in found if _runs(one, "sleep\x00767")]
            used.kill()
            with pytest.raises(ToolFault) as lost:
                await command
            assert (lost.value.ended, lost.value.not_started) == (Ended.UNAVAILABLE, False)
            assert alive("sleep\x00767") == [] or not AS_IN_A_POD
            # One that dies while nothing runs is not even noticed.
            assert (await mine.run(plan("echo on"))).stdout.text == "on\n"


def _runs(one: RunnerProcess, where: str) -> bool:
    """A command with this in its arguments runs below the runner; others of its children are none of ours."""
    pending = [one.pid]
    while pending:
        pid = pending.pop()
        with suppress(FileNotFoundError, ProcessLookupError):
            if where.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                return True
            for task in Path(f"/proc/{pid}/task").iterdir():
                pending += map(int, (task / "children").read_text().split())
    return False


async def _holds_no_workspace(found: Sequence[RunnerProcess], authority: Authority, workspace: Path, why: str) -> None:
    """It is said why, and the session keeps its runner."""
    async with pool(found, authority, wait=15.0) as mine:
        with pytest.raises(SetupFailed, match=why):
            await mine.run(plan("true", workspace))
        assert (await mine.run(plan("echo on"))).stdout.text == "on\n"
        assert [one.process.poll() for one in found] == [None]


async def test_a_workspace_that_no_runner_takes_costs_none(
    runner: RunnerProcess, authority: Authority, tmp_path: Path
) -> None:
    deep = tmp_path / "workspace"
    deep.joinpath(*["d"] * 140).mkdir(parents=True)
    await _holds_no_workspace([runner], authority, deep, "cannot hold the workspace: .*too long")


@in_a_pod
async def test_a_workspace_that_fits_onto_no_disk_costs_no_runner(authority: Authority, tmp_path: Path) -> None:
    (workspace := tmp_path / "workspace").mkdir()
    for number in range(12):
        (workspace / str(number)).write_bytes(os.urandom(2**20))
    with runners(tmp_path / "runners", authority, 1, disk_mib=4) as found:
        await _holds_no_workspace(found, authority, workspace, "disk is full .*scratchSize")


async def test_what_a_runner_says_is_bounded(authority: Authority, tmp_path: Path) -> None:
    """A command that became its runner sends more than any command may write, and names that lead elsewhere."""
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    async with lying(authority, tmp_path, output=40) as address:
        remote = await Remote.take(address, authority.worker_tls, CLAIM)
        assert (await remote.run(plan("true", workspace, output_total_bytes=1_000_000))).limit is LimitReason.OUTPUT
        await remote.end()
    for path in (b"../out", b"a/../../out", b"/etc/out", b"link/out"):
        (workspace / "link").unlink(missing_ok=True)
        (workspace / "link").symlink_to(tmp_path)
        async with lying(authority, tmp_path, path=path) as address:
            remote = await Remote.take(address, authority.worker_tls, CLAIM)
            with pytest.raises(Lost):
                await remote.run(plan("true", workspace))
            await remote.end()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "end",
    [
        runner_pb2.RunEnded(exit_code=-1),
        runner_pb2.RunEnded(exit_code=2**31 - 1),
        runner_pb2.RunEnded(exit_code=0, cpu_seconds=float("nan")),
        runner_pb2.RunEnded(exit_code=0, cpu_seconds=float("inf")),
        runner_pb2.RunEnded(exit_code=0, cpu_seconds=-1.0),
        runner_pb2.RunEnded(),
    ],
)
async def test_an_end_that_no_command_has_is_a_lost_runner(
    end: runner_pb2.RunEnded, authority: Authority, tmp_path: Path
) -> None:
    async with lying(authority, tmp_path, end=end) as address:
        remote = await Remote.take(address, authority.worker_tls, CLAIM)
        with pytest.raises(Lost) as lost:
            await remote.run(plan("true"))
        assert lost.value.begun
        await remote.end()


async def test_the_words_of_a_runner_are_bounded(authority: Authority, tmp_path: Path) -> None:
    async with lying(authority, tmp_path, end=runner_pb2.RunEnded(setup_failure="x" * 1_000_000)) as address:
        remote = await Remote.take(address, authority.worker_tls, CLAIM)
        with pytest.raises(SetupFailed) as failed:
            await remote.run(plan("true"))
        assert len(str(failed.value)) == 1000
        await remote.end()
    many = runner_pb2.RunEnded(exit_code=0, stdout=runner_pb2.RunStream(total_bytes=1, replaced_bytes=2**60))
    async with lying(authority, tmp_path, end=many) as address:
        remote = await Remote.take(address, authority.worker_tls, CLAIM)
        assert (await remote.run(plan("true"))).stdout.replaced_bytes == 0
        await remote.end()


async def test_changes_that_were_not_asked_for_are_a_lost_runner(authority: Authority, tmp_path: Path) -> None:
    """Also of a command that only reads: nobody counts what is thrown away."""
    (workspace := tmp_path / "workspace").mkdir()
    bind = Bind(str(workspace), read_only=True)
    command = CommandPlan(("true",), {}, bind, (), None, CommandLimits(), ANN)
    async with lying(authority, tmp_path, path=b"new") as address:
        remote = await Remote.take(address, authority.worker_tls, CLAIM)
        with pytest.raises(Lost):
            await remote.run(command)
        await remote.end()
    assert not list(workspace.iterdir())


async def test_a_runner_that_was_let_go_of_begins_nothing(runner: RunnerProcess, authority: Authority) -> None:
    """Between the moment at which it was taken and the command's begin it may be given up."""
    async with taken(runner, authority) as remote:
        await remote.end()
        with pytest.raises(Lost) as lost:
            await remote.run(plan("true"))
        assert not lost.value.begun


async def test_sessions_come_and_go_while_idle_runners_are_let_go_of(tmp_path: Path, authority: Authority) -> None:
    with runners(tmp_path / "runners", authority, 4) as found:
        async with pool(found, authority, wait=15.0, idle=0.01, sweeps=False) as mine:
            for owner in (ANN, BOB, EVE):
                await mine.run(plan("true", owner=owner))
            await asyncio.sleep(0.02)
            # While Ann's runner is being ended Bob's session ends, and Eve's, found idle as well, goes on.
            _, _, result = await asyncio.gather(
                mine.let_go_of_idle(), mine.close_session(BOB), mine.run(plan("echo eve", owner=EVE))
            )
            assert result.stdout.text == "eve\n"


async def test_a_runner_that_becomes_idle_later_is_given_up_too(tmp_path: Path, authority: Authority) -> None:
    with runners(tmp_path / "runners", authority, 2) as found:
        listed = [found[0]]
        async with pool(listed, authority, wait=20.0) as mine:
            ann = asyncio.ensure_future(mine.run(plan("sleep 1.769; echo ann", owner=ANN)))
            await begun("sleep\x001.769")
            bob = asyncio.ensure_future(mine.run(plan("echo bob", owner=BOB)))
            assert (await ann).stdout.text == "ann\n"
            assert await found[0].over() == 0
            listed.append(found[1])  # the one that a cluster starts in its place
            assert (await bob).stdout.text == "bob\n"


@asynccontextmanager
async def lying(
    authority: Authority,
    folder: Path,
    *,
    output: int = 0,
    path: bytes = b"",
    end: runner_pb2.RunEnded | None = None,
) -> AsyncIterator[str]:
    class Liar(runner_pb2_grpc.RunnerServiceServicer):
        async def Try(self, request: runner_pb2.TryRequest, context: object) -> runner_pb2.TryResponse:  # noqa: N802
            return runner_pb2.TryResponse()

        async def Take(  # noqa: N802
            self, request: runner_pb2.TakeRequest, context: object
        ) -> AsyncIterator[runner_pb2.TakeResponse]:
            yield runner_pb2.TakeResponse()
            await asyncio.sleep(30)

        async def Run(  # noqa: N802
            self, request_iterator: AsyncIterator[runner_pb2.RunRequest], context: object
        ) -> AsyncIterator[runner_pb2.RunResponse]:
            await anext(request_iterator)
            yield runner_pb2.RunResponse(accepted=runner_pb2.RunAccepted())
            async for request in request_iterator:
                if request.WhichOneof("part") == "begin":
                    break
            for _ in range(output):
                yield runner_pb2.RunResponse(output=runner_pb2.RunOutput(data=b"x" * 1_000_000))
            if path:
                entry = runner_pb2.TreeEntry(path=path, kind=runner_pb2.TREE_KIND_FILE, mode=0o644, content=b"out")
                yield runner_pb2.RunResponse(changes=runner_pb2.TreePart(entries=[entry]))
            yield runner_pb2.RunResponse(ended=end or runner_pb2.RunEnded(exit_code=0))

    pair = issue(authority.pair, ["127.0.0.1"], NOW, purposes=(Purpose.SERVER,))
    server = grpc.aio.server()
    runner_pb2_grpc.add_RunnerServiceServicer_to_server(Liar(), server)
    port = server.add_secure_port(
        "127.0.0.1:0",
        grpc.ssl_server_credentials(
            [(pair.key, pair.certificate)], root_certificates=authority.pair.certificate, require_client_auth=True
        ),
    )
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0.1)


@asynccontextmanager
async def worker_with(
    found: Sequence[RunnerProcess], authority: Authority, folder: Path, **settings: object
) -> AsyncIterator[Worker]:
    bus = MemoryBus(MemoryBroker(SystemClock()))
    more = {
        "isolation": "pod",
        "runners": ",".join(one.address for one in found),
        "runners_certificate_file": authority.folder / "tls.crt",
        "runners_key_file": authority.folder / "tls.key",
        "runners_ca_file": authority.folder / "ca.crt",
        "runners_wait_seconds": 2.0,
        "runners_kept": 0,
        **settings,
    }
    os.mkdir(folder)
    async with running(folder, bus, **more) as worker:  # type: ignore[arg-type]
        yield worker


async def test_a_worker_s_calls_run_in_runners(tmp_path: Path, authority: Authority) -> None:
    ahead = {"priority": sandbox_pb2.PRIORITY_SPECULATIVE}
    with runners(tmp_path / "runners", authority, 2) as found:
        async with worker_with(found, authority, tmp_path / "worker") as worker:
            described = await worker.stub.Describe(sandbox_pb2.DescribeRequest(), timeout=5.0)
            assert described.isolation == "pod"
            (pod,) = [level for level in described.levels if level.name == "pod"]
            assert pod.available
            assert "trial command ran in a runner" in pod.why
            assert "each command in it at level process" in pod.gives
            # Forks as at every other level: a merge shows, what was ahead does not before it.
            assert (await worker.sh("echo more >> file; cat file", fork="f1", merge_on_success=True))[
                0
            ] == "seeded\nmore\n"
            await worker.sh("echo ahead > ahead", fork="g1", **ahead)
            assert "No such file" in (await worker.sh("cat ahead"))[0]
            with rpc_errors():
                await worker.stub.MergeFork(
                    sandbox_pb2.MergeForkRequest(session="s1", fork="g1"), timeout=5.0, metadata=worker.metadata
                )
            assert (await worker.sh("cat ahead file"))[0] == "ahead\nseeded\nmore\n"
            await asyncio.gather(
                *(worker.sh(f"echo {n} > n{n}", fork=f"p{n}", merge_on_success=True) for n in range(4))
            )
            assert (await worker.sh("cat n?"))[0] == "0\n1\n2\n3\n"
            assert (await worker.sh("cat file", session="s2"))[0] == "seeded\n", "another session's workspace"
            # A time limit, and a session's end.
            _, late = await worker.sh("sleep 768", timeout_seconds=0.5)
            assert late.status == common_pb2.CALL_STATUS_TIMEOUT
            assert alive("sleep\x00768") == []
            # Nobody starts other runners here: the third session is told what to do.
            _, none = await worker.sh("true", session="s3")
            assert (none.status, none.not_started) == (common_pb2.CALL_STATUS_UNAVAILABLE, True)
            assert none.failure.reason == "NO_FREE_RUNNER"
            assert none.failure.metadata["setting"] == "FORERUN_SANDBOX_RUNNERS_WAIT_SECONDS"
            for session in ("s1", "s2", "s3"):
                await worker.stub.CloseSession(
                    sandbox_pb2.CloseSessionRequest(session=session), timeout=5.0, metadata=worker.metadata
                )
        for one in found:
            await one.over()


async def test_a_worker_refuses_to_start_without_its_level(tmp_path: Path, authority: Authority) -> None:
    from forerun.sandbox.runners import pool as module

    patch = pytest.MonkeyPatch()
    patch.setattr(module, "TRIAL_SECONDS", 0.3)
    with runners(tmp_path / "runners", authority, 1) as found:
        ended(found[0])
        try:
            with pytest.raises(FailedPrecondition, match=r"isolation is pod.*no command runs in a runner"):
                async with worker_with(found, authority, tmp_path / "worker"):
                    pass
        finally:
            patch.undo()


async def test_trusted_servers_and_stronger_wishes(tmp_path: Path, authority: Authority) -> None:
    with runners(tmp_path / "runners", authority, 1) as found:
        async with worker_with(found, authority, tmp_path / "trusting", trusted_servers="other, bench") as worker:
            assert str(tmp_path / "trusting" / "data") in (await worker.sh("pwd"))[0]
        assert found[0].process.poll() is None, "nobody has taken it"
