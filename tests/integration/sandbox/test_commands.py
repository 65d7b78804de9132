"""Commands at every level: cases C2, C3, C8 and A3."""

import asyncio
import os
from pathlib import Path

import pytest

from forerun.sandbox.isolation.launch import SetupFailed
from forerun.sandbox.isolation.levels import LevelName
from forerun.sandbox.isolation.limits import LimitReason
from tests.integration.sandbox.conftest import Bench, left_of, open_descriptors, processes

_TEN_MEGABYTES = 10_000_000


async def test_a_command_ends_with_its_leading_process(bench: Bench) -> None:
    before = asyncio.get_running_loop().time()
    result = await bench.sh("sleep 30 & echo ready")
    assert asyncio.get_running_loop().time() - before < 2.0
    assert (result.exit_code, result.stdout.text, result.limit) == (0, "ready\n", None)


async def test_standard_input_is_empty_unless_given(bench: Bench) -> None:
    assert (await bench.sh('read x; echo "[$x]"')).stdout.text == "[]\n"
    assert (await bench.run("cat", stdin=b"given")).stdout.text == "given"


@pytest.mark.parametrize(
    "start",
    [
        "sleep 876 &",
        "setsid sleep 876 & sleep 0.1;",
        "(setsid sh -c 'sleep 876 & sleep 876' &) ; sleep 0.1;",
        "nohup sh -c 'trap \"\" TERM HUP; sleep 876' >/dev/null 2>&1 & sleep 0.1;",
    ],
)
async def test_nothing_that_a_command_started_outlives_it(bench: Bench, start: str) -> None:
    before = processes(os.getpid())
    await bench.sh(f"{start} echo done")
    assert alive("sleep\x00876") == []
    assert left_of(processes(os.getpid())) <= before


async def test_a_timed_out_or_cancelled_command_leaves_nothing(bench: Bench) -> None:
    result = await bench.sh("setsid sleep 877 & sleep 877", wall_seconds=0.3)
    assert (result.limit, result.exit_code) == (LimitReason.TIME, None)
    before, mounts = processes(os.getpid()), mount_table()
    running = asyncio.ensure_future(bench.sh("setsid sleep 877 & touch begun; sleep 877"))
    while not (bench.workspace / "begun").exists():  # noqa: ASYNC110  (another process has no event of ours)
        await asyncio.sleep(0.01)
    its_own = processes(os.getpid()) - before
    assert its_own
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert left_of(its_own) == set()
    assert alive("sleep\x00877") == []
    assert mount_table() == mounts
    assert sorted(path.name for path in bench.workspace.parent.rglob("*")) == ["begun", "scratch", "workspace"]


async def test_large_output_is_read_to_the_end_and_cut_in_the_middle(bench: Bench) -> None:
    script = f"import sys; sys.stderr.write('e' * {_TEN_MEGABYTES}); print('done'); sys.exit(7)"
    result = await bench.run("python3", "-c", script, output_bytes=4096)
    assert (result.exit_code, result.stdout.text) == (7, "done\n")
    assert result.stderr.omitted_bytes == _TEN_MEGABYTES - 4096
    assert f"[... {_TEN_MEGABYTES - 4096} bytes omitted ...]" in result.stderr.text


async def test_one_long_line_and_broken_characters(bench: Bench) -> None:
    script = "import sys; w = sys.stdout.buffer.write; w('é'.encode() * 1_000_000); w(b'\\xff\\xc3')"
    result = await bench.run("python3", "-c", script, output_bytes=1001)
    assert "\ufffd" not in result.stdout.text.replace("\ufffd\ufffd", "", 1)
    assert result.stdout.text.endswith("é\ufffd\ufffd")
    assert result.stdout.replaced_bytes == 2
    again = await bench.run("python3", "-c", script, output_bytes=1001)
    assert again.stdout == result.stdout


async def test_endless_output_is_ended(bench: Bench) -> None:
    result = await bench.sh("yes", output_bytes=100, output_total_bytes=1_000_000)
    assert result.limit is LimitReason.OUTPUT


async def test_a_non_zero_exit_is_an_answer(bench: Bench) -> None:
    (bench.workspace / "notes.txt").write_text("horse\n")
    result = await bench.run("grep", "zebra", "notes.txt")
    assert (result.exit_code, result.stdout.text, result.stderr.text, result.limit) == (1, "", "", None)


async def test_exit_statuses_are_the_true_ones(bench: Bench) -> None:
    async def exits(code: int) -> int | None:
        return (await bench.sh(f"exit {code}")).exit_code

    codes = [0, 1, 2, 42, 126, 255]
    assert await asyncio.gather(*map(exits, codes)) == codes
    assert (await bench.sh("kill -9 $$")).exit_code == 128 + 9
    assert (await bench.run("no-such-program")).exit_code == 127


async def test_descriptors_do_not_leak(bench: Bench) -> None:
    rounds = 8 if bench.runner.isolation.name is LevelName.GVISOR else 50
    await bench.sh("true")
    before = open_descriptors()
    for _ in range(rounds):
        results = await asyncio.gather(
            bench.sh("sleep 30", wall_seconds=0.05), bench.run("no-such-program"), bench.sh("echo fine")
        )
        assert results[0].limit is LimitReason.TIME
        assert results[2].stdout.text == "fine\n"
    assert abs(open_descriptors() - before) <= 5


async def test_a_level_that_does_not_come_up_says_so_and_leaks_nothing(sandboxed: Bench) -> None:
    await sandboxed.sh("true")
    before = open_descriptors()
    if sandboxed.runner.isolation.name is LevelName.BUBBLEWRAP:  # gVisor's own kernel has no such bound
        with pytest.raises(SetupFailed, match="cannot be executed"):
            await sandboxed.run("/bin/echo", "x" * 3_000_000)
    sandboxed.workspace.rmdir()
    with pytest.raises(SetupFailed, match="bwrap"):
        await sandboxed.run("/bin/echo")
    assert open_descriptors() == before


def mount_table() -> str:
    return Path("/proc/self/mounts").read_text()


def alive(cmdline: str) -> list[int]:
    """Processes with this command line, and not zombies."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/cmdline") as file:
                if cmdline in file.read():
                    found.append(int(name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found
