"""Real isolation levels of this machine."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from forerun.sandbox.commands.runner import CommandPlan, CommandResult, CommandRunner
from forerun.sandbox.isolation.launch import Bind
from forerun.sandbox.isolation.levels import Ladder, LevelName
from forerun.sandbox.isolation.limits import CommandLimits
from forerun.sandbox.isolation.machine import machine_ladder
from tests.integration.sandbox.runner_processes import Authority, RunnerProcess, runners

LOUD = "NO ISOLATION ON THIS MACHINE: bubblewrap cannot make namespaces here, so what a sandbox must hold is not tested"


# The one that `make gvisor` builds, else one that is installed.
_BUILT = Path(__file__).parents[3] / ".tools" / "bin" / "runsc"
RUNSC = str(_BUILT) if _BUILT.exists() else "runsc"


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def ladder() -> Ladder:
    """Tried once: levels keep nothing between commands."""
    return await machine_ladder(RUNSC)


def need(ladder: Ladder, level: LevelName) -> None:
    """Skips where a level cannot be had, and says why."""
    if level in ladder.usable:
        return
    if level is LevelName.BUBBLEWRAP:
        pytest.skip(LOUD)
    pytest.skip(f"level {level.value}: {next(one.why for one in ladder.levels if one.name is level)}")


class Bench:
    """Runs commands at one level in one workspace."""

    def __init__(self, runner: CommandRunner, workspace: Path) -> None:
        self.runner = runner
        self.workspace = workspace

    async def run(
        self, *argv: str, stdin: bytes | None = None, environment: dict[str, str] | None = None, **limits: float | None
    ) -> CommandResult:
        # Small enough for a shared machine, whatever a test does.
        bounds = CommandLimits(**{"pids": 64, "wall_seconds": 20.0, **limits})  # type: ignore[arg-type]
        return await self.runner.run(
            CommandPlan(
                argv=argv,
                environment=environment or {},
                workspace=Bind(str(self.workspace)),
                watched=(str(self.workspace),),
                stdin=stdin,
                limits=bounds,
            )
        )

    async def sh(self, script: str, **limits: float | None) -> CommandResult:
        return await self.run("/bin/sh", "-c", script, stdin=None, environment=None, **limits)


@pytest.fixture(params=[LevelName.GVISOR, LevelName.BUBBLEWRAP, LevelName.PROCESS])
async def bench(request: pytest.FixtureRequest, ladder: Ladder, tmp_path: Path) -> Bench:
    """Every level of this machine in turn."""
    need(ladder, request.param)
    return make_bench(ladder, request.param, tmp_path)


@pytest.fixture(params=[LevelName.GVISOR, LevelName.BUBBLEWRAP])
async def sandboxed(request: pytest.FixtureRequest, ladder: Ladder, tmp_path: Path) -> Bench:
    """Every level that isolates."""
    need(ladder, request.param)
    return make_bench(ladder, request.param, tmp_path)


@pytest.fixture
async def shared_kernel(ladder: Ladder, tmp_path: Path) -> Bench:
    """The level bubblewrap, which filters what reaches the host's kernel."""
    need(ladder, LevelName.BUBBLEWRAP)
    return make_bench(ladder, LevelName.BUBBLEWRAP, tmp_path)


@pytest.fixture
async def own_kernel(ladder: Ladder, tmp_path: Path) -> Bench:
    """The level gvisor."""
    need(ladder, LevelName.GVISOR)
    return make_bench(ladder, LevelName.GVISOR, tmp_path)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.new(tmp_path / "authority")


@pytest.fixture
def runner(tmp_path: Path, authority: Authority) -> Iterator[RunnerProcess]:
    with runners(tmp_path / "runners", authority, 1) as (made,):
        yield made


def make_bench(ladder: Ladder, level: LevelName, root: Path) -> Bench:
    for name in ("workspace", "scratch"):
        (root / name).mkdir()
    return Bench(CommandRunner(ladder.usable[level], str(root / "scratch")), root / "workspace")


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def processes(root: int) -> set[tuple[int, str]]:
    """Everything below a process, as (pid, start time), which no later process has again."""
    found: set[tuple[int, str]] = set()
    pending = [root]
    while pending:
        pid = pending.pop()
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for task in os.listdir(f"/proc/{pid}/task"):
                children = Path(f"/proc/{pid}/task/{task}/children").read_text().split()
                found |= {(int(child), _started(int(child))) for child in children}
                pending += map(int, children)
    return {(pid, started) for pid, started in found if started}


def left_of(known: set[tuple[int, str]]) -> set[tuple[int, str]]:
    """Those that are still there."""
    return {(pid, started) for pid, started in known if _started(pid) == started}


def _started(pid: int) -> str:
    """When a process was started; empty where it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return "" if fields[0] in "ZX" else fields[19]
