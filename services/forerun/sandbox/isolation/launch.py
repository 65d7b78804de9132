"""What an isolation level is asked to start, and the running child it gives back.

A child is three things to its owner: two pipes to read, a tree of processes to watch, and one end that can be waited
for. Every level starts its helper (bwrap, or our reaper) with the same two extra pipes: the helper reports as JSON
lines on the *status* pipe (`child-pid`, then `exit-code`) and waits on the *gate* pipe until the limits are in place.
A level whose helper starts a further one adds a pipe *started*, on which the command's own first step says that it
runs: without that word an exit code is the helpers', not the command's.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from forerun.sandbox.isolation.cgroups import Group
from forerun.sandbox.isolation.limits import LimitReason
from forerun.sandbox.isolation.usage import Meter, ProcessTree, Usage

# The helper reports its child within milliseconds; on a machine that is this slow nothing else works either.
_HANDSHAKE_SECONDS: Final = 15.0
# From SIGKILL to the last process gone. The kernel needs milliseconds; longer means an uninterruptible disk wait.
_KILL_SECONDS: Final = 10.0
_READ_BYTES: Final = 65536


class SetupFailed(Exception):
    """The isolation level did not come up. The command has certainly not started."""


@dataclass(frozen=True, slots=True)
class Bind:
    """The workspace is this directory."""

    path: str
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class Overlay:
    """The workspace is `lower` as it is, with changes going to `upper`.

    Attributes:
        lower: Directories that nobody changes meanwhile, each covering those before it.
        upper: Directory that takes the changes, in overlayfs form.
        work: Empty directory on the same file system as `upper`.
    """

    lower: tuple[str, ...]
    upper: str
    work: str


@dataclass(frozen=True, slots=True)
class Launch:
    """One command to start.

    Attributes:
        argv: Command and arguments.
        environment: Everything the command finds in its environment.
        workspace: What `/workspace` is; None gives a command without one.
        scratch: Host directory that becomes `/tmp`. The owner removes it afterwards.
        stdin: Bytes on standard input; None is /dev/null.
        talks: Standard input is a pipe that the owner writes to; `stdin` is then None.
        file_bytes: Longest file it may write (RLIMIT_FSIZE).
        cpu_seconds: CPU seconds of each single process (RLIMIT_CPU).
        pids: Tasks at once; the kernel enforces it where the level can, the watchdog everywhere.
        memory_bytes: Bound for memory file systems that the level mounts.
    """

    argv: Sequence[str]
    environment: Mapping[str, str]
    workspace: Bind | Overlay | None
    scratch: str
    stdin: bytes | None
    file_bytes: int
    cpu_seconds: float
    pids: int
    memory_bytes: int
    talks: bool = False


@dataclass(slots=True)
class Pipes:
    """The descriptors of a child that is being started; whatever is still here is closed by `close`."""

    ours: dict[str, int] = field(default_factory=dict)
    theirs: dict[str, int] = field(default_factory=dict)

    def output(self, name: str) -> int:
        """A pipe that the child writes; returns the child's end."""
        self.ours[name], self.theirs[name] = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.ours[name], False)
        return self.theirs[name]

    def input(self, name: str) -> int:
        """A pipe that the child reads; returns the child's end."""
        self.theirs[name], self.ours[name] = os.pipe2(os.O_CLOEXEC)
        return self.theirs[name]

    def standard(self, launch: Launch) -> None:
        """The child's standard input, output and error."""
        if launch.talks:
            self.input("stdin")
            os.set_blocking(self.ours["stdin"], False)
        elif launch.stdin is None:
            self.theirs["stdin"] = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        else:
            self.memory("stdin", launch.stdin)
        self.output("stdout")
        self.output("stderr")

    def memory(self, name: str, content: bytes) -> int:
        """A readable descriptor with this content: never blocks a writer, whatever the child does."""
        descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
        self.theirs[name] = descriptor
        view = memoryview(content)
        while view:
            view = view[os.write(descriptor, view) :]
        os.lseek(descriptor, 0, os.SEEK_SET)
        return descriptor

    def close_theirs(self) -> None:
        """After the start: the child has its own copies."""
        for descriptor in self.theirs.values():
            os.close(descriptor)
        self.theirs.clear()

    def take(self, name: str) -> int:
        """Moves one of our ends to a new owner."""
        return self.ours.pop(name)

    def close(self) -> None:
        """Closes everything that was not taken."""
        self.close_theirs()
        for descriptor in self.ours.values():
            os.close(descriptor)
        self.ours.clear()


class Child:
    """A started command.

    Attributes:
        stdout: Our end of its standard output, non-blocking. The owner closes nothing; `close` does.
        stderr: Our end of its standard error.
        root_pid: Root of its process tree as the host numbers it: ancestor of everything it can start.
    """

    def __init__(self, *, pid: int, pipes: Pipes, reaper: bool, group: Group | None, meter: Meter) -> None:
        self._pid = pid
        self._meter = meter
        # A reaper kills its whole tree when the gate closes, and would orphan it if it were killed itself.
        self._reaper = reaper
        self._group = group
        self._pidfd = os.pidfd_open(pid)
        self._root_pidfd: int | None = None
        self._pipes = pipes
        self._status = b""
        self._heard = False
        self._reaped = False
        self._closed = False
        self.stdout = pipes.ours["stdout"]
        self.stderr = pipes.ours["stderr"]
        self.root_pid = pid

    @property
    def guarded(self) -> bool:
        """A process that the command itself could kill tells how it ended."""
        return self._reaper

    async def open_gate(self, limits: Mapping[int, int]) -> None:
        """Waits for the helper, puts the limits on it and lets the command run.

        Raises:
            SetupFailed: The helper ended or stayed silent.
        """
        try:
            async with asyncio.timeout(_HANDSHAKE_SECONDS):
                while b"\n" not in self._status:
                    chunk = await read_some(self._pipes.ours["status"])
                    if not chunk:
                        raise SetupFailed(f"the helper ended before it started the command: {self._complaint()}")
                    self._status += chunk
        except TimeoutError as error:
            raise SetupFailed(f"the helper did not report within {_HANDSHAKE_SECONDS:g} s") from error
        self.root_pid = int(json.loads(self._status.split(b"\n", 1)[0])["child-pid"])
        try:
            self._root_pidfd = os.pidfd_open(self.root_pid)
            for which, value in limits.items():
                _, hard = resource.prlimit(self.root_pid, which)
                bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
                resource.prlimit(self.root_pid, which, (bound, bound))
            if self._group is not None:
                self._group.add(self.root_pid)
            os.write(self._pipes.ours["gate"], b"\n")
        except OSError as error:  # the helper is gone, or its group is
            raise SetupFailed(
                f"the limits cannot be put on the command: {error.strerror}: {self._complaint()}"
            ) from error

    def _complaint(self) -> str:
        with contextlib.suppress(BlockingIOError):
            lines = os.read(self.stderr, 4096).decode("utf-8", "replace").strip().splitlines()
            return lines[-1][:300] if lines else "no message"
        return "no message"

    @property
    def stdin(self) -> int:
        """Our end of its standard input, non-blocking.

        Raises:
            BrokenPipeError: It has none, or `hang_up` has closed it.
        """
        if "stdin" not in self._pipes.ours:
            raise BrokenPipeError("standard input is closed")
        return self._pipes.ours["stdin"]

    def hang_up(self) -> None:
        """Closes our end of its standard input. Idempotent; nobody may be writing."""
        if "stdin" in self._pipes.ours:
            os.close(self._pipes.take("stdin"))

    async def ended(self) -> None:
        """Returns when the leading process has ended (or the helper died)."""
        await readable(self._pidfd)

    def kill(self) -> None:
        """Kills the whole tree. Idempotent; safe after the end."""
        if self._reaper:
            if "gate" in self._pipes.ours:
                os.close(self._pipes.take("gate"))
            return
        for descriptor in (self._root_pidfd, self._pidfd):
            if descriptor is not None:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)

    def kernel_limit(self) -> LimitReason | None:
        """The limit of its control group that it has hit."""
        return None if self._group is None else self._group.hit()

    async def usage(self, *, most: int) -> Usage:
        """What it uses now; counting may stop soon after `most` tasks."""
        return await self._meter.look(self.root_pid, most=most)

    async def settle(self) -> int | None:
        """Waits until nothing of the tree is alive; the exit code (128 + N for signal N).

        None where there is no code: the tree was killed from here, or the command was never executed.

        Raises:
            RuntimeError: Something of the tree survived SIGKILL (the kernel holds it in an uninterruptible wait).
        """
        try:
            async with asyncio.timeout(_KILL_SECONDS):
                await readable(self._pidfd)
                if self._root_pidfd is not None:
                    await readable(self._root_pidfd)
        except TimeoutError as error:
            raise RuntimeError(f"a sandboxed process tree survived SIGKILL for {_KILL_SECONDS:g} s") from error
        if not self._reaped:
            os.waitpid(self._pid, 0)  # noqa: ASYNC222  (the pidfd says that it has ended)
            self._reaped = True
        while chunk := await read_some(self._pipes.ours["status"]):
            self._status += chunk
        for line in self._status.splitlines():
            report: dict[str, object] = json.loads(line)
            if isinstance(code := report.get("exit-code"), int):
                return code if self._started() else None
        return None

    def _started(self) -> bool:
        """True once the command's first step has said that it runs."""
        if "started" in self._pipes.ours and not self._heard:
            with contextlib.suppress(BlockingIOError):
                self._heard = bool(os.read(self._pipes.ours["started"], 1))
            return self._heard
        return True

    async def close(self) -> None:
        """Kills what is left, waits for it and closes every descriptor. Idempotent.

        Raises:
            RuntimeError: As `settle`; the descriptors are closed all the same.
        """
        if self._closed:
            return
        self._closed = True
        self.kill()
        try:
            await self.settle()
        finally:
            os.close(self._pidfd)
            if self._root_pidfd is not None:
                os.close(self._root_pidfd)
            self._pipes.close()
            if self._group is not None:
                self._group.remove()


def spawn(
    path: str, argv: Sequence[str], pipes: Pipes, *, keep: Sequence[int], group: Group | None, reaper: bool = False,
    meter: Meter | None = None,
) -> Child:  # fmt: skip
    """Starts a helper with the pipes `stdin`, `stdout`, `stderr` and the descriptors in `keep`, and nothing else.

    Everything else is close-on-exec, and posix_spawn shares no memory page with us that a fork would copy, so this is
    safe in a process that runs gRPC. Call it from the event loop's thread only: `--die-with-parent` watches it.

    Raises:
        OSError: The helper cannot be executed. The pipes are closed.
    """
    actions: list[tuple[int, int, int]] = [
        (os.POSIX_SPAWN_DUP2, pipes.theirs["stdin"], 0),
        (os.POSIX_SPAWN_DUP2, pipes.theirs["stdout"], 1),
        (os.POSIX_SPAWN_DUP2, pipes.theirs["stderr"], 2),
    ]
    # Duplicating a descriptor onto itself is how posix_spawn is told to clear close-on-exec in the child.
    actions += [(os.POSIX_SPAWN_DUP2, descriptor, descriptor) for descriptor in keep]
    try:
        pid = os.posix_spawn(
            path,
            list(argv),
            {},
            file_actions=actions,
            setsid=True,
            setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
            setsigmask=[],
        )
    except OSError:
        pipes.close()
        if group is not None:
            group.remove()
        raise
    pipes.close_theirs()
    return Child(pid=pid, pipes=pipes, reaper=reaper, group=group, meter=meter or ProcessTree())


async def readable(descriptor: int) -> None:
    """Returns when a descriptor can be read."""
    loop = asyncio.get_running_loop()
    await _ready(descriptor, loop.add_reader, loop.remove_reader)


async def _ready(
    descriptor: int, add: Callable[[int, Callable[[], None]], None], remove: Callable[[int], object]
) -> None:
    # A pidfd may be waited for by two tasks (end of the leader, settling): each waits on its own duplicate.
    duplicate = os.dup(descriptor)
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake() -> None:
        if not waiter.done():
            waiter.set_result(None)

    add(duplicate, wake)
    try:
        await waiter
    finally:
        remove(duplicate)
        os.close(duplicate)


async def write_all(descriptor: int, data: bytes) -> None:
    """Writes everything to a non-blocking descriptor.

    Raises:
        OSError: Its reader is gone.
    """
    loop = asyncio.get_running_loop()
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:
            await _ready(descriptor, loop.add_writer, loop.remove_writer)


async def read_some(descriptor: int) -> bytes:
    """The next bytes of a non-blocking descriptor; empty at its end."""
    while True:
        try:
            return os.read(descriptor, _READ_BYTES)
        except BlockingIOError:
            await readable(descriptor)
