"""gVisor, as far as this release knows it: it says whether runsc is there, and runs no command in it."""

from __future__ import annotations

import shutil
from typing import Final

from forerun.sandbox.isolation.levels import Isolation, LevelName


class GvisorLevel:
    """The level `gvisor`, which this release reports and does not use."""

    name: Final = LevelName.GVISOR

    @property
    def gives(self) -> str:
        """What the level would give."""
        return "an own kernel for every command; not: in this release"

    async def trial(self) -> tuple[Isolation | None, str]:
        """Never available: a level that is offered must have run a trial command."""
        found = shutil.which("runsc")
        if found is None:
            return None, "runsc is not installed, and this release runs no commands in it"
        return None, f"{found} is installed, and this release runs no commands in it"
