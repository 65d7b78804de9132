"""Runs one command from start to the point where nothing of it is left.

The end of a command is the end of its leading process: what it left running is killed, output is drained for a short
bounded time, then the result is complete. Both streams are read all the time, also beyond what is kept.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from forerun.sandbox.commands.growth import growth_bytes
from forerun.sandbox.commands.output import Capture, Captured
from forerun.sandbox.completion import to_the_end
from forerun.sandbox.demand import Demand
from forerun.sandbox.isolation.launch import Bind, Child, Launch, Overlay, SetupFailed, read_some
from forerun.sandbox.isolation.levels import Isolation, LevelName
from forerun.sandbox.isolation.limits import CommandLimits, LimitReason
from forerun.sandbox.isolation.rootfs import base_environment
from forerun.sandbox.owner import Owner
from forerun.sandbox.workspaces.trees import opened, remove_entry

# A fork bomb or a memory hog is seen within this time; a look costs a few tenths of a millisecond.
_LOOK_SECONDS: Final = 0.02
# Walking a changed tree is dearer than a look at processes, and a disk fills more slowly than memory.
_DISK_LOOK_EVERY: Final = 5
_MOST_ENTRIES: Final = 100_000
# From the leader's end to the end of the pipes. Writers are dead by then, so this is what the kernel still holds.
_DRAIN_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class CommandPlan:
    """A command to run.

    Attributes:
        argv: Command and arguments.
        environment: Added to the allow-listed base environment; nothing of the host's is inherited.
        workspace: What the command works in.
        watched: Host directories whose content counts as growth of the workspace.
        stdin: Standard input; None is /dev/null.
        limits: Bounds.
        owner: The session that it runs for; None for a trial.
        demand: Whether an agent waits for it.
    """

    argv: Sequence[str]
    environment: Mapping[str, str]
    workspace: Bind | Overlay | None
    watched: tuple[str, ...]
    stdin: bytes | None
    limits: CommandLimits
    owner: Owner | None = None
    demand: Demand = field(default_factory=Demand)


@dataclass(frozen=True, slots=True)
class CommandResult:
    """How a command ended.

    Attributes:
        exit_code: The leading process's code, 128 + N for signal N; None where a limit ended it.
        stdout: Its standard output.
        stderr: Its standard error.
        limit: The limit that ended it.
        cpu_seconds: CPU time as last seen; None where it ended before the first look.
        level: The isolation it ran under.
    """

    exit_code: int | None
    stdout: Captured
    stderr: Captured
    limit: LimitReason | None
    cpu_seconds: float | None
    level: LevelName


class GuardLost(Exception):
    """What watches over a command was killed from inside: the command ran, and nobody knows how it ended."""


class CommandRunner:
    """Runs commands at one isolation level.

    Args:
        isolation: How they start.
        scratch_root: Directory for the commands' /tmp; on a disk, not in memory.
    """

    def __init__(self, isolation: Isolation, scratch_root: str) -> None:
        self._isolation = isolation
        self._scratch_root = scratch_root

    @property
    def isolation(self) -> Isolation:
        """The level in use."""
        return self._isolation

    async def run(self, plan: CommandPlan) -> CommandResult:
        """Runs a command. When this returns or raises, nothing of it is alive and no descriptor is open.

        Raises:
            SetupFailed: The isolation did not come up; the command has certainly not started.
            GuardLost: It ran, and its guard is gone.
        """
        scratch = tempfile.mkdtemp(prefix="run-", dir=self._scratch_root)
        try:
            return await self._run_in(scratch, plan)
        finally:
            await to_the_end(asyncio.to_thread(_remove, scratch))

    async def _run_in(self, scratch: str, plan: CommandPlan) -> CommandResult:
        limits = plan.limits
        watched = (*plan.watched, scratch)
        before_bytes = await asyncio.to_thread(growth_bytes, watched, most_entries=_MOST_ENTRIES)
        child = await self._isolation.start(
            Launch(
                argv=plan.argv, environment={**base_environment(), **plan.environment}, workspace=plan.workspace,
                scratch=scratch, stdin=plan.stdin, file_bytes=limits.disk_bytes, cpu_seconds=limits.cpu_seconds,
                pids=limits.pids, memory_bytes=limits.memory_bytes,
            )
        )  # fmt: skip
        try:
            attended = _Attended(child, limits, watched, before_bytes)
            code = await attended.attend()
        finally:
            # Also when the caller cancels: the kill and the wait for it are not cut short.
            await to_the_end(child.close())
        return CommandResult(
            exit_code=None if attended.limit else code,
            stdout=attended.stdout.finish(),
            stderr=attended.stderr.finish(),
            limit=attended.limit,
            cpu_seconds=attended.cpu_seconds,
            level=self._isolation.name,
        )


class _Attended:
    """A running command with its readers and its watchdog."""

    def __init__(self, child: Child, limits: CommandLimits, watched: tuple[str, ...], before_bytes: int) -> None:
        self._child = child
        self._limits = limits
        self._watched = watched
        # A copied workspace is full from the start; only what comes on top is growth.
        self._before_bytes = before_bytes
        self.stdout = Capture(limits.output_bytes)
        self.stderr = Capture(limits.output_bytes)
        self.limit: LimitReason | None = None
        self.cpu_seconds: float | None = None

    async def attend(self) -> int | None:
        """Returns the exit code when everything has ended.

        Raises:
            SetupFailed: The isolation broke before the command was executed.
            GuardLost: A guard that the command can reach was killed.
        """
        readers = [
            asyncio.ensure_future(self._read(self._child.stdout, self.stdout)),
            asyncio.ensure_future(self._read(self._child.stderr, self.stderr)),
        ]
        watchdog = asyncio.ensure_future(self._watch())
        try:
            try:
                async with asyncio.timeout(self._limits.wall_seconds):
                    await self._child.ended()
            except TimeoutError:
                self._end(LimitReason.TIME)
            watchdog.cancel()
            code = await self._child.settle()
            self.limit = self.limit or self._child.kernel_limit()
            await asyncio.wait(readers, timeout=_DRAIN_SECONDS)
        finally:
            await _cancelled([watchdog, *readers])
        if code is None and self.limit is None and self._child.guarded:
            raise GuardLost("the process that watches over the command was killed")
        if code is None and self.limit is None:
            raise SetupFailed(f"the isolation ended before the command was executed: {self._last_words()}")
        if self.limit is None and await self._disk_bytes() >= self._limits.disk_bytes:
            self.limit = LimitReason.DISK
        return code

    def _last_words(self) -> str:
        lines = self.stderr.finish().text.strip().splitlines()
        return lines[-1][:300] if lines else "it left no message"

    def _end(self, reason: LimitReason) -> None:
        if self.limit is None:
            self.limit = reason
        self._child.kill()

    async def _read(self, descriptor: int, capture: Capture) -> None:
        while chunk := await read_some(descriptor):
            capture.feed(chunk)
            if self.stdout.total_bytes + self.stderr.total_bytes > self._limits.output_total_bytes:
                self._end(LimitReason.OUTPUT)
                return

    async def _watch(self) -> None:
        looks = 0
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            if (reason := self._child.kernel_limit()) is not None:
                return self._end(reason)
            usage = await self._child.usage(most=self._limits.pids)
            self.cpu_seconds = max(self.cpu_seconds or 0.0, usage.cpu_seconds)
            looks += 1
            if usage.tasks > self._limits.pids:
                return self._end(LimitReason.PIDS)
            if usage.memory_bytes > self._limits.memory_bytes:
                return self._end(LimitReason.MEMORY)
            if usage.cpu_seconds > self._limits.cpu_seconds:
                return self._end(LimitReason.CPU)
            if looks % _DISK_LOOK_EVERY == 0 and await self._disk_bytes() > self._limits.disk_bytes:
                return self._end(LimitReason.DISK)

    async def _disk_bytes(self) -> int:
        """Growth so far. A tree may have many files, so they are not counted on the event loop."""
        now_bytes = await asyncio.to_thread(growth_bytes, self._watched, most_entries=_MOST_ENTRIES)
        return now_bytes - self._before_bytes


async def _cancelled(tasks: Sequence[asyncio.Future[None]]) -> None:
    """Cancels tasks and waits for them; an error of one that had failed by itself is raised."""
    for task in tasks:
        task.cancel()
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(outcome, Exception):
            raise outcome


def _remove(directory: str) -> None:
    with opened(str(Path(directory).parent)) as parent:
        remove_entry(parent, Path(directory).name)
