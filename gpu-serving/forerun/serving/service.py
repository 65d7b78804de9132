"""Serving a profile as long as a process runs: what dies is healed, a changed profile takes over beside the old one.

The server's own process is nobody's to heal here: when it ends, serving ends, and whoever started it starts it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from forerun.runtime.errors import ErrorReason, FailedPrecondition, ForerunError
from forerun.serving.check import check
from forerun.serving.keeper import Keeper
from forerun.serving.probes import LOADED_ANEW, Probe
from forerun.serving.profile import Profile, TensorRtLlmEngine, VllmEngine, read_profile
from forerun.serving.render.repository import Depths, Files, render
from forerun.serving.watching import ServerHung

Say = Callable[[str], None]
"""Tells the operator one sentence."""

STALE_CHECKS: Final = 5
"""Readiness that was found so many intervals ago is none."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where the profile comes from.

    Attributes:
        name: Of a built-in profile, or its file.
        base: Folder that relative paths of it count from.
        depths: The schedule of an engine that speculates itself.
        orders: Folder in which models find what they are told while they run; None: nothing.
    """

    name: str
    base: Path
    depths: Callable[[Profile], Depths]
    orders: Path | None = None

    def stamp(self) -> bytes:
        """Changes when the profile does; empty for a built-in one, and for a file that cannot be read now."""
        try:
            return Path(self.name).read_bytes()
        except OSError:
            return b""

    def read(self, generation: int) -> tuple[Profile, Files]:
        """The profile and the models that it becomes.

        Raises:
            ForerunError: It cannot be served; the message says why.
        """
        profile = read_profile(self.name)
        problems = check(profile, base=self.base).problems
        if problems:
            raise FailedPrecondition(ErrorReason.SETTING_INVALID, f"{self.name}: {'; '.join(problems)}")
        files = render(profile, self.depths(profile), base=self.base, generation=generation, orders=self.orders)
        return profile, files


class ServedProfile:
    """One profile on one server.

    Args:
        keeper: Of the server.
        source: Of the profile.
        say: Told of what changes.
        now: Seconds, never going backwards.
        interval_seconds: Between checks.
    """

    def __init__(
        self, keeper: Keeper, source: Source, say: Say, now: Callable[[], float], *, interval_seconds: float
    ) -> None:
        self._keeper = keeper
        self._source = source
        self._say = say
        self._now = now
        self._interval = interval_seconds
        self._stamp = b""
        self._generation = 0
        self._found: Sequence[Probe] = ()
        self._checked_at = -1.0

    @property
    def ready(self) -> bool:
        """At the last check, which was not long ago, every model answered a real inference or was busy with others."""
        fresh = self._now() - self._checked_at <= STALE_CHECKS * self._interval
        return bool(self._found) and fresh and all(one.health.serves for one in self._found)

    async def start(self) -> None:
        """Loads the models and asks each of them once.

        Raises:
            ForerunError: They cannot be loaded, or do not answer.
        """
        self._stamp = self._source.stamp()
        await self._deploy()
        await self._check()
        failing = [one for one in self._found if not one.health.serves]
        if failing:
            said = "; ".join(f"{one.model}: {one.reason}" for one in failing)
            raise FailedPrecondition(ErrorReason.STATE_CONFLICT, f"loaded, but without an answer: {said}")

    async def watch(self) -> None:
        """Checks, heals and follows the profile, for ever.

        Raises:
            ServerHung: The server itself does not answer any more: whoever started this starts it again.
        """
        deploying: asyncio.Task[None] | None = None
        try:
            while True:
                await asyncio.sleep(self._interval)
                await self._check()
                if deploying is None or deploying.done():
                    deploying = self._follow()
        finally:
            if deploying is not None:
                deploying.cancel()

    def _follow(self) -> asyncio.Task[None] | None:
        stamp = self._source.stamp()
        # A file that is being replaced may be absent for a moment.
        if not stamp or stamp == self._stamp:
            return None
        self._stamp = stamp  # what cannot be served is said once
        return asyncio.create_task(self._take_over())

    async def _take_over(self) -> None:
        try:
            await self._deploy()
        except ForerunError as error:
            self._say(f"the changed profile is not served, the one before stays: {error.message}")

    async def _deploy(self) -> None:
        profile, files = self._source.read(self._generation + 1)
        if self._generation and isinstance(profile.target, VllmEngine | TensorRtLlmEngine):
            raise FailedPrecondition(
                ErrorReason.STATE_CONFLICT,
                f"{profile.target.kind} fills its GPUs, so that a second generation finds no room: start this anew",
            )
        await self._keeper.deploy(files)
        self._generation += 1
        self._say(f"profile {profile.name} is served, generation {self._generation}: {', '.join(self._keeper.models)}")

    async def _check(self) -> None:
        healed = self._keeper.healed
        try:
            found = await self._keeper.check()
        except ServerHung:
            raise
        except ForerunError as error:
            self._found = ()
            self._say(f"a check failed, the next one is in {self._interval:g} s: {error.message}")
            return
        self._tell(found)
        if self._keeper.healed > healed:
            self._say(f"loaded anew: {', '.join(one.model for one in found if one.health in LOADED_ANEW)}")
            found = [await self._keeper.probe(one.model) for one in found]
        self._found, self._checked_at = found, self._now()

    def _tell(self, found: Sequence[Probe]) -> None:
        before = {one.model: one.health for one in self._found}
        for one in found:
            if before.get(one.model, one.health) is not one.health or not one.health.serves:
                self._say(f"{one.model} {one.health.value}{f': {one.reason}' if one.reason else ''}")
