"""`forerun off` and `forerun on`: the kill switch of speculation."""

from __future__ import annotations

import argparse
import asyncio
import getpass
from collections.abc import Callable

from rich.console import Console

from forerun.client import AsyncClient, ForerunClientError, NotConfigured, PlatformUnavailable
from forerun.runtime.settings import EXIT_FAILED, EXIT_MISSING

_Parsers = argparse._SubParsersAction


def add_parser(subparsers: _Parsers[argparse.ArgumentParser], *, on: bool) -> argparse.ArgumentParser:
    """Adds `on` or `off` to the command line."""
    word = "on" if on else "off"
    parser = subparsers.add_parser(
        word,
        help=f"switch speculation {word}",
        description=(
            f"Switches speculation {word}, everywhere within a second. Calls of agents go on either way. The platform "
            "is FORERUN_ADDRESS with FORERUN_TOKEN, else the one that `forerun up` started here."
        ),
    )
    parser.add_argument(
        "--tenant", default="", metavar="T", help="only for this tenant (default: for all; needs an operator's token)"
    )
    parser.add_argument("--reason", default="", help="for the record")
    return parser


def runner(*, on: bool) -> Callable[[argparse.Namespace], int]:
    """What runs the command."""

    def run(args: argparse.Namespace) -> int:
        console = Console(stderr=True, highlight=False)
        try:
            address = asyncio.run(_switch(on=on, tenant=args.tenant, reason=args.reason or _default_reason()))
        except (NotConfigured, PlatformUnavailable) as error:
            console.print(f"forerun: {error.message}", style="red", markup=False)
            return EXIT_MISSING
        except ForerunClientError as error:
            console.print(f"forerun: {error.message}", style="red", markup=False)
            return EXIT_FAILED
        whom = f"tenant {args.tenant}" if args.tenant else "all tenants"
        console.print(f"speculation is {'on' if on else 'off'} for {whom} at {address}", markup=False)
        return 0

    return run


async def _switch(*, on: bool, tenant: str, reason: str) -> str:
    async with AsyncClient() as client:
        await client.set_speculation(on=on, tenant=tenant, reason=reason)
        return client.address


def _default_reason() -> str:
    try:
        return f"switched by {getpass.getuser()}"
    except (KeyError, OSError):
        return "switched by the command line"
