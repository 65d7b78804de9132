"""What there is of one kind in one namespace, kept current by list and watch."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from forerun.operator.kubernetes.client import Client, Object
from forerun.operator.kubernetes.errors import ApiError, Expired
from forerun.runtime.clock import Clock

_LOG: Final = logging.getLogger(__name__)

_BACKOFF_SECONDS: Final = 0.5
_BACKOFF_MAX_SECONDS: Final = 15.0
_RESYNC_SECONDS: Final = 600.0

Key = tuple[str, str]
"""Namespace and name."""


def key_of(found: Object) -> Key:
    """Namespace and name of an object."""
    metadata = found["metadata"]
    return metadata["namespace"], metadata["name"]


class Reflector:
    """Follows one collection.

    Args:
        client: Where it is.
        path: The collection.
        clock: Tells how fresh it is.
        changed: Called after every change of what is wished, after every list, and when following fails.
    """

    def __init__(self, client: Client, path: str, clock: Clock, changed: Callable[[], None]) -> None:
        self._client = client
        self._path = path
        self._clock = clock
        self._changed = changed
        self._version: str | None = None
        self._listed_at = float("-inf")
        self.objects: dict[Key, Object] = {}
        self.synced = False
        """The first list has been read. Before that nothing is known, which is not the same as nothing there."""
        self.error: ApiError | None = None
        """Why the collection cannot be followed now."""
        self.restarts = 0
        """Lists after the first one: what was missed meanwhile is in them."""

    async def run(self) -> None:
        """Follows until it is cancelled."""
        delay = _BACKOFF_SECONDS
        while True:
            try:
                await self._turn()
                delay = _BACKOFF_SECONDS
            except Expired:
                self._version = None
            except ApiError as error:
                self._failed(error)
                await asyncio.sleep(max(delay, error.retry_after_seconds or 0.0))
                delay = min(_BACKOFF_MAX_SECONDS, delay * 2)

    async def _turn(self) -> None:
        """One watch, from a list where there is nothing to go on from."""
        if self._version is None or self._clock.monotonic() - self._listed_at > _RESYNC_SECONDS:
            await self._list()
        assert self._version is not None
        async for what, found in self._client.watch(self._path, self._version):
            self._version = found["metadata"]["resourceVersion"]
            self.error = None
            if what == "BOOKMARK":
                continue
            before = self.objects.pop(key_of(found), None)
            if what != "DELETED":
                self.objects[key_of(found)] = _lean(found)
            # The status that we have written ourselves is no news: else a look at 500 objects would cause 500 more.
            if what == "DELETED" or before is None or _wish(before) != _wish(found):
                self._changed()

    async def _list(self) -> None:
        items, version = await self._client.list(self._path)
        self.objects = {key_of(found): _lean(found) for found in items}
        self._version, self._listed_at, self.error = version, self._clock.monotonic(), None
        self.restarts += self.synced
        self.synced = True
        self._changed()

    def _failed(self, error: ApiError) -> None:
        if self.error is None:
            _LOG.warning(
                "a collection cannot be followed",
                extra={
                    "fields": {
                        "forerun.resource": self._path.rpartition("/")[2],
                        "error.type": error.reason or str(error.status),
                    }
                },
            )
        self.error = error
        self._changed()


def _wish(found: Object) -> tuple[str, int]:
    """What changes when somebody wants something else of an object, or makes it anew."""
    metadata = found["metadata"]
    return metadata["uid"], metadata.get("generation", 0)


def _lean(found: Object) -> Object:
    """The object without what only the API server needs: on large objects it is half of the memory."""
    found["metadata"].pop("managedFields", None)
    return found
