"""The worker is killed: nothing of a sandbox outlives it, and no workspace is left half merged."""

import asyncio
import json
import sys
from pathlib import Path

import pytest

from forerun.runtime.clock import SystemClock
from forerun.sandbox.isolation.levels import LevelName
from forerun.sandbox.owner import Owner
from forerun.sandbox.workspaces.store import Workspaces
from forerun.sandbox.workspaces.strategy import Strategy
from forerun.sandbox.workspaces.workspace import WorkspaceLimits
from tests.integration.sandbox.conftest import left_of, processes
from tests.integration.sandbox.test_commands import alive
from tests.unit.sandbox.fakes import Call, Writing, staged, staging_engine

_FILES = 40


async def start(*arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.fault.sandbox.victim", *arguments,
        stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[3],
    )  # fmt: skip


async def line(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    async with asyncio.timeout(60):
        return (await process.stdout.readline()).decode().strip()


# At the level pod a runner ends with its worker: test_runners has that.
@pytest.mark.parametrize("level", [LevelName.GVISOR, LevelName.BUBBLEWRAP, LevelName.PROCESS])
async def test_no_sandboxed_process_outlives_a_killed_worker(level: LevelName, tmp_path: Path) -> None:
    seconds = str(881 + list(LevelName).index(level))
    victim = await start("command", level.value, str(tmp_path), seconds)
    its_own: set[tuple[int, str]] = set()
    try:
        if (said := await line(victim)) != "running":
            pytest.skip(f"{level.value}: {said}")
        async with asyncio.timeout(20):
            while not (tmp_path / "begun").exists():  # noqa: ASYNC110  (another process has no event of ours)
                await asyncio.sleep(0.01)
        its_own = processes(victim.pid)
        assert len(its_own) >= 3
    finally:
        victim.kill()
        await victim.wait()
    async with asyncio.timeout(10):
        while left_of(its_own) or alive(f"sleep\x00{seconds}"):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("stage", ["_apply", "_committed", "finished"])
async def test_a_call_whose_worker_is_killed_before_it_told_the_end_takes_effect_once(
    stage: str, tmp_path: Path
) -> None:
    victim = await start("execute", stage, str(tmp_path))
    try:
        assert await line(victim) == "here"
    finally:
        victim.kill()
        await victim.wait()
    connector = Writing(Workspaces(tmp_path, Strategy.COPY, WorkspaceLimits(), SystemClock()), line="second")
    connector.go_on.set()
    end = await Call(staging_engine(connector, SystemClock()), staged("e2")).end()
    assert end.result is not None
    assert end.result.content == b"first"
    assert next((tmp_path / "acme" / "s1").glob("base-*/log")).read_text() == "first\n"


@pytest.mark.parametrize("strategy", [Strategy.OVERLAY, Strategy.COPY])
@pytest.mark.parametrize("merges", [1, 4, 9])
async def test_a_killed_merge_is_whole_or_was_never_begun(strategy: Strategy, merges: int, tmp_path: Path) -> None:
    """Every merge writes its number into every file, so half a merge would show two numbers."""
    victim = await start("merge", strategy.value, str(tmp_path), str(_FILES))
    try:
        for _ in range(merges):
            assert await line(victim)
        # Somewhere inside the next merge; each try meets another place.
        await asyncio.sleep(0.003 * merges)
    finally:
        victim.kill()
        await victim.wait()
    workspace = await Workspaces(tmp_path, strategy, WorkspaceLimits(), SystemClock()).of(Owner("t", "s"), None)
    numbers = {path.read_text() for path in next((tmp_path / "t" / "s").glob("base*")).iterdir()}
    assert numbers == {str(workspace.version)}
    assert workspace.version >= merges
    state = json.loads((tmp_path / "t" / "s" / "state.json").read_text())
    assert state["version"] == workspace.version
    assert not (tmp_path / "t" / "s" / "merging.json").exists()
