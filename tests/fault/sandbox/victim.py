"""A worker's part that the fault tests kill: runs a command, or merges without end."""

import asyncio
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path

from forerun.runtime.clock import SystemClock
from forerun.sandbox.commands.runner import CommandPlan, CommandRunner
from forerun.sandbox.isolation.launch import Bind, Overlay
from forerun.sandbox.isolation.levels import LevelName
from forerun.sandbox.isolation.limits import CommandLimits
from forerun.sandbox.isolation.machine import machine_ladder
from forerun.sandbox.owner import Owner
from forerun.sandbox.workspaces.store import Workspaces
from forerun.sandbox.workspaces.strategy import Strategy
from forerun.sandbox.workspaces.workspace import Workspace, WorkspaceLimits
from tests.integration.sandbox.conftest import RUNSC
from tests.unit.sandbox.fakes import Call, Writing, staged, staging_engine


async def command(level: str, root: str, seconds: str) -> None:
    ladder = await machine_ladder(RUNSC)
    if LevelName(level) not in ladder.usable:
        print(next(one.why for one in ladder.levels if one.name == level), flush=True)
        return
    print("running", flush=True)
    script = (
        f"setsid sleep {seconds} & (setsid sh -c 'sleep {seconds} & touch begun; sleep {seconds}' &); sleep {seconds}"
    )
    await CommandRunner(ladder.usable[LevelName(level)], root).run(
        CommandPlan(("/bin/sh", "-c", script), {}, Bind(root), (), None, CommandLimits())
    )


async def merge(strategy: str, root: str, files: str) -> None:
    workspaces = Workspaces(Path(root), Strategy(strategy), WorkspaceLimits(), SystemClock())
    workspace = await workspaces.of(Owner("t", "s"), None)
    for number in range(1, 100_000):
        await workspace.fork(f"f{number}")
        async with workspace.use(f"f{number}") as view:
            tree = Path(view.mount.upper if isinstance(view.mount, Overlay) else view.mount.path)
            for name in range(int(files)):
                (tree / str(name)).write_text(str(number))
        await workspace.merge(f"f{number}")
        print(number, flush=True)


def stop_here() -> None:
    print("here", flush=True)
    signal.pause()


async def execute(stage: str, root: str) -> None:
    """Runs one real call that writes, and stops for good at a stage of its end."""
    workspaces = Workspaces(Path(root), Strategy.COPY, WorkspaceLimits(), SystemClock())
    connector = Writing(workspaces)
    connector.go_on.set()
    if stage in ("_apply", "_committed"):
        setattr(Workspace, stage, lambda *_: stop_here())
    await Call(staging_engine(connector, SystemClock(), stop_here), staged("e1")).end()


if __name__ == "__main__":
    scenes: dict[str, Callable[..., Coroutine[None, None, None]]] = {
        "command": command,
        "merge": merge,
        "execute": execute,
    }
    asyncio.run(scenes[sys.argv[1]](*sys.argv[2:]))
