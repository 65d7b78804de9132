"""Real isolation levels of this machine."""

import os
from pathlib import Path

import pytest

from forerun.sandbox.commands.runner import CommandPlan, CommandResult, CommandRunner
from forerun.sandbox.isolation.bubblewrap import BubblewrapLevel
from forerun.sandbox.isolation.cgroups import detect
from forerun.sandbox.isolation.gvisor import GvisorLevel
from forerun.sandbox.isolation.launch import Bind
from forerun.sandbox.isolation.levels import Ladder, LevelName, probe
from forerun.sandbox.isolation.limits import CommandLimits
from forerun.sandbox.isolation.process import ProcessLevel

LOUD = "NO ISOLATION ON THIS MACHINE: bubblewrap cannot make namespaces here, so what a sandbox must hold is not tested"


@pytest.fixture
async def ladder() -> Ladder:
    cgroups = detect()
    return await probe([GvisorLevel(), BubblewrapLevel(cgroups=cgroups), ProcessLevel(cgroups=cgroups)])


@pytest.fixture
def strong(ladder: Ladder) -> Ladder:
    """The ladder, where it isolates."""
    if LevelName.BUBBLEWRAP not in ladder.usable:
        pytest.skip(LOUD)
    return ladder


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


@pytest.fixture(params=[LevelName.BUBBLEWRAP, LevelName.PROCESS])
async def bench(request: pytest.FixtureRequest, ladder: Ladder, tmp_path: Path) -> Bench:
    """Every level of the ladder in turn."""
    if request.param not in ladder.usable:
        pytest.skip(LOUD)
    return make_bench(ladder, request.param, tmp_path)


@pytest.fixture
async def sandboxed(strong: Ladder, tmp_path: Path) -> Bench:
    """The level bubblewrap."""
    return make_bench(strong, LevelName.BUBBLEWRAP, tmp_path)


def make_bench(ladder: Ladder, level: LevelName, root: Path) -> Bench:
    for name in ("workspace", "scratch"):
        (root / name).mkdir()
    return Bench(CommandRunner(ladder.usable[level], str(root / "scratch")), root / "workspace")


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))
