"""The command line of `forerun demo`."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from rich.console import Console

from forerun.cli.demo.connection import ClientPlatform
from forerun.cli.demo.draws import FAST_SCALE, Draws
from forerun.cli.demo.figures import Figures, figures
from forerun.cli.demo.host import check_running, has_tools, own_platform, running_platform
from forerun.cli.demo.report import Progress, most_telling, print_table, print_timeline, print_times
from forerun.cli.demo.runs import Run
from forerun.cli.demo.show import FAST, PLAIN, Show, Shown
from forerun.cli.demo.toolbench import Toolbench, toolbench
from forerun.client import ForerunClientError, NotConfigured, PlatformUnavailable, local_data_dir
from forerun.runtime.errors import ForerunError
from forerun.runtime.settings import EXIT_FAILED, EXIT_MISSING, exit_code

_DIVERGED = 1
_INTERRUPTED = 128 + signal.SIGINT


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Adds `demo` to the command line."""
    parser = subparsers.add_parser(
        "demo",
        help="the proof: two agents without and with Forerun",
        description=(
            "Starts a platform and runs two scripted agents on real tools: sequentially, in ordinary ordered parallel, "
            "and with Forerun, after a warm-up on other tasks. Needs no network. Exit code 1: a result differed."
        ),
    )
    parser.add_argument(
        "--fast", action="store_true", help="a twentieth of every drawn time: under two minutes instead of twenty"
    )
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="decides tasks, times and whims (default 1)")
    parser.add_argument(
        "--target",
        metavar="ADDRESS",
        help="a platform that runs already: on Kubernetes with `demo.enabled`, or on this machine with the demo's "
        "policy file",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object, everything else on stderr")
    return parser


def run(args: argparse.Namespace) -> int:
    """Runs the command and returns its exit code."""
    errors = Console(stderr=True, highlight=False)
    people = errors if args.json else Console(highlight=False)
    try:
        with _data_dir(args.target) as data:
            made = asyncio.run(_demo(args, data, people, errors))
    except (ForerunError, ForerunClientError, ExceptionGroup) as error:
        return _failed(error, errors)
    except (KeyboardInterrupt, asyncio.CancelledError):
        errors.print("forerun demo: interrupted; tools and platform are stopped")
        return _INTERRUPTED
    if args.json:
        sys.stdout.write(json.dumps(made.as_json()) + "\n")
    return _DIVERGED if made.diverged else 0


async def _demo(args: argparse.Namespace, data: Path, people: Console, errors: Console) -> Figures:
    size, draws = (FAST, Draws(args.seed, FAST_SCALE)) if args.fast else (PLAIN, Draws(args.seed, 1.0))
    task = asyncio.current_task()
    if task is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    print_times(people, draws.scale)
    async with contextlib.AsyncExitStack() as stack:
        tools: Toolbench | None = None
        if args.target:
            await check_running(args.target)
        if args.target and await has_tools(args.target):
            errors.print(f"the tools are those of the platform at {args.target}", markup=False)
            host = running_platform(args.target, None)
        else:
            errors.print("starting tools and platform")
            tools = await stack.enter_async_context(toolbench(data / "tools", draws))
            host = (
                running_platform(args.target, tools)
                if args.target
                else own_platform(data / "platform", tools, concurrency=size.concurrency)
            )
        platform = await stack.enter_async_context(host)
        shown = await Show(draws=draws, size=size).run(
            ClientPlatform(platform.client),
            log_file=None if tools is None else tools.log_file,
            progress=partial(Progress, errors),
        )
        made = figures(shown.records, shown.logged, await platform.surroundings())
    print_table(people, made)
    _print_one_session(people, shown)
    return made


def _print_one_session(people: Console, shown: Shown) -> None:
    telling = most_telling(shown.records[Run.FORERUN])
    other = next(record for record in shown.records[Run.PARALLEL] if record.task == telling.task)
    print_timeline(people, telling, other)


@contextlib.contextmanager
def _data_dir(target: str | None) -> Iterator[Path]:
    """Where the demo keeps its files: a lasting place for a platform that was told of it, else one for this run."""
    if target:
        yield local_data_dir() / "demo"
        return
    folder = Path(tempfile.mkdtemp(prefix="forerun-demo-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _failed(error: ForerunError | ForerunClientError | ExceptionGroup, errors: Console) -> int:
    """Says what went wrong; the exit code."""
    while isinstance(error, ExceptionGroup):
        # Sessions run side by side: the first failure is the reason, the others were cancelled or failed like it.
        first = error.exceptions[0]
        if not isinstance(first, ForerunError | ForerunClientError | ExceptionGroup):
            raise first
        error = first
    errors.print(f"forerun demo: {error.message}", style="red", markup=False)
    if isinstance(error, ForerunError):
        return exit_code(error)
    return EXIT_MISSING if isinstance(error, NotConfigured | PlatformUnavailable) else EXIT_FAILED
