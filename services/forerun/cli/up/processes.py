"""One service as a child process: started, watched, started again, ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from forerun.runtime.errors import ErrorReason, Unavailable

TETHER: Final = (sys.executable, "-I", "-S", str(Path(__file__).with_name("tether.py")))

_BACKOFF_INITIAL_SECONDS: Final = 0.2
_BACKOFF_MAX_SECONDS: Final = 5.0
# Whoever ran for so long was fine: its next end starts with a short pause again.
_STABLE_SECONDS: Final = 30.0
# Ends in a row, each soon after its start, before the platform gives up: about half a minute.
_QUICK_ENDS_MAX: Final = 10
_LOG_MAX_BYTES: Final = 32 * 1024 * 1024
_TAIL_BYTES: Final = 4_000
_TAIL_LINES: Final = 15


def tether() -> list[str]:
    """The command before a child's own that makes it end with this process."""
    return [*TETHER, str(os.getpid())]


def log_tail(path: Path) -> str:
    """The last lines of a log."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    return "\n".join(lines[-_TAIL_LINES:])


class Backoff:
    """Pauses between starts of one thing, and when to give up."""

    def __init__(self) -> None:
        self._quick_ends = 0

    def next_seconds(self, ran_seconds: float, *, asked_for: bool = False) -> float | None:
        """The pause after a run of so many seconds, or after an end that was asked for; None to give up."""
        self._quick_ends = 0 if asked_for or ran_seconds >= _STABLE_SECONDS else self._quick_ends + 1
        if self._quick_ends > _QUICK_ENDS_MAX:
            return None
        return min(_BACKOFF_INITIAL_SECONDS * 2.0 ** max(0, self._quick_ends - 1), _BACKOFF_MAX_SECONDS)


class ServiceProcess:
    """A service.

    Args:
        name: Its name among the processes of the platform.
        service: The service.
        environment: All of its environment.
        log_file: Gets its output.
        changed: Called after every start.
    """

    def __init__(
        self, name: str, service: str, environment: Mapping[str, str], log_file: Path, changed: Callable[[], None]
    ) -> None:
        self.name = name
        self.service = service
        self.restarts = 0
        self._command: Sequence[str] = (sys.executable, "-m", f"forerun.{service}")
        self._environment = dict(environment)
        self._log_file = log_file
        self._changed = changed
        self._process: asyncio.subprocess.Process | None = None
        self._started_at = 0.0
        self._stopping = False
        self._restarting = False
        self._killed = False
        self._started = asyncio.Event()

    @property
    def pid(self) -> int | None:
        """Process id while it runs."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    @property
    def log_tail(self) -> str:
        """The end of its log."""
        return log_tail(self._log_file)

    async def start(self) -> None:
        """Starts it; whether it works is another question."""
        if self._log_file.exists() and self._log_file.stat().st_size > _LOG_MAX_BYTES:
            self._log_file.replace(self._log_file.with_suffix(".log.1"))
        self._started_at = asyncio.get_running_loop().time()
        with self._log_file.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *tether(),
                *self._command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                start_new_session=True,  # Ctrl-C in a terminal is for us; we end the services in order
            )
        self._started.set()
        self._changed()

    async def ended(self) -> int:
        """Waits for its end; the exit code."""
        assert self._process is not None
        return await self._process.wait()

    async def watch(self) -> None:
        """Starts it again whenever it ends, until it is stopped.

        Raises:
            Unavailable: it ends again and again.
        """
        backoff = Backoff()
        while True:
            code = await self.ended()
            if self._stopping:
                return
            if self._restarting:
                self._restarting = False
                await self.start()
                continue
            ran_seconds = asyncio.get_running_loop().time() - self._started_at
            pause_seconds = backoff.next_seconds(ran_seconds, asked_for=self._killed)
            self._killed = False
            if pause_seconds is None:
                raise Unavailable(
                    ErrorReason.PEER_UNAVAILABLE,
                    f"{self.name} ends again and again (exit code {code}); its log ends with:\n{self.log_tail}",
                    metadata={"service": self.name},
                )
            await asyncio.sleep(pause_seconds)
            self.restarts += 1
            await self.start()

    def kill(self) -> None:
        """Ends it as a crash would. It is started again, and nothing is concluded from its end."""
        self._killed = True
        self._signal(signal.SIGKILL)

    async def restart(self, timeout_seconds: float) -> None:
        """Stops it in order, by force after the time-out, and returns when its next process runs.

        It is no accident: it is not counted in `restarts`, and there is no pause.
        """
        self._restarting = True
        self._started.clear()
        await self._end(timeout_seconds)
        await self._started.wait()

    async def stop(self, timeout_seconds: float) -> bool:
        """Stops it, by force after the time-out. False where force was needed."""
        self._stopping = True
        return await self._end(timeout_seconds)

    async def _end(self, timeout_seconds: float) -> bool:
        process = self._process
        if process is None:
            return True
        self._signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(timeout_seconds):
                await process.wait()
            return True
        except TimeoutError:
            self.kill()
            await process.wait()
            return False

    def _signal(self, number: signal.Signals) -> None:
        pid = self.pid
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
