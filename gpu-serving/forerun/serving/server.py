"""A Triton server as a child process: started, and gone with everything it started when it is stopped.

What is not obvious about this server, and taken care of here:

* All three of its addresses default to 0.0.0.0; here they are on loopback unless somebody names others.
* It starts one process per model instance; killed or crashed it leaves them alive and their shared memory behind. So it
  leads a process group of its own, which is killed as a whole, and its shared memory has a name of its own.
* Whoever started it may be killed and stops nothing then. So a small process waits for that and ends the group.
* It loads nothing at start: models are loaded over its API, where a failure is a typed error and not an exit.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from forerun.runtime.clock import Clock, SystemClock
from forerun.runtime.errors import ErrorReason, FailedPrecondition, Unavailable
from forerun.runtime.ids import Ids, SystemIds
from forerun.runtime.kserve import KServeClient

HOME: Final = Path(".tools") / "triton"
HOW_TO_GET_IT: Final = "`make triton` installs one"
_SHARED_MEMORY: Final = Path("/dev/shm")
_POLL_SECONDS: Final = 0.05
_GONE_POLLS: Final = 100
_LOG_TAIL_BYTES: Final = 4_000
_TRIES: Final = 3
# Waits for the end of its input, which comes with the end of the process that holds the other side.
_END_WITH_US: Final = 'read -r _; kill -s KILL -- "-$1"; rm -f -- "$2"*'
_KEPT: Final = ("HOME", "LANG", "TMPDIR")
# GPUs and engines are told by variables what they may use, and where weights are cached.
_KEPT_PREFIXES: Final = ("NVIDIA_", "CUDA_", "NCCL_", "VLLM_", "TRTLLM_", "HF_")


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """Where a Triton server lies.

    Attributes:
        server: The program.
        backends: Folder of its backends.
        caches: Folder of its response caches.
        python: Folder with the interpreter that models run on; first on PATH, so that they get its packages.
        libraries: Folders of shared libraries.
    """

    server: Path
    backends: Path
    caches: Path
    python: Path
    libraries: Sequence[Path]


def find_installation(home: Path) -> Installation:
    """The server that `make triton` installed into `home`.

    Raises:
        FailedPrecondition: There is none; the message says how to get one.
    """
    try:
        found = json.loads((home / "environment.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FailedPrecondition(
            ErrorReason.DEPENDENCY_MISSING, f"there is no Triton server in {home}: {HOW_TO_GET_IT}"
        ) from error
    return Installation(
        server=Path(found["server"]),
        backends=Path(found["backends"]),
        caches=Path(found["caches"]),
        python=Path(found["python"]),
        libraries=[Path(one) for one in found["libraries"]],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a server is run.

    Attributes:
        start_seconds: Until it must answer.
        stop_seconds: It has so long to end its requests; then its process group is killed.
        shared_memory_bytes: Initial shared memory of each model instance.
        threads: Of numeric libraries inside each model instance.
        verbose: Its own log level; 0 is none.
        grpc_address: `host:port`; None takes a free one on loopback, as for the two that follow.
        http_address: The same over HTTP.
        metrics_address: Of `/metrics`.
        gpu_metrics: Its own metrics tell of GPUs, too.
    """

    start_seconds: float = 60.0
    stop_seconds: float = 10.0
    shared_memory_bytes: int = 4 * 1024 * 1024
    threads: int = 2
    verbose: int = 0
    grpc_address: str | None = None
    http_address: str | None = None
    metrics_address: str | None = None
    gpu_metrics: bool = False


@dataclass(frozen=True, slots=True)
class Running:
    """A server that answers.

    Attributes:
        client: Asks it.
        grpc_address: `host:port`.
        http_address: The same over HTTP.
        metrics_address: Serves `/metrics`.
        pid: Of the server; leads its process group.
        ended: Waits until its process has ended; the exit code.
    """

    client: KServeClient
    grpc_address: str
    http_address: str
    metrics_address: str
    pid: int
    ended: Callable[[], Awaitable[int]]


@contextlib.asynccontextmanager
async def running(
    installation: Installation,
    repository: Path,
    log: Path | None,
    options: Options | None = None,
    *,
    clock: Clock | None = None,
    ids: Ids | None = None,
) -> AsyncIterator[Running]:
    """A server on `repository`, without any model loaded, as long as the context is open.

    Args:
        installation: What to run.
        repository: Its model repository.
        log: File for its output; None: our own standard error.
        options: See there.
        clock: For the bound on its start.
        ids: Names its shared memory.

    Raises:
        Unavailable: It did not start; the message has the end of its log.
    """
    options = Options() if options is None else options
    clock = SystemClock() if clock is None else clock
    prefix = f"forerun_{(SystemIds(clock) if ids is None else ids).token(6)}_"
    for last in (False,) * (_TRIES - 1) + (True,):
        addresses = _addresses(options)
        process = await _spawn(installation, repository, log, options, addresses, prefix)
        client = KServeClient(reached_at(addresses[0]))
        try:
            async with _ending_with_us(process.pid, prefix):
                if await _answers(process, client, clock, options.start_seconds):
                    yield Running(client, *addresses, process.pid, process.wait)
                    return
            # Between choosing the ports and binding them somebody else may have taken one.
            if last or "Address already in use" not in _tail(log):
                raise Unavailable(ErrorReason.PEER_UNAVAILABLE, f"the Triton server did not start: {_tail(log)}")
        finally:
            await client.close()
            await _stop(process, options.stop_seconds)
            for left in _SHARED_MEMORY.glob(f"{prefix}*"):
                left.unlink(missing_ok=True)


def environment(installation: Installation, threads: int) -> dict[str, str]:
    """The variables of the server and, through it, of its models."""
    libraries = [*map(str, installation.libraries), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    kept = {name: value for name, value in os.environ.items() if name in _KEPT or name.startswith(_KEPT_PREFIXES)}
    return kept | {
        "PATH": os.pathsep.join([str(installation.python), os.environ.get("PATH", os.defpath)]),
        "LD_LIBRARY_PATH": os.pathsep.join(libraries),
        "OMP_NUM_THREADS": str(threads),
        "OPENBLAS_NUM_THREADS": str(threads),
    }


async def _spawn(
    installation: Installation,
    repository: Path,
    log: Path | None,
    options: Options,
    addresses: Sequence[str],
    prefix: str,
) -> asyncio.subprocess.Process:
    (grpc, grpc_port), (http, http_port), (metrics, metrics_port) = (one.rsplit(":", 1) for one in addresses)
    command = [
        str(installation.server),
        f"--model-repository={repository}",
        f"--backend-directory={installation.backends}",
        f"--cache-directory={installation.caches}",
        f"--grpc-address={grpc}",
        f"--http-address={http}",
        f"--metrics-address={metrics}",
        f"--grpc-port={grpc_port}",
        f"--http-port={http_port}",
        f"--metrics-port={metrics_port}",
        f"--allow-gpu-metrics={str(options.gpu_metrics).lower()}",
        "--model-control-mode=explicit",
        # The repository says everything; asking the models costs a second start of each.
        "--disable-auto-complete-config",
        # A dead model process otherwise holds the end up for half a minute.
        f"--exit-timeout-secs={max(1, int(options.stop_seconds / 2))}",
        f"--backend-config=python,shm-region-prefix-name={prefix}",
        f"--backend-config=python,shm-default-byte-size={options.shared_memory_bytes}",
        f"--log-verbose={options.verbose}",
    ]
    with contextlib.ExitStack() as opened:
        output = sys.stderr if log is None else opened.enter_context(log.open("wb"))
        return await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment(installation, options.threads),
            start_new_session=True,
        )


@contextlib.asynccontextmanager
async def _ending_with_us(group: int, prefix: str) -> AsyncIterator[None]:
    """Should this process be killed, the server's group goes with it, and its shared memory."""
    watcher = await asyncio.create_subprocess_exec(
        "/bin/sh", "-c", _END_WITH_US, "sh", str(group), str(_SHARED_MEMORY / prefix),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            watcher.kill()
        await watcher.wait()


async def _answers(process: asyncio.subprocess.Process, client: KServeClient, clock: Clock, seconds: float) -> bool:
    deadline = clock.monotonic() + seconds
    while process.returncode is None and clock.monotonic() < deadline:
        if await client.live():
            return True
        await asyncio.sleep(_POLL_SECONDS)
    return False


async def _stop(process: asyncio.subprocess.Process, seconds: float) -> None:
    if process.returncode is None:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await process.wait()
    # Model processes can outlive the server: the group is theirs, too. It is gone once nobody can be signalled.
    for _ in range(_GONE_POLLS):
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            break
        await asyncio.sleep(_POLL_SECONDS)
    await process.wait()


def _addresses(options: Options) -> tuple[str, str, str]:
    """Those that were asked for; free ones for the others."""
    grpc, http, metrics = (f"127.0.0.1:{port}" for port in _free_ports(3))
    return options.grpc_address or grpc, options.http_address or http, options.metrics_address or metrics


def reached_at(address: str) -> str:
    """Where this machine reaches what listens at an address."""
    host, _, port = address.rpartition(":")
    return f"127.0.0.1:{port}" if host in ("", "0.0.0.0") else address


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]


def _tail(log: Path | None) -> str:
    if log is None:
        return "its output says why"
    return log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace")
