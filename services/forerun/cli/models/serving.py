"""`forerun models serve`: a Triton server with the models of a profile, for as long as it runs."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import sys
import tempfile
import time
from pathlib import Path

from forerun.runtime.settings import EXIT_FAILED
from forerun.serving.health import health
from forerun.serving.keeper import Keeper
from forerun.serving.profile import TensorRtLlmEngine, VllmEngine, read_profile
from forerun.serving.server import HOME, Options, Running, find_installation, running
from forerun.serving.service import ServedProfile, Source


def add_serve_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `serve`."""
    parser.add_argument("--triton", type=Path, default=HOME, metavar="FOLDER", help=f"the server (default: {HOME})")
    parser.add_argument("--grpc-address", default="127.0.0.1:8001", metavar="HOST:PORT", help="of KServe over gRPC")
    parser.add_argument("--http-address", default="127.0.0.1:8000", metavar="HOST:PORT", help="of KServe over HTTP")
    parser.add_argument("--metrics-address", default="127.0.0.1:8002", metavar="HOST:PORT", help="of /metrics")
    parser.add_argument("--health-address", default="127.0.0.1:8003", metavar="HOST:PORT", help="of /live and /ready")
    parser.add_argument(
        "--interval",
        type=float,
        default=10.0,
        metavar="SECONDS",
        help="between two checks of every model (default: 10)",
    )
    parser.add_argument(
        "--stop-seconds", type=float, default=10.0, metavar="SECONDS", help="texts have so long to end (default: 10)"
    )


def run_serve(source: Source, args: argparse.Namespace) -> int:
    """Runs the command and returns its exit code.

    Raises:
        ForerunError: There is no server, or the profile cannot be served.
    """
    return asyncio.run(_serve(source, args))


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


async def _serve(source: Source, args: argparse.Namespace) -> int:
    stop = asyncio.Event()
    for one in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(one, stop.set)
    on_gpu = isinstance(read_profile(source.name).target, VllmEngine | TensorRtLlmEngine)
    options = Options(
        stop_seconds=args.stop_seconds,
        grpc_address=args.grpc_address,
        http_address=args.http_address,
        metrics_address=args.metrics_address,
        gpu_metrics=on_gpu,
    )
    installation = find_installation(args.triton)
    with tempfile.TemporaryDirectory(prefix="forerun-models-") as folder:
        repository = Path(folder) / "repository"
        repository.mkdir()
        async with running(installation, repository, None, options) as server:
            keeper = Keeper(server.client, repository)
            served = ServedProfile(keeper, source, _say, time.monotonic, interval_seconds=args.interval)
            async with health(args.health_address, lambda: served.ready and not stop.is_set()):
                return await _until_the_end(served, server, stop)


async def _until_the_end(served: ServedProfile, server: Running, stop: asyncio.Event) -> int:
    """Exit code: 0 where it was stopped, 1 where the server ended by itself."""

    async def serve() -> None:
        await served.start()
        _say(f"ready: KServe on {server.grpc_address}, metrics on {server.metrics_address}")
        await served.watch()

    serving = asyncio.create_task(serve())
    ended = asyncio.ensure_future(server.ended())
    stopped = asyncio.create_task(stop.wait())
    waiting = (serving, ended, stopped)
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for one in waiting:
        if not one.done():
            one.cancel()
    if serving.done() and not serving.cancelled():
        serving.result()
    with contextlib.suppress(asyncio.CancelledError):
        await serving
    if stopped.done() and not stopped.cancelled():
        return 0
    _say("the Triton server has ended by itself; its output above says why")
    return EXIT_FAILED
