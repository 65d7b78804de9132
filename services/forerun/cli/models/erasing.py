"""`forerun models erase`: makes every model server forget a tenant."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from rich.console import Console

from forerun.client import AsyncClient, ErasedServer, ForerunClientError, NotConfigured, PlatformUnavailable
from forerun.core.limits import ERASURE_WAIT_SECONDS
from forerun.runtime.settings import EXIT_FAILED, EXIT_MISSING

LATER: Final = "a server that is away erases it when it is back, before it reads what it has saved"


def add_erase_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `erase`."""
    parser.add_argument("--tenant", required=True, metavar="T", help="whose histories go; users may name their own")
    parser.add_argument(
        "--wait",
        type=float,
        default=15.0,
        metavar="SECONDS",
        help=f"for the servers that run, at most {ERASURE_WAIT_SECONDS:g} (default: 15)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run_erase(args: argparse.Namespace) -> int:
    """Runs the command and returns its exit code."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    try:
        servers = asyncio.run(_erase(args.tenant, args.wait))
    except (NotConfigured, PlatformUnavailable) as error:
        console.print(f"forerun: {error.message}", style="red", markup=False)
        return EXIT_MISSING
    except ForerunClientError as error:
        console.print(f"forerun: {error.message}", style="red", markup=False)
        return EXIT_FAILED
    done = all(one.erased for one in servers)
    if args.json:
        found = {"tenant": args.tenant, "done": done, "servers": [asdict(one) for one in servers]}
        sys.stdout.write(json.dumps(found) + "\n")
    else:
        for line in _lines(args.tenant, servers):
            console.print(line, markup=False)
    return 0 if done else EXIT_FAILED


async def _erase(tenant: str, wait_seconds: float) -> Sequence[ErasedServer]:
    async with AsyncClient() as client:
        return await client.erase_histories(tenant, wait_seconds=wait_seconds)


def _lines(tenant: str, servers: Sequence[ErasedServer]) -> list[str]:
    lines = [f"{one.name}: {_what(one)}" for one in servers]
    if not servers:
        lines.append("no model server runs that follows this platform")
    late = sum(not one.erased for one in servers)
    ending = f"{late} of {len(servers)} servers have not said that it is done; they go on with it" if late else LATER
    return [*lines, f"histories of tenant {tenant}: {ending}"]


def _what(server: ErasedServer) -> str:
    if not server.erased:
        return "not yet"
    return f"{server.histories} histories of {server.tokens} tokens and {server.files} files are erased"
