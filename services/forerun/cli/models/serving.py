"""`forerun models serve`: a Triton server with the models of a profile, for as long as it runs."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import sys
import tempfile
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

from forerun.cli.models.platform import add_platform_options, name_of, platform_of
from forerun.runtime.clock import SystemClock
from forerun.runtime.settings import EXIT_FAILED
from forerun.serving.governed import Following, Governed
from forerun.serving.health import health
from forerun.serving.keeper import Keeper
from forerun.serving.orders import OrderFolder
from forerun.serving.processes import end_processes
from forerun.serving.profile import EngineSpeculation, TensorRtLlmEngine, VllmEngine, read_profile
from forerun.serving.server import HOME, Options, Running, find_installation, running
from forerun.serving.service import ServedProfile, Source
from forerun.serving.watching import HUNG_SECONDS, watch_of


def add_serve_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `serve`."""
    parser.add_argument("--triton", type=Path, default=HOME, metavar="FOLDER", help=f"the server (default: {HOME})")
    parser.add_argument("--grpc-address", default="127.0.0.1:8001", metavar="HOST:PORT", help="of KServe over gRPC")
    parser.add_argument("--http-address", default="127.0.0.1:8000", metavar="HOST:PORT", help="of KServe over HTTP")
    parser.add_argument("--metrics-address", default="127.0.0.1:8002", metavar="HOST:PORT", help="of /metrics")
    parser.add_argument(
        "--health-address", default="127.0.0.1:8003", metavar="HOST:PORT", help="of /live, /ready, /metrics"
    )
    parser.add_argument(
        "--interval",
        type=float,
        default=10.0,
        metavar="SECONDS",
        help="between two checks of every model (default: 10)",
    )
    parser.add_argument(
        "--hung-seconds",
        type=float,
        default=HUNG_SECONDS,
        metavar="SECONDS",
        help="a model that neither answers nor finishes any work for so long is ended and loaded anew; longer than its "
        f"longest pass (default: {HUNG_SECONDS:g})",
    )
    parser.add_argument(
        "--stop-seconds", type=float, default=10.0, metavar="SECONDS", help="texts have so long to end (default: 10)"
    )
    add_platform_options(parser)


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
    profile, clock = read_profile(source.name), SystemClock()
    options = Options(
        stop_seconds=args.stop_seconds,
        grpc_address=args.grpc_address,
        http_address=args.http_address,
        metrics_address=args.metrics_address,
        gpu_metrics=isinstance(profile.target, VllmEngine | TensorRtLlmEngine),
    )
    connect = platform_of(args, clock)
    installation = find_installation(args.triton)
    with tempfile.TemporaryDirectory(prefix="forerun-models-") as folder:
        repository = Path(folder) / "repository"
        repository.mkdir()
        async with running(installation, repository, None, options) as server, contextlib.AsyncExitStack() as closing:
            watch = watch_of(server, end_processes, hung_seconds=args.hung_seconds)
            keeper = Keeper(server.client, repository, watch=watch)
            governed = None
            if connect is not None:
                orders = OrderFolder(Path(folder) / "orders")
                source = replace(source, orders=orders.path)
                following = Following(
                    name=name_of(args), profile=profile.name, pool=args.pool,
                    obeys=not isinstance(profile.speculation, EngineSpeculation),
                )  # fmt: skip
                governed = Governed(following, connect, orders, keeper, clock=clock, say=_say)
                closing.push_async_callback(governed.close)
            served = ServedProfile(keeper, source, _say, clock.monotonic, interval_seconds=args.interval)
            async with health(args.health_address, lambda: served.ready and not stop.is_set(), keeper.metrics):
                return await _until_the_end(_running(served, governed, server, args.broker_seconds), server, stop)


async def _running(served: ServedProfile, governed: Governed | None, server: Running, broker_seconds: float) -> None:
    """Serves, for ever."""
    if governed is not None:
        await governed.hear(broker_seconds)
    await served.start()
    _say(f"ready: KServe on {server.grpc_address}, metrics on {server.metrics_address}")
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(served.watch())
            if governed is not None:
                tasks.create_task(governed.run())
    except ExceptionGroup as group:
        raise group.exceptions[0] from None  # what ended the serving, as whoever waits for it knows it


async def _until_the_end(serve: Coroutine[Any, Any, None], server: Running, stop: asyncio.Event) -> int:
    """Exit code: 0 where it was stopped, 1 where the server ended by itself."""
    serving = asyncio.create_task(serve)
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
