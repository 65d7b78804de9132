"""What a sandbox holds: cases C5 and C9. Loads are bounded by themselves, so that a defect cannot harm the machine."""

import asyncio
import os
import re
import socket
from pathlib import Path

import pytest

from forerun.runtime.errors import ErrorReason, FailedPrecondition
from forerun.sandbox.isolation.cgroups import detect
from forerun.sandbox.isolation.levels import Choice, Ladder, LevelName, probe
from forerun.sandbox.isolation.limits import LimitReason
from forerun.sandbox.isolation.machine import machine_ladder
from forerun.sandbox.isolation.process import ProcessLevel
from tests.integration.sandbox.conftest import Bench, make_bench

_MIB = 1024 * 1024
# Starts processes as fast as it can, but never more than 200 in all.
_MANY = (
    "import os,time\nfor _ in range(200):\n  if os.fork() == 0:\n    time.sleep(20)\n    os._exit(0)\ntime.sleep(20)"
)


async def test_too_many_processes(bench: Bench) -> None:
    result = await bench.run("python3", "-c", _MANY, pids=20)
    assert (result.limit, result.exit_code) == (LimitReason.PIDS, None)


async def test_too_many_threads(bench: Bench) -> None:
    script = "import threading,time\nfor _ in range(100): threading.Thread(target=time.sleep, args=(20,)).start()"
    assert (await bench.run("python3", "-c", script, pids=20)).limit is LimitReason.PIDS


async def test_too_much_memory(bench: Bench) -> None:
    script = f"x = b'x' * {256 * _MIB}\nimport time; time.sleep(5)"
    assert (await bench.run("python3", "-c", script, memory_bytes=128 * _MIB)).limit is LimitReason.MEMORY


async def test_memory_of_all_processes_together(bench: Bench) -> None:
    one = f"x = b'x' * {60 * _MIB}; import time; time.sleep(5)"
    script = f'for i in 1 2 3 4; do python3 -c "{one}" & done; wait'
    assert (await bench.sh(script, memory_bytes=128 * _MIB)).limit is LimitReason.MEMORY


@pytest.mark.parametrize(
    "script",
    [
        "head -c 50000000 /dev/zero > big",
        "head -c 50000000 /dev/zero > $TMPDIR/big",
        "for i in 1 2 3 4 5 6; do head -c 9000000 /dev/zero > small$i; done; sleep 5",
    ],
)
async def test_too_much_disk(bench: Bench, script: str) -> None:
    assert (await bench.sh(script, disk_bytes=20_000_000)).limit is LimitReason.DISK


async def test_too_much_cpu(bench: Bench) -> None:
    result = await bench.sh("while :; do :; done", cpu_seconds=0.4)
    assert result.limit is LimitReason.CPU
    assert result.cpu_seconds is not None and result.cpu_seconds > 0.3


async def test_cpu_of_ended_children_counts(bench: Bench) -> None:
    burn = 'python3 -c "import time\nwhile time.process_time() < 0.15: pass"'
    assert (await bench.sh(f"while :; do {burn}; done", cpu_seconds=0.8)).limit is LimitReason.CPU


async def test_the_environment_is_an_allow_list(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOST_API_KEY", "canary")
    result = await bench.run("env", environment={"GIVEN": "yes"})
    assert "canary" not in result.stdout.text
    assert "GIVEN=yes" in result.stdout.text.splitlines()


async def test_a_sandbox_sees_nothing_of_the_host(sandboxed: Bench, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("canary")
    looked = await sandboxed.sh(
        f"cat {tmp_path}/secret /etc/shadow /proc/1/environ; ls /run /var/run/secrets /root /home; "
        "cat /proc/1/cmdline | tr '\\0' ' '; ls /proc | grep -c '^[0-9]'; id -u; hostname; echo $$ $PPID"
    )
    text = looked.stdout.text + looked.stderr.text
    assert "canary" not in text
    assert "scratch" not in text and "--bind" not in text
    assert "No such file or directory" in looked.stderr.text
    assert looked.stdout.text.splitlines()[-2] == "sandbox"


async def test_a_sandbox_writes_to_its_workspace_only(sandboxed: Bench) -> None:
    places = "/ /usr /etc /dev /run /var"
    tried = await sandboxed.sh(
        f"for place in {places}; do (echo x > $place/probe) 2>/dev/null && echo $place; done; true"
    )
    assert (tried.exit_code, tried.stdout.text) == (0, "")
    assert (await sandboxed.sh("echo x > here && echo y > /tmp/there && echo z > /dev/shm/other")).exit_code == 0
    assert (sandboxed.workspace / "here").read_text() == "x\n"
    assert "there" not in os.listdir("/tmp")


async def test_a_sandbox_has_no_network(sandboxed: Bench) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        script = f"import socket; socket.create_connection(('127.0.0.1', {port}), 2)"
        result = await sandboxed.run("python3", "-c", script)
    assert result.exit_code == 1
    assert "ConnectionRefusedError" in result.stderr.text or "unreachable" in result.stderr.text


async def test_a_sandbox_may_not_make_namespaces_or_trace(shared_kernel: Bench) -> None:
    script = (
        "import ctypes, socket\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "for number in (101, 272, 165, 250, 321, 425):\n"
        "    print(libc.syscall(number, 0, 0, 0, 0, 0), ctypes.get_errno())\n"
        "try:\n    socket.socket(40, socket.SOCK_STREAM)\n"
        "except OSError as error:\n    print(error.errno)\n"
    )
    if os.uname().machine != "x86_64":
        pytest.skip("the call numbers of this test are those of x86-64")
    result = await shared_kernel.run("python3", "-c", script)
    assert result.stdout.text == "-1 1\n" * 6 + "1\n"


async def test_a_command_in_gvisor_has_a_kernel_of_its_own(own_kernel: Bench) -> None:
    told = await own_kernel.sh("uname -r; cat /proc/version; grep -i '^Cap[PEB]' /proc/self/status")
    assert os.uname().release not in told.stdout.text
    assert "gvisor" in told.stdout.text
    assert told.stdout.text.count("0000000000000000") == 3
    # Its root may make namespaces and mounts there: they are objects of that kernel, and lead nowhere.
    inside = await own_kernel.sh(
        "unshare -rm sh -c 'mount -t proc proc /proc && cat /proc/1/cmdline; ls /root /home /etc'"
    )
    assert "bwrap" not in inside.stdout.text and "runsc" not in inside.stdout.text
    assert "shadow" not in inside.stdout.text


async def test_a_level_that_does_not_come_up_is_reported_with_its_reason(tmp_path: Path) -> None:
    """What calls itself runsc and is none: the next level is taken, and what asks for this one is told why not."""
    broken = tmp_path / "runsc"
    broken.write_text("not a program")
    broken.chmod(0o755)
    found = await machine_ladder(str(broken))
    assert (found.levels[0].name, found.levels[0].available) == (LevelName.GVISOR, False)
    assert f"{broken} cannot isolate here" in found.levels[0].why
    assert found.in_use is not LevelName.GVISOR
    absent = await machine_ladder(str(tmp_path / "absent"))
    assert "is not installed" in absent.levels[0].why
    with pytest.raises(FailedPrecondition, match=r"isolation is gvisor.*is not installed"):
        absent.chosen(Choice.GVISOR)


async def test_python_and_its_output_repeat(sandboxed: Bench) -> None:
    script = "import sqlite3, ssl, os, sys; print({'a', 'b', 'c', 'd'}, os.getpid(), os.getcwd(), sys.executable)"
    results = [await sandboxed.run("python3", "-c", script) for _ in range(3)]
    assert results[0].exit_code == 0, results[0].stderr.text
    assert len({result.stdout.text for result in results}) == 1


async def test_the_ladder_is_reported_strongest_first(ladder: Ladder) -> None:
    assert [level.name for level in ladder.levels] == [LevelName.GVISOR, LevelName.BUBBLEWRAP, LevelName.PROCESS]
    assert ladder.levels[-1].available
    assert "not: isolation of files, network" in ladder.levels[-1].gives
    if ladder.levels[0].available:
        assert re.search(r"starting and ending one took \d+\.\d+ s", ladder.levels[0].why)


async def test_control_groups_are_gone_when_their_commands_are(tmp_path: Path) -> None:
    cgroups = detect()
    if cgroups is None:
        pytest.skip("this process may not make control groups")
    ladder = await probe([ProcessLevel(cgroups=cgroups)])
    bench = make_bench(ladder, LevelName.PROCESS, tmp_path)
    results = await asyncio.gather(*(bench.sh("sleep 0.2 & echo fine") for _ in range(4)))
    assert [result.stdout.text for result in results] == ["fine\n"] * 4
    # The kernel may let go of a dead process a moment later; the next group takes the left ones away.
    async with asyncio.timeout(10):
        while True:
            cgroups.make(pids=1, memory_bytes=1 << 20).remove()
            left = [name for mount in cgroups.mounts for name in os.listdir(mount) if f"-{os.getpid()}-" in name]
            if not left:
                break
            await asyncio.sleep(0.05)


async def test_too_weak_a_machine_is_refused_by_name() -> None:
    weak = await probe([ProcessLevel()])
    with pytest.raises(FailedPrecondition) as refused:
        weak.choose(LevelName.BUBBLEWRAP)
    assert refused.value.reason is ErrorReason.ISOLATION_UNAVAILABLE
    assert refused.value.metadata["available"] == "process"
