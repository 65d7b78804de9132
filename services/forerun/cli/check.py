"""`forerun check`: whether an agent would be served, by one session that is opened and ended."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time

from forerun.client import AsyncClient, ForerunClientError, Mode, NotConfigured, PlatformUnavailable
from forerun.runtime.settings import EXIT_FAILED, EXIT_MISSING

_AGENT = "forerun-check"


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Adds `check` to the command line."""
    return subparsers.add_parser(
        "check",
        help="open one session and end it",
        description=(
            "Opens one session as an agent would and ends it. The platform is FORERUN_ADDRESS with FORERUN_TOKEN, else "
            "the one that `forerun up` started here. Exit code 3: it cannot be reached."
        ),
    )


def run(_args: argparse.Namespace) -> int:
    """Runs the command and returns its exit code."""
    try:
        address, seconds = asyncio.run(_session())
    except (NotConfigured, PlatformUnavailable) as error:
        sys.stderr.write(f"forerun check: {error.message}\n")
        return EXIT_MISSING
    except ForerunClientError as error:
        sys.stderr.write(f"forerun check: {error.message}\n")
        return EXIT_FAILED
    sys.stdout.write(f"a session was served at {address} in {seconds:.2f} s\n")
    return 0


async def _session() -> tuple[str, float]:
    begun = time.monotonic()
    async with AsyncClient() as client:
        async with client.session(_AGENT, mode=Mode.OFF) as session:
            await session.user_turn("check")
        return client.address, time.monotonic() - begun
