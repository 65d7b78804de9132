"""A merge that stops after any of its steps is finished by doing it again."""

import contextlib
import os
import stat
from pathlib import Path

import pytest

from forerun.sandbox.workspaces import merging
from forerun.sandbox.workspaces.layers import Layers
from forerun.sandbox.workspaces.trees import Budget, measure, opened, remove_entry

_STEPS = ("rename", "unlink", "rmdir", "removexattr", "fchmod", "utime")


class _CrashError(RuntimeError):
    """The process dies here."""


def lower(root: Path) -> Path:
    for name in ("replaced/inner", "file_now", "kept_dir", "emptied", "shut"):
        (root / name).mkdir(parents=True)
    for name in ("gone", "changed", "untouched", "dir_now", "replaced/old", "replaced/inner/old", "file_now/in",
                 "kept_dir/gone", "kept_dir/stays", "emptied/x", "shut/old"):  # fmt: skip
        (root / name).write_text("before")
    return root


def upper(root: Path) -> Path:
    """What overlayfs leaves: whiteouts, opaque directories, new and changed entries."""
    for name in ("replaced/inner", "kept_dir", "new/deep", "dir_now", "emptied"):
        (root / name).mkdir(parents=True)
    for name in ("gone", "kept_dir/gone", "emptied/x", "new/deep/nothing"):
        os.mknod(root / name, stat.S_IFCHR | 0o000, os.makedev(0, 0))
    for name in ("replaced", "replaced/inner", "dir_now"):
        os.setxattr(root / name, "user.overlay.opaque", b"y")
    for name in (
        "changed",
        "added",
        "file_now",
        "replaced/fresh",
        "replaced/inner/fresh",
        "new/deep/file",
        "dir_now/in",
    ):
        (root / name).write_text("after")
    (root / "link").symlink_to("/etc/passwd")
    (root / "kept_dir").chmod(0o750)
    (root / "locked").mkdir()
    (root / "locked" / "in").mkdir(mode=0)
    (root / "shut").mkdir()
    (root / "shut" / "more").write_text("after")
    (root / "shut").chmod(0)
    return root


_AFTER = {
    "added": "after", "changed": "after", "dir_now": None, "dir_now/in": "after", "emptied": None, "shut": None,
    "shut/more": "after", "shut/old": "before", "file_now": "after", "kept_dir": None, "kept_dir/stays": "before",
    "link": "-> /etc/passwd", "new": None, "new/deep": None, "locked": None, "locked/in": None,
    "new/deep/file": "after", "replaced": None, "replaced/fresh": "after", "replaced/inner": None,
    "replaced/inner/fresh": "after", "untouched": "before",
}  # fmt: skip


def picture(root: Path) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        found[name] = f"-> {path.readlink()}" if path.is_symlink() else None if path.is_dir() else path.read_text()
    return found


def unlocked(root: Path) -> dict[str, str | None]:
    """The picture of a tree whose locked directories have been opened, so that an ordinary user sees it too."""
    for name in ("shut", "locked/in"):
        (root / name).chmod(0o700)
    return picture(root)


def apply(root: Path) -> None:
    with (
        opened(str(root / "upper")) as changes,
        opened(str(root / "base")) as base,
        opened(str(root / "trash")) as trash,
    ):
        merging.apply_overlay(changes, base, trash)


def make(root: Path) -> Path:
    for name in ("upper", "base", "trash"):
        (root / name).mkdir(parents=True)
    lower(root / "base")
    upper(root / "upper")
    return root


def test_every_kind_of_change_is_applied(tmp_path: Path) -> None:
    root = make(tmp_path / "w")
    apply(root)
    modes = {name: stat.S_IMODE((root / "base" / name).stat().st_mode) for name in ("kept_dir", "shut", "locked/in")}
    assert modes == {"kept_dir": 0o750, "shut": 0, "locked/in": 0}
    assert unlocked(root / "base") == _AFTER
    assert not [name for path in (root / "base").rglob("*") if not path.is_symlink() for name in os.listxattr(path)]


def test_a_crash_after_any_step_is_finished_by_a_second_try(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = 0
    while True:
        root = make(tmp_path / f"w{step}")
        with monkeypatch.context() as patched:
            calls = _die_after(step, patched)
            with contextlib.suppress(_CrashError):
                apply(root)
        apply(root)
        assert unlocked(root / "base") == _AFTER, f"after {step} steps"
        if len(calls) <= step:
            break
        step += 1
    assert step >= 30


def _die_after(steps: int, patched: pytest.MonkeyPatch) -> list[str]:
    calls: list[str] = []

    def dying(name: str) -> None:
        real = getattr(os, name)

        def wrapped(*arguments: object, **more: object) -> object:
            calls.append(name)
            if len(calls) > steps:
                raise _CrashError
            return real(*arguments, **more)

        patched.setattr(os, name, wrapped)

    for name in _STEPS:
        dying(name)
    return calls


def test_what_a_merge_adds_and_takes_away_is_known_before(tmp_path: Path) -> None:
    root = make(tmp_path / "w")
    (root / "upper").rename(root / "changes")
    (root / "fork").mkdir()
    (root / "changes").rename(root / "fork" / "upper")
    layers = Layers(root)
    layers.open()
    plenty = Budget(10**6, 10**6)
    layers.check(root / "fork" / "upper", plenty)
    with opened(str(root / "fork")) as fork:
        layers.stack(fork, 1)
        layers.stack(fork, 1)
    layers.fold()
    unlocked(root / "base")
    held = Budget(10**6, 10**6)
    with opened(str(root / "base")) as base:
        measure(base, held)
    assert (plenty.entries, plenty.content_bytes) == (held.entries, held.content_bytes)
    assert picture(root / "base") == _AFTER
    assert os.listdir(root / "layers") == []


def test_a_tree_is_taken_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in range(2):
        root = tmp_path / f"s{step}"
        (root / "fork" / "tree").mkdir(parents=True)
        (root / "fork" / "tree" / "new").write_text("new")
        with opened(str(root)) as whole, opened("fork", within=whole) as fork:
            with monkeypatch.context() as patched:
                _die_after(step, patched)
                with contextlib.suppress(_CrashError):
                    merging.take_tree(fork, whole, "base-1")
            merging.take_tree(fork, whole, "base-1")
        assert picture(root / "base-1") == {"new": "new"}


def test_removing_follows_no_link_and_enters_locked_directories(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o750)
    (outside / "mine").write_text("mine")
    tree = tmp_path / "tree"
    (tree / "locked" / "deep").mkdir(parents=True)
    (tree / "link").symlink_to(outside)
    (tree / "locked" / "link").symlink_to(outside)
    (tree / "locked").chmod(0)
    with opened(str(tmp_path)) as root:
        remove_entry(root, "tree")
        remove_entry(root, "tree")
    assert os.listdir(tmp_path) == ["outside"]
    assert (outside / "mine").read_text() == "mine"
    assert stat.S_IMODE(outside.stat().st_mode) == 0o750
