"""The policies in force: from a file that is read again when it changes, or from the key-value store."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from google.protobuf.message import DecodeError

from forerun.runtime.bus import Bus, Entry, Subscription
from forerun.runtime.errors import ForerunError
from forerun.runtime.policy import Policies, policies_of, read_policy_file
from forerun.runtime.topology import POLICIES
from forerun.v1 import policy_pb2

_LOG: Final = logging.getLogger(__name__)


class PolicySource:
    """Holds the policies in force and tells when they changed.

    A new version that cannot be used changes nothing: the old one stays in force and the log says why.

    Args:
        bus: Where published policies are.
        path: The file of local mode, or None.
        changed: Called after a change.
    """

    def __init__(self, bus: Bus, path: Path | None, changed: Callable[[], None]) -> None:
        self._bus = bus
        self._path = path
        self._changed = changed
        self._stamp: tuple[int, int] | None = None
        self._published: dict[str, policy_pb2.PolicyFile] = {}
        self._subscription: Subscription | None = None
        self.current = Policies(())

    async def start(self) -> None:
        """Reads what there is.

        Raises:
            PolicyError: the file cannot be used.
        """
        if self._path is not None:
            self._stamp = _stamp(self._path)
            self.current = policies_of(read_policy_file(self._path))
        else:
            self._subscription = await self._bus.kv(POLICIES).watch("", self._hear)

    async def stop(self, _grace_seconds: float) -> None:
        """Stops listening."""
        if self._subscription is not None:
            await self._subscription.close()

    async def look(self) -> None:
        """Looks at the file again."""
        if self._path is None:
            return
        try:
            stamp = _stamp(self._path)
            if stamp == self._stamp:
                return
            self.current = policies_of(read_policy_file(self._path))
            self._stamp = stamp
        except (OSError, ForerunError) as error:
            _LOG.error("the policy file cannot be used", extra={"fields": {"error.type": type(error).__name__}})
            return
        self._changed()

    async def _hear(self, key: str, entry: Entry | None) -> None:
        published = {one: message for one, message in self._published.items() if one != key}
        try:
            if entry is not None:
                published[key] = policy_pb2.PolicyFile.FromString(entry.value)
            self.current = _together(published)
        except (DecodeError, ForerunError) as error:
            _LOG.error("a published policy cannot be used", extra={"fields": {"error.type": type(error).__name__}})
            return
        self._published = published
        self._changed()


def _stamp(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_mtime_ns, status.st_size


def _together(published: Mapping[str, policy_pb2.PolicyFile]) -> Policies:
    """All that was published, by its keys' order.

    Raises:
        PolicyError: something contradicts itself, or something else.
    """
    files = [published[key] for key in sorted(published)]
    return policies_of(
        policy_pb2.PolicyFile(
            policies=[one for file in files for one in file.policies],
            models=[one for file in files for one in file.models],
        )
    )
