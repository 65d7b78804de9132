"""The ladder of isolation levels and the choice among them.

A level is *available* only after a real trial run on this machine; a level that merely ought to work is not listed as
available. What a level cannot enforce is said in `gives`, and is shown by `forerun up --check` and `Describe`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, Protocol

from forerun.runtime.errors import ErrorReason, FailedPrecondition
from forerun.sandbox.isolation.launch import Child, Launch


class LevelName(StrEnum):
    """Names of the levels, as policies write them."""

    GVISOR = "gvisor"
    POD = "pod"
    BUBBLEWRAP = "bubblewrap"
    PROCESS = "process"


class Choice(StrEnum):
    """What the operator of a worker may choose: a level, or the strongest that works."""

    AUTO = "auto"
    GVISOR = "gvisor"
    POD = "pod"
    BUBBLEWRAP = "bubblewrap"
    PROCESS = "process"


STRENGTH: Final[Mapping[LevelName, int]] = {
    LevelName.PROCESS: 0, LevelName.BUBBLEWRAP: 1, LevelName.POD: 2, LevelName.GVISOR: 3,
}  # fmt: skip
"""Which level is as strong as which other. Pods with a kernel of their own are as strong as `gvisor`."""


@dataclass(frozen=True, slots=True)
class Level:
    """One rung of the ladder, as found on this machine.

    Attributes:
        name: The level.
        available: A trial command ran in it.
        why: What the trial showed, or what is missing and how to get it.
        gives: What it gives and, after "not:", what it does not enforce here.
    """

    name: LevelName
    available: bool
    why: str
    gives: str


class Isolation(Protocol):
    """Starts commands at one level."""

    @property
    def name(self) -> LevelName:
        """The level."""
        ...

    @property
    def gives(self) -> str:
        """What it gives and what it does not enforce here."""
        ...

    @property
    def mounts_workspace(self) -> bool:
        """True where a command sees its workspace at `/workspace` and nothing else of the host can be written."""
        ...

    async def start(self, launch: Launch) -> Child:
        """Starts a command; it runs when this returns.

        Raises:
            SetupFailed: The level itself did not come up; the command has not started.
        """
        ...


@dataclass(frozen=True, slots=True)
class Ladder:
    """All levels of this machine and those that can be used.

    Attributes:
        levels: Every level, strongest first.
        usable: The available ones, by name.
        preferred: The level that the operator has set; None takes the strongest.
        strength: How strong each is here.
    """

    levels: tuple[Level, ...]
    usable: Mapping[LevelName, Isolation]
    preferred: LevelName | None = None
    strength: Mapping[LevelName, int] = field(default_factory=lambda: STRENGTH)

    @property
    def strongest(self) -> LevelName:
        """The strongest available level."""
        return max(self.usable, key=lambda name: (self.strength[name], STRENGTH[name]))

    @property
    def in_use(self) -> LevelName:
        """The level of commands whose server does not ask for a stronger one."""
        return self.preferred or self.strongest

    def chosen(self, choice: Choice) -> Ladder:
        """The same levels with the operator's choice; `auto` takes the strongest.

        Raises:
            FailedPrecondition: The level is not available.
        """
        if choice is Choice.AUTO:
            return replace(self, preferred=None)
        level = LevelName(choice.value)
        if level not in self.usable:
            raise self._unavailable("isolation", level)
        return replace(self, preferred=level)

    def choose(self, minimum: LevelName = LevelName.PROCESS) -> Isolation:
        """The level in use where it is as strong as `minimum`, else the strongest.

        Raises:
            FailedPrecondition: Nothing as strong as `minimum` is available.
        """
        for level in (self.in_use, self.strongest):
            if self.strength[level] >= STRENGTH[minimum]:
                return self.usable[level]
        raise self._unavailable("min_isolation", minimum)

    def without(self, name: LevelName) -> Ladder:
        """The same levels without one of them."""
        usable = {level: isolation for level, isolation in self.usable.items() if level is not name}
        preferred = None if self.preferred is name else self.preferred
        return replace(self, usable=usable, preferred=preferred)

    def _unavailable(self, setting: str, wanted: LevelName) -> FailedPrecondition:
        why = next((level.why for level in self.levels if level.name is wanted), "it is not built into this release")
        best = self.strongest
        return FailedPrecondition(
            ErrorReason.ISOLATION_UNAVAILABLE,
            f"{setting} is {wanted.value}, and this worker's strongest level is {best.value}: {why}",
            metadata={setting: wanted.value, "available": best.value},
        )


class Candidate(Protocol):
    """A level that can be tried."""

    @property
    def name(self) -> LevelName:
        """The level."""
        ...

    async def trial(self) -> tuple[Isolation | None, str]:
        """Runs a real command. The level, if it works, and why or why not."""
        ...

    @property
    def gives(self) -> str:
        """What the level gives where it works."""
        ...


async def probe(
    candidates: Sequence[Candidate], *, trial_seconds: float = 10.0, strength: Mapping[LevelName, int] = STRENGTH
) -> Ladder:
    """Tries every level on this machine.

    Args:
        candidates: Levels to try; one that always works (`process`) must be among them.
        trial_seconds: Bound of each trial. A level that hangs is not available.
        strength: How strong each is here.
    """
    levels: list[Level] = []
    usable: dict[LevelName, Isolation] = {}
    for candidate in sorted(candidates, key=lambda item: STRENGTH[item.name], reverse=True):
        try:
            async with asyncio.timeout(trial_seconds):
                isolation, why = await candidate.trial()
        except TimeoutError:
            isolation, why = None, f"the trial command did not end within {trial_seconds:g} s"
        gives = candidate.gives if isolation is None else isolation.gives
        levels.append(Level(candidate.name, isolation is not None, why, gives))
        if isolation is not None:
            usable[candidate.name] = isolation
    return Ladder(tuple(levels), usable, strength=strength)
