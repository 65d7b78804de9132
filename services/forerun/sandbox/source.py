"""Where tool servers are defined: in a file that is read again when it changes, or in the key-value store."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from google.protobuf.message import DecodeError

from forerun.runtime.bus import Bus, Entry, Subscription
from forerun.runtime.errors import ForerunError
from forerun.runtime.policy import read_policy_file
from forerun.runtime.topology import POLICIES
from forerun.sandbox.definitions import definitions_of
from forerun.sandbox.registry import Registry
from forerun.v1 import policy_pb2

_LOG: Final = logging.getLogger(__name__)


class DefinitionSource:
    """Feeds the registry. A version that cannot be used changes nothing: the old one stays, and the log says why.

    Args:
        bus: Where published policies are.
        path: The file of local mode, or None.
        registry: What is fed.
    """

    def __init__(self, bus: Bus, path: Path | None, registry: Registry) -> None:
        self._bus = bus
        self._path = path
        self._registry = registry
        self._stamp: tuple[int, int] | None = None
        self._published: dict[str, policy_pb2.PolicyFile] = {}
        self._subscription: Subscription | None = None

    async def start(self) -> None:
        """Reads what there is.

        Raises:
            ForerunError: The file cannot be used.
        """
        if self._path is None:
            self._subscription = await self._bus.kv(POLICIES).watch("", self._hear)
            return
        self._stamp = _stamp(self._path)
        self._registry.define(definitions_of(read_policy_file(self._path).servers))

    async def stop(self) -> None:
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
            self._registry.define(definitions_of(read_policy_file(self._path).servers))
            self._stamp = stamp
        except (OSError, ForerunError) as error:
            _LOG.error("the policy file cannot be used", extra={"fields": {"error.type": type(error).__name__}})

    async def _hear(self, key: str, entry: Entry | None) -> None:
        before = self._published.get(key)
        try:
            if entry is None:
                self._published.pop(key, None)
            else:
                self._published[key] = policy_pb2.PolicyFile.FromString(entry.value)
            servers = [server for name in sorted(self._published) for server in self._published[name].servers]
            self._registry.define(definitions_of(servers))
        except (DecodeError, ForerunError) as error:
            _LOG.error("published tool servers cannot be used", extra={"fields": {"error.type": type(error).__name__}})
            if before is not None:
                self._published[key] = before
            else:
                self._published.pop(key, None)


def _stamp(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_mtime_ns, status.st_size
