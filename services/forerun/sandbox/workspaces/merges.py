"""Which forks were merged into a workspace, and under which names.

A fork that a call has made is merged under its own name. One that ran ahead of its call is merged under the name that
the call's own fork would have: so whoever executes the call finds the merge, also when nobody told them of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from forerun.runtime.errors import Aborted, ErrorReason, FailedPrecondition

_REMEMBERED: Final = 4096


class Merges:
    """The merges of one workspace, the latest of them."""

    def __init__(self) -> None:
        self._versions: dict[str, int] = {}
        self._forks: dict[str, str] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._versions

    def __iter__(self) -> Iterator[str]:
        """The names, oldest first."""
        return iter(self._versions)

    def version(self, fork: str, name: str) -> int | None:
        """The version that came of merging this very fork under this name; None where nothing was merged under it.

        Raises:
            Aborted: Another fork was merged under it.
        """
        version = self._versions.get(name)
        if version is not None and self._forks.get(name, name) != fork:
            raise Aborted(
                ErrorReason.STATE_CONFLICT,
                "another fork was merged under this name: the call has taken effect, and executing it gives its answer",
                metadata={"workspace_version": str(version)},
            )
        return version

    def add(self, fork: str, name: str, version: int) -> None:
        """A fork was merged."""
        self._versions[name] = version
        if fork != name:
            self._forks[name] = fork
        while len(self._versions) > _REMEMBERED:
            oldest = next(iter(self._versions))
            del self._versions[oldest]
            self._forks.pop(oldest, None)

    def dump(self) -> dict[str, object]:
        """As the state file holds them."""
        return {"merged": self._versions, "forks": self._forks}

    def load(self, state: Mapping[str, object]) -> None:
        """Takes what `dump` gave.

        Raises:
            FailedPrecondition: It is damaged.
        """
        merged, forks = state.get("merged"), state.get("forks", {})
        if not isinstance(merged, Mapping) or not isinstance(forks, Mapping):
            raise FailedPrecondition(ErrorReason.STORAGE_UNAVAILABLE, "the workspace's state file is damaged")
        self._versions = {str(name): int(version) for name, version in merged.items()}
        self._forks = {str(name): str(fork) for name, fork in forks.items()}
