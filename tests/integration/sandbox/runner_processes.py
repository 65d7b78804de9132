"""Real runner processes on loopback: as in a pod the first of their process namespace, and without capabilities."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import grpc

from forerun.cli.credentials.certificates import Pair, Purpose, issue, new_authority
from forerun.cli.credentials.runner_key import make_runner_key
from forerun.runtime.tls import Tls

_READY_SECONDS = 30.0
# One who may make namespaces runs them as a pod does; elsewhere they are ordinary processes.
AS_IN_A_POD = os.geteuid() == 0 and shutil.which("unshare") is not None and shutil.which("setpriv") is not None


@dataclass(frozen=True, slots=True)
class Authority:
    """What runners and workers know each other by."""

    pair: Pair
    folder: Path

    @classmethod
    def new(cls, folder: Path) -> Authority:
        now = datetime.now(UTC)
        made = cls(new_authority(now, "runners"), folder)
        worker = issue(made.pair, ["forerun-worker"], now, purposes=(Purpose.CLIENT,))
        folder.mkdir(parents=True)
        for name, content in (
            ("ca.crt", made.pair.certificate),
            ("tls.crt", worker.certificate),
            ("tls.key", worker.key),
        ):
            (folder / name).write_bytes(content)
        return made

    @property
    def worker_tls(self) -> Tls:
        return Tls(
            certificate_file=self.folder / "tls.crt",
            key_file=self.folder / "tls.key",
            ca_file=self.folder / "ca.crt",
        )


@dataclass(slots=True)
class RunnerProcess:
    """One of them."""

    root: Path
    port: int
    process: subprocess.Popen[bytes]

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The runner itself, behind what made its namespaces."""
        pid = self.process.pid
        while AS_IN_A_POD and Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0] != sys.executable.encode():
            pid = int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
        return pid

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        self.process.wait(timeout=10)

    def log(self) -> str:
        return (self.root / "log").read_text()

    async def over(self, seconds: float = 15.0) -> int:
        """Its exit code, once it has ended."""
        deadline = time.monotonic() + seconds
        while (code := self.process.poll()) is None:
            assert time.monotonic() < deadline, f"the runner goes on:\n{self.log()}"
            await asyncio.sleep(0.02)
        return code


def prepare(root: Path, authority: Authority) -> None:
    """What is in a pod before its runner starts."""
    for name in ("key", "data"):
        (root / name).mkdir(parents=True, exist_ok=True)
    make_runner_key(authority.pair, root / "key", "127.0.0.1", datetime.now(UTC))


def start(root: Path, *, disk_mib: int = 0, **settings: object) -> RunnerProcess:
    """Starts a runner in a place that is prepared, or where another one was; as in a pod also with a small disk."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = Path("/mnt") if AS_IN_A_POD else root
    said = {
        "LISTEN_ADDRESS": f"127.0.0.1:{port}",
        "KEY_DIRECTORY": place / "key",
        "DATA_DIR": place / "data",
        "ISOLATION": "process",
        **settings,
    }
    environment = {
        "PATH": os.environ["PATH"],
        "TMPDIR": str(place / "data"),
        **{f"FORERUN_RUNNER_{name.upper()}": str(value) for name, value in said.items()},
    }
    command = [sys.executable, "-m", "forerun.sandbox.runners"]
    if AS_IN_A_POD:
        weak = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all", "--no-new-privs"]
        # As in a pod it sees its own files, and none of the worker's or of other runners.
        small = f"mount -t tmpfs -o size={disk_mib}m none /mnt/data && " if disk_mib else ""
        own = f'mount --bind "$1" /mnt && {small}mount -t tmpfs none "$2" && shift 2 && exec "$@"'
        unshare = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
        command = [*unshare, "sh", "-c", own, "sh", str(root), str(root.parents[1]), *weak, *command]
    with (root / "log").open("ab") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd="/")
    return RunnerProcess(root, port, process)


def until_ready(runner: RunnerProcess) -> None:
    deadline = time.monotonic() + _READY_SECONDS
    while True:
        with socket.socket() as connection:
            if connection.connect_ex(("127.0.0.1", runner.port)) == 0:
                return
        assert runner.process.poll() is None, runner.log()
        assert time.monotonic() < deadline, runner.log()
        time.sleep(0.05)


@contextmanager
def runners(
    folder: Path, authority: Authority, count: int, *, disk_mib: int = 0, **settings: object
) -> Iterator[list[RunnerProcess]]:
    """So many that are ready."""
    with ExitStack() as stack:
        started = []
        for number in range(count):
            root = folder / f"runner-{number}"
            prepare(root, authority)
            started.append(start(root, disk_mib=disk_mib, **settings))
            stack.callback(ended, started[-1])
        for one in started:
            until_ready(one)
        yield started


def ended(runner: RunnerProcess) -> None:
    if runner.process.poll() is None:
        runner.process.kill()
    runner.process.wait(timeout=10)


def channel(authority: Authority, address: str) -> grpc.aio.Channel:
    return grpc.aio.secure_channel(address, authority.worker_tls.channel_credentials())
