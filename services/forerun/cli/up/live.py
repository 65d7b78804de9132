"""What `forerun up` shows while it runs: one line, once a second."""

from __future__ import annotations

import asyncio
import contextlib

from rich.console import Console
from rich.live import Live
from rich.text import Text

from forerun.cli.up.platform import Platform
from forerun.client import AsyncClient, ForerunClientError, Totals

_PERIOD_SECONDS = 1.0


def describe(totals: Totals | None, restarts: int) -> str:
    """The line. What is not known is a dash, never a zero."""
    if totals is None:
        return "waiting for the orchestrator"
    parts = [
        _count(totals.sessions, "session"),
        _count(totals.calls, "call"),
        f"hit rate {_share(totals.hits, totals.launched)}",
        f"waste {totals.wasted_seconds:.1f} s",
        f"saved (estimate) {totals.saved_estimated_seconds:.1f} s",
    ]
    if totals.memo_hits:
        parts.append(f"{totals.memo_hits} from memory")
    if totals.unknown:
        parts.append(f"{totals.unknown} with unknown outcome")
    if restarts:
        parts.append(_count(restarts, "restart"))
    return " · ".join(parts)


async def show(platform: Platform, console: Console) -> None:
    """Shows the line until it is cancelled."""
    async with AsyncClient(platform.address, platform.token) as client:
        with Live(Text(describe(None, 0)), console=console, auto_refresh=False, transient=True) as live:
            while True:
                totals: Totals | None = None
                with contextlib.suppress(ForerunClientError):  # it restarts; the line says so
                    totals = await client.get_totals()
                live.update(Text(describe(totals, platform.restarts)), refresh=True)
                await asyncio.sleep(_PERIOD_SECONDS)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "–"
