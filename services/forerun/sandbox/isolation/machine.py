"""The levels of this machine."""

from __future__ import annotations

import asyncio

from forerun.sandbox.isolation.bubblewrap import BubblewrapLevel
from forerun.sandbox.isolation.cgroups import detect
from forerun.sandbox.isolation.gvisor import GvisorLevel
from forerun.sandbox.isolation.levels import Ladder, probe
from forerun.sandbox.isolation.process import ProcessLevel


async def machine_ladder(runsc: str) -> Ladder:
    """Tries every level.

    Args:
        runsc: The program of the level `gvisor`, by path or by its name on PATH.
    """
    cgroups = await asyncio.to_thread(detect)
    return await probe([
        GvisorLevel(runsc, cgroups=cgroups), BubblewrapLevel(cgroups=cgroups), ProcessLevel(cgroups=cgroups),
    ])  # fmt: skip
