"""The levels of this machine."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from forerun.sandbox.isolation.bubblewrap import BubblewrapLevel
from forerun.sandbox.isolation.cgroups import detect
from forerun.sandbox.isolation.gvisor import GvisorLevel
from forerun.sandbox.isolation.levels import STRENGTH, Candidate, Ladder, LevelName, probe
from forerun.sandbox.isolation.process import ProcessLevel


async def machine_ladder(
    runsc: str, *more: Candidate, strength: Mapping[LevelName, int] = STRENGTH, trial_seconds: float = 10.0
) -> Ladder:
    """Tries every level.

    Args:
        runsc: The program of the level `gvisor`, by path or by its name on PATH.
        more: Levels that are not of this machine.
        strength: How strong each is.
        trial_seconds: Bound of each trial.
    """
    cgroups = await asyncio.to_thread(detect)
    here: list[Candidate] = [
        GvisorLevel(runsc, cgroups=cgroups),
        BubblewrapLevel(cgroups=cgroups),
        ProcessLevel(cgroups=cgroups),
    ]
    return await probe([*more, *here], trial_seconds=trial_seconds, strength=strength)
