"""The command line of `forerun up`."""

from __future__ import annotations

import argparse
import asyncio
import signal
from pathlib import Path
from typing import Literal

from rich.console import Console

from forerun.cli.up.check import check
from forerun.cli.up.check import show as show_findings
from forerun.cli.up.live import show as show_line
from forerun.cli.up.platform import DEFAULT_PORT, Platform
from forerun.client import local_data_dir
from forerun.runtime.errors import ForerunError
from forerun.runtime.settings import EXIT_FAILED, EXIT_MISSING, exit_code


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Adds `up` to the command line."""
    parser = subparsers.add_parser(
        "up",
        help="the platform on this machine",
        description=(
            "Starts a broker and all services on the loopback interface, and runs until it is interrupted. What runs "
            "where is in run.json of the data directory, which clients find by themselves. SIGHUP restarts one process "
            "after another."
        ),
    )
    parser.add_argument("--check", action="store_true", help="say what is missing on this machine, and start nothing")
    parser.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="data directory (default FORERUN_DATA, else forerun in the user's state directory)",
    )
    parser.add_argument(
        "--policy",
        type=Path,
        metavar="FILE",
        help="policies and tool servers (default policy.yaml of the data directory)",
    )
    parser.add_argument(
        "--port",
        type=int,
        default=DEFAULT_PORT,
        metavar="N",
        help=f"port for agents, the same after a restart (default {DEFAULT_PORT}; 0 takes a free one)",
    )
    parser.add_argument(
        "--replicas",
        type=_replicas,
        action="append",
        default=[],
        metavar="SERVICE=N",
        help="processes of a service (orchestrator, sandbox, verifier; default 1); may be repeated",
    )
    return parser


def _replicas(text: str) -> tuple[str, int]:
    service, _, count = text.partition("=")
    if not count.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not SERVICE=N, such as orchestrator=2")
    return service, int(count)


def run(args: argparse.Namespace) -> int:
    """Runs the command and returns its exit code."""
    data_dir = args.data or local_data_dir()
    console = Console(stderr=True, highlight=False)
    if args.check:
        findings = asyncio.run(check(data_dir, args.policy, args.port))
        show_findings(findings, console)
        return 0 if all(one.fine for one in findings) else EXIT_MISSING
    try:
        platform = Platform(data_dir, args.policy, port=args.port, replicas=dict(args.replicas))
        return asyncio.run(_up(platform, console))
    except ForerunError as error:
        console.print(f"forerun up: {error.message}", style="red", markup=False)
        return exit_code(error)


async def _up(platform: Platform, console: Console) -> int:
    interrupted = asyncio.Event()
    again = asyncio.Event()

    def interrupt() -> None:
        (again if interrupted.is_set() else interrupted).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupt)
    console.print("starting")
    stop = asyncio.ensure_future(interrupted.wait())
    starting = asyncio.ensure_future(platform.start())
    await asyncio.wait([starting, stop], return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        await asyncio.wait([starting])
        return 0
    try:
        await starting
        return await _serve(platform, console, stop)
    finally:
        stop.cancel()
        await _stop(platform, console, again)


async def _serve(platform: Platform, console: Console, stop: asyncio.Task[Literal[True]]) -> int:
    console.print(f"ready at {platform.address}; token in {platform.directory.token_file}", markup=False)
    console.print(f"{_how_to_connect(platform.directory.path)}. Ctrl-C stops.", markup=False)
    failed = asyncio.ensure_future(platform.until_failed())
    rolling = asyncio.ensure_future(roll_when_asked(platform, console))
    # Without a terminal there is nobody who looks at a line that changes every second.
    line = asyncio.ensure_future(show_line(platform, console) if console.is_terminal else asyncio.Event().wait())
    try:
        await asyncio.wait([stop, failed, line, rolling], return_when=asyncio.FIRST_COMPLETED)
        if failed.done():
            console.print(f"forerun up: {failed.result().message}", style="red", markup=False)
            return EXIT_FAILED
        if rolling.done():
            rolling.result()
        return 0
    finally:
        watching = [failed, line, rolling]
        for one in watching:
            one.cancel()
        await asyncio.wait(watching)


async def roll_when_asked(platform: Platform, console: Console) -> None:
    """Restarts everything, one process after another, at each SIGHUP, until it is cancelled.

    Raises:
        Unavailable: a process did not come back in time.
    """
    asked, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, asked.set)
    try:
        while True:
            await asked.wait()
            asked.clear()
            console.print("restarting one process after another")
            await platform.roll()
            console.print("all are restarted")
    finally:
        loop.remove_signal_handler(signal.SIGHUP)


def _how_to_connect(data_dir: Path) -> str:
    if data_dir == local_data_dir().absolute():
        return "Agents on this machine need neither: the client finds both"
    return f"Agents on this machine need neither with FORERUN_DATA={data_dir}"


async def _stop(platform: Platform, console: Console, again: asyncio.Event) -> None:
    """Stops in order; a second interrupt stops the waiting."""
    console.print("stopping")
    stopping = asyncio.ensure_future(platform.stop())
    impatient = asyncio.ensure_future(again.wait())
    await asyncio.wait([stopping, impatient], return_when=asyncio.FIRST_COMPLETED)
    impatient.cancel()
    if not stopping.done():
        platform.end_now()
    await stopping
