"""A workspace whose worker dies at any step of a merge, and again while it is opened, is whole when it is opened."""

import contextlib
import os
from pathlib import Path

import pytest

from forerun.runtime.clock import SystemClock
from forerun.sandbox.isolation.launch import Overlay
from forerun.sandbox.owner import Owner
from forerun.sandbox.workspaces.store import Workspaces
from forerun.sandbox.workspaces.strategy import Strategy
from forerun.sandbox.workspaces.workspace import Workspace, WorkspaceLimits

_STEPS = ("rename", "replace", "unlink", "rmdir", "mkdir", "fsync")
_NAMES = ("a", "b")


class _CrashError(RuntimeError):
    """The process dies here."""


class _Disk:
    """Lets the process do some steps more on its disk, and nothing after them, as if it had died."""

    def __init__(self, steps: int, patched: pytest.MonkeyPatch) -> None:
        self.left = steps
        for name in _STEPS:
            self._watch(name, patched)

    @property
    def died(self) -> bool:
        return self.left < 0

    def _watch(self, name: str, patched: pytest.MonkeyPatch) -> None:
        real = getattr(os, name)

        def step(*arguments: object, **more: object) -> object:
            self.left -= 1
            if self.died:
                raise _CrashError(name)
            return real(*arguments, **more)

        patched.setattr(os, name, step)


async def opened(root: Path, strategy: Strategy) -> Workspace:
    return await Workspaces(root, strategy, WorkspaceLimits(), SystemClock()).of(Owner("t", "s"), None)


async def merge(workspace: Workspace, number: int) -> None:
    """Merges a fork that has written its number into every file."""
    fork = f"f{number}"
    await workspace.fork(fork)
    async with workspace.use(fork) as view:
        tree = Path(view.mount.upper if isinstance(view.mount, Overlay) else view.mount.path)
        for name in _NAMES:
            (tree / name).write_text(str(number))
    await workspace.merge(fork)


async def merging_until(steps: int, root: Path, strategy: Strategy, monkeypatch: pytest.MonkeyPatch) -> _Disk:
    """Merges once, and a second time until so many steps are done."""
    workspace = await opened(root, strategy)
    await merge(workspace, 1)
    with monkeypatch.context() as patched:
        disk = _Disk(steps, patched)
        with contextlib.suppress(_CrashError):
            await merge(workspace, 2)
    return disk


def check(root: Path, workspace: Workspace) -> None:
    directory = root / "t" / "s"
    base = next(directory.glob("base*"))
    assert {path.name: path.read_text() for path in base.iterdir()} == dict.fromkeys(_NAMES, str(workspace.version))
    assert not (directory / "merging.json").exists()
    assert [os.listdir(directory / part) for part in ("forks", "trash")] == [[], []]


@pytest.mark.parametrize("strategy", [Strategy.OVERLAY, Strategy.COPY])
async def test_a_worker_that_dies_at_any_step_of_a_merge_leaves_it_whole_or_not_begun(
    strategy: Strategy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = set()
    for steps in range(1000):
        root = tmp_path / str(steps)
        disk = await merging_until(steps, root, strategy, monkeypatch)
        workspace = await opened(root, strategy)
        check(root, workspace)
        await merge(workspace, 3 if workspace.version == 2 else 2)
        versions.add(workspace.version)
        if not disk.died:
            break
    assert steps >= 10
    assert versions == {2, 3}


@pytest.mark.parametrize("strategy", [Strategy.OVERLAY, Strategy.COPY])
async def test_a_worker_that_dies_again_while_it_mends_mends_it_the_next_time(
    strategy: Strategy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mended, first, again = 0, 0, 0
    while True:
        root = tmp_path / f"{first}-{again}"
        merging = await merging_until(first, root, strategy, monkeypatch)
        with monkeypatch.context() as patched:
            mending = _Disk(again, patched)
            with contextlib.suppress(_CrashError):
                await opened(root, strategy)
        check(root, await opened(root, strategy))
        mended += 1
        if mending.died:
            again += 1
        elif merging.died:
            first, again = first + 3, 0  # every step of them has the test above
        else:
            break
    assert mended >= 50
