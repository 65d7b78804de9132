"""Commands in the workspace of a session, under virtual time: what a staged call does, without a process.

A file is a list of tokens. `add` appends one and prints the file, `show` prints it. So the content of a file says which
calls took effect, in which order, and how often.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from forerun.sandbox.commands.output import Captured
from forerun.sandbox.commands.runner import CommandPlan, CommandResult
from forerun.sandbox.isolation.launch import Bind
from forerun.sandbox.isolation.levels import Isolation
from tests.simulation.moments import MERGE, Moments

FILES: Final = 2
FILE_TOOLS: Final = frozenset({"add", "show"})
"""Tools that are commands: `add` is staged."""


class InPlace(ThreadPoolExecutor):
    """Runs work for threads at once: when a thread answers depends on the machine and not on the seed."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Does it."""
        done: Future[Any] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except Exception as error:
            done.set_exception(error)
        return done


@dataclass(slots=True)
class Desk:
    """Runs the commands of all sessions.

    Attributes:
        started: How many commands were run.
        open: How many run now.
    """

    chance: random.Random
    moments: Moments
    started: int = 0
    open: int = field(default=0)

    def runner(self, isolation: Isolation, _scratch: str) -> _Runner:
        """See `MakeRunner`."""
        return _Runner(self, isolation)


class _Runner:
    def __init__(self, desk: Desk, isolation: Isolation) -> None:
        self._desk = desk
        self._isolation = isolation

    async def run(self, plan: CommandPlan) -> CommandResult:
        """See `Runner`."""
        assert isinstance(plan.workspace, Bind)
        verb, name, *token = plan.argv
        file = Path(plan.workspace.path) / f"file-{name}"
        total = self._desk.chance.uniform(0.05, 1.5)
        first = total * self._desk.chance.random()
        self._desk.started += 1
        self._desk.open += 1
        try:
            await asyncio.sleep(first)
            text = file.read_text() if file.exists() else ""
            if verb == "add":
                text += f"{token[0]} "
                file.write_text(text)
            await asyncio.sleep(total - first)
            if verb == "add":
                self._desk.moments.tell(MERGE)
        finally:
            self._desk.open -= 1
        said, nothing = Captured(text, len(text), 0, 0), Captured("", 0, 0, 0)
        return CommandResult(0, said, nothing, None, None, self._isolation.name)
