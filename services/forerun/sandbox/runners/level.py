"""The level `pod` on the ladder."""

from __future__ import annotations

from typing import Final

from forerun.sandbox.isolation.launch import Child, Launch, SetupFailed
from forerun.sandbox.isolation.levels import STRENGTH, Isolation, LevelName
from forerun.sandbox.runners.pool import Runners

_GIVES: Final = (
    "a pod of its own for each session: own namespaces, no credentials, "
    "no network but what policies of the cluster allow"
)


class PodLevel:
    """The level `pod`.

    Args:
        runners: Those that can be found.
        own_kernel: Each has a kernel of its own, as the operator of the platform says.
    """

    name: Final = LevelName.POD

    def __init__(self, runners: Runners, *, own_kernel: bool) -> None:
        self._runners = runners
        self._own_kernel = own_kernel

    @property
    def gives(self) -> str:
        """What the level gives where it works."""
        return _GIVES

    async def trial(self) -> tuple[Isolation | None, str]:
        """Runs `true` in a runner."""
        try:
            answer = await self._runners.trial()
        except SetupFailed as error:
            return None, f"no command runs in a runner: {error}"
        why = f"trial command ran in a runner; starting and ending one took {answer.seconds:.2f} s"
        return Pod(inside=answer.isolation, gives=answer.gives, own_kernel=self._own_kernel), why


class Pod:
    """What one runner has told of all."""

    name: Final = LevelName.POD
    mounts_workspace: Final = False

    def __init__(self, *, inside: str, gives: str, own_kernel: bool) -> None:
        self._inside = inside
        self._gives = gives
        self._own_kernel = own_kernel

    @property
    def gives(self) -> str:
        """What it gives, and what of it is the cluster's word alone."""
        kernel = "a kernel of its own (as configured)" if self._own_kernel else "shares the node's kernel"
        return f"{_GIVES}; {kernel}; each command in it at level {self._inside}: {self._gives}"

    async def start(self, launch: Launch) -> Child:
        """Refuses: what this level runs does not run on this machine.

        Raises:
            SetupFailed: Always.
        """
        raise SetupFailed("the level pod runs whole commands, in runners")


def strengths(*, own_kernel: bool) -> dict[LevelName, int]:
    """How strong each level is: runners with a kernel of their own are as strong as `gvisor`."""
    return {**STRENGTH, LevelName.POD: STRENGTH[LevelName.GVISOR if own_kernel else LevelName.POD]}
