"""Processes of a cluster, which another process may have to end: their ids are kept in files.

`make cluster-up` ends and the cluster stays; `make cluster-down` finds it by these files. An id alone could meanwhile
be somebody else's, so the time at which the process started is kept with it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from forerun.cli.up import tether
from tests.cluster.kubernetes.errors import ClusterError

_POLL_SECONDS: Final = 0.05
_LOG_TAIL_BYTES: Final = 3_000


def wait_until(what: str, seconds: float, holds: Callable[[], bool]) -> None:
    """Returns when `holds()`.

    Raises:
        ClusterError: it did not within `seconds`; says what was waited for.
    """
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise ClusterError(f"{what}: not within {seconds:g} s")
        time.sleep(_POLL_SECONDS)


class Processes:
    """Starts and ends processes, and remembers them in a directory.

    Args:
        directory: Where ids and logs are.
        tethered: They end when this process does, also when it is killed: for tests. False for clusters that stay.
    """

    def __init__(self, directory: Path, *, tethered: bool) -> None:
        self._directory = directory
        self._tethered = tethered
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        (directory / "logs").mkdir(parents=True, exist_ok=True)

    def start(self, name: str, command: Sequence[str | Path], environment: dict[str, str] | None = None) -> int:
        """Starts one whose output goes to `logs/NAME.log`; its id.

        Raises:
            ClusterError: there is no such program.
        """
        program = shutil.which(command[0])
        if program is None:
            raise ClusterError(f"{name}: there is no program {command[0]}")
        arguments = [program, *map(str, command[1:])]
        if self._tethered:
            arguments = [sys.executable, tether.__file__, str(os.getpid()), *arguments]
        with self.log(name).open("ab") as log:
            child = subprocess.Popen(
                arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env={**os.environ, **(environment or {})},
            )  # fmt: skip
        self._children[name] = child
        self._file(name).write_text(f"{child.pid} {_started(child.pid)}")
        return child.pid

    def pid(self, name: str) -> int | None:
        """The id of one that runs; None when it has ended or was never started."""
        try:
            pid, started = self._file(name).read_text().split()
            if _started(int(pid)) == started:
                return int(pid)
        except (FileNotFoundError, ValueError):
            pass  # never started, or ended by another process
        if child := self._children.pop(name, None):
            child.wait()  # it has ended: this only takes its exit status
        return None

    def require(self, *names: str) -> None:
        """Checks that they run.

        Raises:
            ClusterError: one has ended; holds the end of its log.
        """
        for name in names:
            if self.pid(name) is None:
                raise ClusterError(f"{name} has ended; its log says: {self.log_tail(name)}")

    def stop(self, name: str, *, seconds: float = 10.0, kill: bool = False) -> None:
        """Ends one; by force after `seconds`, or at once where that is known to be fine. May be repeated."""
        pid = self.pid(name)
        if pid is not None:
            self._signal(pid, signal.SIGKILL if kill else signal.SIGTERM)
            try:
                wait_until(f"end of {name}", seconds, lambda: self.pid(name) is None)
            except ClusterError:
                self._signal(pid, signal.SIGKILL)
                wait_until(f"end of {name} by force", seconds, lambda: self.pid(name) is None)
        self._file(name).unlink(missing_ok=True)

    def log(self, name: str) -> Path:
        """The log of one."""
        return self._directory / "logs" / f"{name}.log"

    def log_tail(self, name: str) -> str:
        """The end of its log."""
        log = self.log(name)
        return log.read_bytes()[-_LOG_TAIL_BYTES:].decode("utf-8", "replace") if log.exists() else "(nothing)"

    def _file(self, name: str) -> Path:
        return self._directory / f"{name}.pid"

    @staticmethod
    def _signal(pid: int, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _started(pid: int) -> str:
    """When a process started, in ticks since boot; empty when there is none, or only what a parent has to reap."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return "" if fields[0] in "ZX" else fields[19]
