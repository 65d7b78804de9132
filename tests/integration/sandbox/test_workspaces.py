"""Workspaces and their forks, for every strategy: what is merged is what the fork showed, and a crash loses nothing."""

import asyncio
import contextlib
import hashlib
import os
import stat
from pathlib import Path

import pytest

from forerun.runtime.clock import SystemClock
from forerun.runtime.errors import Aborted, ErrorReason, FailedPrecondition, NotFound, ResourceExhausted
from forerun.sandbox.commands.runner import CommandPlan, CommandResult, CommandRunner
from forerun.sandbox.isolation.launch import Bind
from forerun.sandbox.isolation.levels import Ladder, LevelName
from forerun.sandbox.isolation.limits import CommandLimits
from forerun.sandbox.owner import Owner
from forerun.sandbox.settings import SandboxSettings
from forerun.sandbox.workspaces import layers
from forerun.sandbox.workspaces.store import Workspaces
from forerun.sandbox.workspaces.strategy import Strategy, choose
from forerun.sandbox.workspaces.trees import Budget, copy_tree, opened
from forerun.sandbox.workspaces.workspace import Workspace, WorkspaceLimits
from tests.integration.sandbox.conftest import need

# Every kind of change that a fork can make.
CHANGES = """
set -e
echo changed > kept; rm gone; echo new > new; mkdir -p deep/er; echo x > deep/er/file
rm -r replaced; mkdir replaced; echo fresh > replaced/fresh; mkdir replaced/inner
rm -r file_now; echo file > file_now
rm dir_now; mkdir dir_now; echo in > dir_now/in
mv moved renamed; mv moved_dir renamed_dir
rm -r emptied/*; ln -s kept link; ln -sf nowhere old_link; chmod 750 touched; chmod 600 touched/file
rm -r again; mkdir again; rmdir again; mkdir again; touch again/z; rm again/z; : > empty
mkfifo pipe
"""


class World:
    def __init__(self, root: Path, ladder: Ladder, level: LevelName, strategy: Strategy) -> None:
        self.root, self.level, self.strategy = root, level, strategy
        self.runner = CommandRunner(ladder.usable[level], str(root / "scratch"))
        self.workspaces = self.again()

    def again(self, limits: WorkspaceLimits | None = None) -> Workspaces:
        """The workspaces as a new process finds them."""
        return Workspaces(self.root / "workspaces", self.strategy, limits or WorkspaceLimits(), SystemClock())

    async def workspace(self, seed: Path | None = None) -> Workspace:
        return await self.workspaces.of(Owner("acme", "s.1"), seed)

    async def run(self, workspace: Workspace, fork: str, script: str) -> CommandResult:
        async with workspace.use(fork) if fork else workspace.read() as view:
            return await self.runner.run(
                CommandPlan(
                    ("/bin/sh", "-c", script), {}, view.mount, view.watched, None, CommandLimits(wall_seconds=20)
                )
            )

    async def text(self, workspace: Workspace, script: str) -> str:
        return (await self.run(workspace, "", script)).stdout.text

    @property
    def base(self) -> Path:
        return next((self.root / "workspaces").glob("*/*/base*"))


@pytest.fixture(params=["gvisor", "overlay", "copy", "process"])
def world(request: pytest.FixtureRequest, ladder: Ladder, tmp_path: Path) -> World:
    levels = {"process": LevelName.PROCESS, "gvisor": LevelName.GVISOR}
    level = levels.get(request.param, LevelName.BUBBLEWRAP)
    need(ladder, level)
    for name in ("workspaces", "scratch"):
        (tmp_path / name).mkdir()
    overlay = request.param in ("gvisor", "overlay")
    return World(tmp_path, ladder, level, Strategy.OVERLAY if overlay else Strategy.COPY)


@pytest.fixture
def seed(tmp_path: Path) -> Path:
    root = tmp_path / "seed"
    for name in ("kept", "gone", "dir_now", "moved", "untouched"):
        root.mkdir(exist_ok=True)
        (root / name).write_text(f"{name} before")
    for name in ("replaced", "file_now", "moved_dir", "emptied", "touched", "again"):
        (root / name).mkdir()
        (root / name / "file").write_text(f"{name}/file before")
    (root / "replaced" / "inner").mkdir()
    (root / "replaced" / "inner" / "old").write_text("old")
    (root / "old_link").symlink_to("kept")
    return root


def picture(root: Path) -> dict[str, str]:
    """Everything below a directory: kind, mode and content, by path."""
    found: dict[str, str] = {}
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        what = os.readlink(path) if path.is_symlink() else path.read_text() if stat.S_ISREG(status.st_mode) else ""
        mode = "" if path.is_symlink() else oct(stat.S_IMODE(status.st_mode))
        found[str(path.relative_to(root))] = f"{stat.S_IFMT(status.st_mode):o} {mode} {what}"
    return found


async def test_a_merge_gives_what_the_fork_showed(world: World, seed: Path, tmp_path: Path) -> None:
    workspace = await world.workspace(seed)
    await workspace.fork("f")
    assert (await world.run(workspace, "f", CHANGES)).exit_code == 0
    assert picture(world.base) == picture(seed)
    assert await workspace.merge("f") == 1
    # The same changes in a plain directory are the truth.
    plain = tmp_path / "plain"
    plain.mkdir()
    with opened(str(seed)) as source, opened(str(plain)) as target:
        copy_tree(source, target, Budget(1000, 10**6), clone=False)
    process = await asyncio.create_subprocess_exec("/bin/sh", "-c", CHANGES, cwd=plain)
    assert await process.wait() == 0
    if world.level is LevelName.GVISOR:
        (plain / "pipe").unlink()  # named pipes are objects of its own kernel, which ends with the command
    assert picture(world.base) == picture(plain)
    assert await world.text(workspace, "cat kept renamed_dir/file replaced/fresh") == (
        "changed\nmoved_dir/file beforefresh\n"
    )


async def test_forks_do_not_see_each_other_nor_later_merges_change_them_away(world: World, seed: Path) -> None:
    workspace = await world.workspace(seed)
    for fork in ("a", "b"):
        await workspace.fork(fork)
        await world.run(workspace, fork, f"echo {fork} > mine; cat mine")
    assert (await world.run(workspace, "a", "cat mine")).stdout.text == "a\n"
    assert (await world.run(workspace, "b", "cat mine")).stdout.text == "b\n"
    assert await world.text(workspace, "ls mine 2>/dev/null") == ""


async def test_a_fork_of_an_older_version_is_refused_whole(world: World, seed: Path) -> None:
    workspace = await world.workspace(seed)
    for fork in ("a", "b"):
        await workspace.fork(fork)
        await world.run(workspace, fork, f"echo {fork} > {fork}")
    await workspace.merge("a")
    before = picture(world.base)
    with pytest.raises(Aborted) as refused:
        await workspace.merge("b")
    assert refused.value.reason is ErrorReason.MERGE_CONFLICT
    assert picture(world.base) == before


async def test_merging_and_dropping_again_changes_nothing(world: World, seed: Path) -> None:
    workspace = await world.workspace(seed)
    await workspace.fork("f")
    await world.run(workspace, "f", "echo 1 >> log")
    assert [await workspace.merge("f"), await workspace.merge("f")] == [1, 1]
    assert await world.text(workspace, "cat log") == "1\n"
    await workspace.fork("g")
    await workspace.drop("g")
    await workspace.drop("g")
    with pytest.raises(NotFound):
        await workspace.merge("g")
    with pytest.raises(Aborted):
        await workspace.fork("f")


async def test_a_fork_is_merged_under_the_name_of_a_call_once(world: World) -> None:
    workspace = await world.workspace()
    for fork in ("S.1.1", "S.1.2"):
        await workspace.fork(fork)
        await world.run(workspace, fork, f"echo {fork} >> log; cat log")
        await workspace.note(fork, fork.encode())
    assert [await workspace.merge("S.1.1", name="call-1-0") for _ in range(2)] == [1, 1]
    again = workspace
    for _ in range(2):
        assert await again.merged("call-1-0") and not await again.merged("S.1.1")
        assert await again.outcome("call-1-0") == b"S.1.1"
        assert await again.merge("S.1.1", name="call-1-0") == 1
        await again.drop("S.1.2")
        await again.fork("S.1.2")  # of the present content: only the name speaks against it
        with pytest.raises(Aborted) as caught:
            await again.merge("S.1.2", name="call-1-0")
        assert caught.value.reason is ErrorReason.STATE_CONFLICT
        with pytest.raises(Aborted):
            await again.fork("call-1-0")
        assert await world.text(again, "cat log") == "S.1.1\n"
        again = await world.again().of(Owner("acme", "s.1"), None)  # as a new process finds it


async def test_a_fork_in_use_is_neither_merged_nor_dropped(world: World) -> None:
    workspace = await world.workspace()
    await workspace.fork("f")
    async with workspace.use("f"):
        with pytest.raises(FailedPrecondition):
            await workspace.merge("f")
        with pytest.raises(FailedPrecondition):
            await workspace.drop("f")
    await workspace.merge("f")


async def test_a_read_leaves_no_trace(world: World, seed: Path) -> None:
    if world.strategy is not Strategy.OVERLAY:
        pytest.skip("copied workspaces are read where they are")
    workspace = await world.workspace(seed)
    assert (await world.run(workspace, "", "echo x > side; rm gone; cat side")).stdout.text == "x\n"
    assert picture(world.base) == picture(seed)
    assert list((world.base.parent / "forks").iterdir()) == []


class _CrashError(RuntimeError):
    """The process dies here."""


@pytest.mark.parametrize("step", range(1, 40, 13))
async def test_a_merge_that_was_cut_off_is_finished(
    world: World, seed: Path, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = await world.workspace(seed)
    await workspace.fork("f")
    await world.run(workspace, "f", CHANGES)
    calls = 0

    def dying(name: str) -> None:
        real = getattr(os, name)

        def wrapped(*arguments: object, **more: object) -> object:
            nonlocal calls
            calls += 1
            if calls > step:
                raise _CrashError
            return real(*arguments, **more)

        monkeypatch.setattr(os, name, wrapped)

    with monkeypatch.context() as patched:
        for name in ("rename", "unlink", "rmdir", "removexattr", "fchmod"):
            dying(name)
        with contextlib.suppress(_CrashError):
            await workspace.merge("f")
        patched.undo()
    monkeypatch.undo()
    world.workspaces = world.again()
    after = await world.workspace(seed)
    whole = hashlib.sha256(repr(picture(world.base)).encode()).hexdigest()
    if after.version == 0:
        assert picture(world.base) == picture(seed)
    else:
        assert whole == await _whole(world, seed)
    assert list((world.base.parent / "trash").iterdir()) == []


async def _whole(world: World, seed: Path) -> str:
    """Digest of a workspace in which the same merge went through."""
    other = Workspaces(world.root / "others", world.strategy, WorkspaceLimits(), SystemClock())
    workspace = await other.of(Owner("acme", "x"), seed)
    await workspace.fork("f")
    await world.run(workspace, "f", CHANGES)
    await workspace.merge("f")
    (base,) = (world.root / "others" / "acme" / "x").glob("base*")
    return hashlib.sha256(repr(picture(base)).encode()).hexdigest()


async def test_an_unmerged_fork_never_shows_up_after_a_restart(world: World, seed: Path) -> None:
    workspace = await world.workspace(seed)
    await workspace.fork("f")
    await world.run(workspace, "f", "echo x > leak")
    world.workspaces = world.again()
    again = await world.workspace(seed)
    with pytest.raises(NotFound):
        await again.merge("f")
    assert picture(world.base) == picture(seed)


def bound(error: pytest.ExceptionInfo[ResourceExhausted]) -> str:
    """The limit that an error names, with the setting that changes it."""
    told = error.value
    assert told.reason is ErrorReason.LIMIT_DISK
    assert told.metadata["limit"] in told.message
    setting = told.metadata["setting"].removeprefix("FORERUN_SANDBOX_").lower()
    assert setting in told.message and setting in SandboxSettings.model_fields
    return told.metadata["limit"]


async def test_a_workspace_has_bounds(world: World, seed: Path) -> None:
    small = world.again(WorkspaceLimits(entries=5))
    with pytest.raises(ResourceExhausted) as refused:
        await small.of(Owner("acme", "s.2"), seed)
    assert bound(refused) == "WORKSPACE_FILES"
    tight = world.again(WorkspaceLimits(content_bytes=1000, forks=1))
    workspace = await tight.of(Owner("acme", "s.3"), seed)
    await workspace.fork("f")
    with pytest.raises(ResourceExhausted) as refused:
        await workspace.fork("g")
    assert bound(refused) == "WORKSPACE_FORKS"
    await world.run(workspace, "f", "head -c 5000 /dev/zero > big")
    with pytest.raises(ResourceExhausted) as refused:
        await workspace.merge("f")
    assert bound(refused) == "WORKSPACE_BYTES"
    assert workspace.version == 0
    await workspace.fork("g")  # the refused one holds no place any more


async def test_the_bounds_hold_for_all_merges_together(world: World) -> None:
    """Replacing takes no room, adding does, and what is removed gives it back."""
    tight = world.again(WorkspaceLimits(entries=5, content_bytes=10_000))
    workspace = await tight.of(Owner("acme", "s.1"), None)

    async def merged(fork: str, script: str) -> None:
        await workspace.fork(fork)
        assert (await world.run(workspace, fork, script)).exit_code == 0
        await workspace.merge(fork)

    for number in range(4):
        await merged(f"same{number}", "rm -rf d; mkdir d; head -c 4000 /dev/zero > d/a")
    with pytest.raises(ResourceExhausted) as refused:
        await merged("more", "head -c 7000 /dev/zero > b")
    assert bound(refused) == "WORKSPACE_BYTES"
    await merged("other", "rm d/a; head -c 7000 /dev/zero > b")
    with pytest.raises(ResourceExhausted) as refused:
        await merged("many", "touch 1 2 3 4")
    assert bound(refused) == "WORKSPACE_FILES"
    await merged("fewer", "rm -r d b; touch 1 2 3 4 5")
    assert await world.text(workspace, "ls") == "1\n2\n3\n4\n5\n"


async def test_readers_keep_the_tree_that_they_started_on(world: World, seed: Path) -> None:
    if world.strategy is Strategy.OVERLAY:
        pytest.skip("what has an overlay mounted is looked at from inside")
    workspace = await world.workspace(seed)
    async with workspace.read() as first, workspace.read() as second:
        assert isinstance(first.mount, Bind) and first.mount == second.mount
        for number in range(2):
            await workspace.fork(f"f{number}")
            await world.run(workspace, f"f{number}", f"echo {number} > kept")
            await workspace.merge(f"f{number}")
        assert picture(Path(first.mount.path)) == picture(seed)
        assert await world.text(workspace, "cat kept") == "1\n"
    assert [path.name for path in world.base.parent.glob("base*")] == ["base-2"]


_LOOK = "cat kept replaced/*; ls; ls moved_dir emptied"


async def test_a_running_command_keeps_the_content_that_it_started_on(world: World, seed: Path) -> None:
    if world.strategy is not Strategy.OVERLAY:
        pytest.skip("copied trees are never changed")
    workspace = await world.workspace(seed)
    before = await world.text(workspace, _LOOK)
    script = f": > begun; while [ ! -e /tmp/go ]; do sleep 0.02; done; rm begun; {_LOOK}"
    reader = asyncio.ensure_future(world.run(workspace, "", script))
    while not list(world.base.parent.glob("forks/.read-*/upper/begun")):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    (scratch,) = (world.root / "scratch").iterdir()
    await workspace.fork("f0")
    await world.run(workspace, "f0", CHANGES)
    await workspace.merge("f0")
    for number in (1, 2):
        await workspace.fork(f"f{number}")
        await world.run(workspace, f"f{number}", f"cat kept >> log; echo {number} > kept; rm -r deep; mkdir deep")
        await workspace.merge(f"f{number}")
    # Whoever starts now sees all merges, and the base is as the reader has it mounted.
    assert await world.text(workspace, "cat log kept; ls deep") == "changed\n1\n2\n"
    assert picture(world.base) == picture(seed)
    (scratch / "go").touch()
    assert (await reader).stdout.text == before
    assert list((world.base.parent / "layers").iterdir()) == []
    assert (world.base / "kept").read_text() == "2\n"
    assert list((world.base / "deep").iterdir()) == []


async def test_layers_are_folded_by_the_next_process(world: World, seed: Path) -> None:
    if world.strategy is not Strategy.OVERLAY:
        pytest.skip("only overlays have layers")
    workspace = await world.workspace(seed)
    async with workspace.read():  # never ends: the process dies first
        for number in range(3):
            await workspace.fork(f"f{number}")
            await world.run(workspace, f"f{number}", f"cat kept >> log; echo {number} > kept")
            await workspace.merge(f"f{number}")
        assert len(list((world.base.parent / "layers").iterdir())) == 3
        world.workspaces = world.again()
        after = await world.workspace(seed)
        assert (world.base / "log").read_text() == "kept before0\n1\n"
        assert (after.version, await world.text(after, "cat kept")) == (3, "2\n")
        assert list((world.base.parent / "layers").iterdir()) == []


async def test_layers_that_are_full_wait_for_what_has_them_mounted(
    world: World, seed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if world.strategy is not Strategy.OVERLAY:
        pytest.skip("only overlays have layers")
    monkeypatch.setattr(layers, "_MOST_LAYERS", 1)
    workspace = await world.workspace(seed)
    async with contextlib.AsyncExitStack() as reading:
        await reading.enter_async_context(workspace.read())
        for fork in ("f1", "f2"):
            await workspace.fork(fork)
            await world.run(workspace, fork, f"echo {fork} > kept")
            if fork == "f1":
                await workspace.merge(fork)
        merge = asyncio.ensure_future(workspace.merge("f2"))
        await asyncio.wait({merge}, timeout=0.1)
        assert not merge.done()
        await reading.aclose()
    assert await merge == 2
    assert (world.base / "kept").read_text() == "f2\n"


async def test_closing_removes_everything(world: World, seed: Path) -> None:
    workspace = await world.workspace(seed)
    await workspace.fork("f")
    await world.run(workspace, "f", "mkdir locked; touch locked/x; chmod 0 locked")
    await world.workspaces.close(Owner("acme", "s.1"))
    await world.workspaces.close(Owner("acme", "s.1"))
    assert list((world.root / "workspaces").glob("*/*")) == []


async def test_who_waited_for_a_workspace_that_was_closed_finds_none(world: World) -> None:
    workspace = await world.workspace()
    await workspace.fork("one")
    waiting: list[asyncio.Task[object]] = []
    async with workspace.writing():

        async def merge() -> int:
            async with workspace.writing():
                return await workspace.merge("one")

        waiting.append(asyncio.ensure_future(merge()))
        await asyncio.sleep(0)
        await world.workspaces.close(Owner("acme", "s.1"))
    for work in (*waiting, workspace.fork("two"), workspace.merged("one")):
        with pytest.raises(NotFound):
            await work
    with pytest.raises(NotFound):
        async with workspace.read():
            pass
    assert not list((world.root / "workspaces").glob("*/*"))


async def test_forgotten_workspaces_are_removed_and_used_ones_are_not(world: World, seed: Path) -> None:
    now = 1_000_000.0

    class Clock(SystemClock):
        def now(self) -> float:
            return now

    (world.root / "workspaces" / "acme" / "left-half-made").mkdir(parents=True)
    workspaces = Workspaces(world.root / "workspaces", world.strategy, WorkspaceLimits(), Clock())
    idle, busy = await workspaces.of(Owner("acme", "idle"), None), await workspaces.of(Owner("acme", "busy"), None)
    await idle.fork("f")
    async with busy.read():
        now += 100.0
        await workspaces.of(Owner("acme", "fresh"), None)
        await workspaces.sweep(50.0)
        assert sorted(os.listdir(world.root / "workspaces" / "acme")) == ["busy", "fresh"]
    assert workspaces.known(Owner("acme", "idle")) is None
    # What an earlier process has left is as old as its last merge.
    again = Workspaces(world.root / "workspaces", world.strategy, WorkspaceLimits(), SystemClock())
    await again.sweep(3600.0)
    assert sorted(os.listdir(world.root / "workspaces" / "acme")) == ["busy", "fresh"]


@pytest.mark.parametrize("level", [LevelName.GVISOR, LevelName.BUBBLEWRAP])
async def test_the_strategy_is_found_by_trying(level: LevelName, ladder: Ladder, tmp_path: Path) -> None:
    need(ladder, level)
    strategy, why = await choose(tmp_path, ladder.usable[level])
    assert strategy in (Strategy.OVERLAY, Strategy.REFLINK, Strategy.COPY)
    assert why
    weak, reason = await choose(tmp_path, ladder.usable[LevelName.PROCESS])
    assert weak is not Strategy.OVERLAY
    assert "cannot mount" in reason
    assert os.listdir(tmp_path) == []


async def test_swapping_links_while_the_host_copies_never_leads_out(sandboxed_dir: Path, tmp_path: Path) -> None:
    """Case C5: a directory and a link to /etc change places a thousand times under a host that copies."""
    tree = sandboxed_dir
    (tree / "real").mkdir()
    (tree / "real" / "passwd").write_text("mine")
    (tree / "d").symlink_to("/etc")
    swap = (
        "import os,sys\n"
        "os.chdir(sys.argv[1])\n"
        "while True:\n"
        "    os.rename('d', 'x'); os.rename('real', 'd'); os.rename('d', 'real'); os.rename('x', 'd')\n"
    )
    swapper = await asyncio.create_subprocess_exec("python3", "-c", swap, str(tree))
    seen = set()
    try:
        for number in range(120):
            target = tmp_path / f"copy{number}"
            target.mkdir()
            with opened(str(tree)) as source, opened(str(target)) as copy:
                await asyncio.to_thread(copy_tree, source, copy, Budget(1000, 10**6), clone=False)
            for place in target.rglob("passwd"):
                if not any(parent.is_symlink() for parent in place.parents if parent.is_relative_to(target)):
                    seen.add(place.read_text())
    finally:
        swapper.kill()
        await swapper.wait()
    assert seen == {"mine"}


@pytest.fixture
def sandboxed_dir(tmp_path: Path) -> Path:
    tree = tmp_path / "tree"
    tree.mkdir()
    return tree
