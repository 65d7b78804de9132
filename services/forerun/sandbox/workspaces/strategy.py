"""How workspaces fork on this machine: found by doing it once."""

from __future__ import annotations

import os
import stat
import tempfile
from enum import StrEnum
from pathlib import Path

from forerun.sandbox.commands.runner import CommandPlan, CommandRunner
from forerun.sandbox.isolation.launch import Overlay, SetupFailed
from forerun.sandbox.isolation.levels import Isolation
from forerun.sandbox.isolation.limits import CommandLimits
from forerun.sandbox.workspaces.merging import is_whiteout
from forerun.sandbox.workspaces.trees import clone_file

_TRIAL = "rm gone && rm -r old && mkdir old && echo new > old/file && test -f kept"
# What a fork sees above one that was merged and not folded yet.
_TRIAL_ABOVE = "test ! -e gone && test $(cat old/file) = new && test -f kept && echo newer > old/file"


class Strategy(StrEnum):
    """Ways to fork, best first."""

    OVERLAY = "overlay"
    """Nothing is copied; changes go to a directory of their own."""
    REFLINK = "reflink"
    """Every file is copied by name, and shares its blocks until it is changed."""
    COPY = "copy"
    """Everything is copied."""


async def choose(root: Path, isolation: Isolation) -> tuple[Strategy, str]:
    """The best way that works below `root`, and why not the better ones."""
    reasons: list[str] = []
    if isolation.mounts_workspace:
        if (why := await _try_overlay(root, isolation)) is None:
            return Strategy.OVERLAY, "a trial fork worked"
        reasons.append(f"overlay: {why}")
    else:
        reasons.append(f"overlay: level {isolation.name.value} cannot mount")
    if _try_reflink(root):
        return Strategy.REFLINK, "; ".join(reasons)
    reasons.append("reflink: the file system of the data directory cannot share blocks")
    return Strategy.COPY, "; ".join(reasons)


async def _try_overlay(root: Path, isolation: Isolation) -> str | None:
    """Makes every kind of change in an overlay and looks at what it left; None where all is as it should be."""
    with tempfile.TemporaryDirectory(prefix="trial-", dir=root, ignore_cleanup_errors=True) as name:
        lower, upper, work, next_upper, next_work = (Path(name, part) for part in ("0", "1", "1w", "2", "2w"))
        for directory in (lower, upper, work, next_upper, next_work, lower / "old"):
            directory.mkdir()
        for file in ("gone", "kept", "old/file"):
            (lower / file).write_text("before")
        for script, workspace in (
            (_TRIAL, Overlay((str(lower),), str(upper), str(work))),
            (_TRIAL_ABOVE, Overlay((str(lower), str(upper)), str(next_upper), str(next_work))),
        ):
            plan = CommandPlan(
                argv=("/bin/sh", "-c", script), environment={}, workspace=workspace, watched=(), stdin=None,
                limits=CommandLimits(wall_seconds=10),
            )  # fmt: skip
            try:
                result = await CommandRunner(isolation, name).run(plan)
            except SetupFailed as error:
                return str(error)
            if result.exit_code != 0:
                return f"the trial fork failed: {result.stderr.text.strip()[:200]}"
        if not is_whiteout((upper / "gone").lstat()) or "user.overlay.opaque" not in os.listxattr(upper / "old"):
            return "the kernel marks deletions in a way that cannot be merged"
        if (lower / "gone").read_text() != "before" or not stat.S_ISREG((upper / "old" / "file").lstat().st_mode):
            return "changes reached the workspace below the fork"
    return None


def _try_reflink(root: Path) -> bool:
    with tempfile.TemporaryFile(dir=root) as source, tempfile.TemporaryFile(dir=root) as target:
        source.write(b"trial")
        source.flush()
        return clone_file(source.fileno(), target.fileno())
