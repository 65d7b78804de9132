"""Writes status and events: a few at a time, only what differs, the newest wish of each object only."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from forerun.operator.crds.kinds import API_VERSION, Kind
from forerun.operator.kubernetes import paths
from forerun.operator.kubernetes.client import FIELD_MANAGER, Client, Object
from forerun.operator.kubernetes.errors import ApiError, Missing
from forerun.runtime.clock import Clock
from forerun.runtime.ids import Ids

_LOG: Final = logging.getLogger(__name__)

_WRITERS: Final = 8
_AGAIN_SECONDS: Final = 5.0
_EVENTS: Final = 256
_EVENT_SECONDS: Final = 2.0
_NOTE_CHARS: Final = 1_000
_REMEMBERED: Final = 10_000


@dataclass(frozen=True, slots=True)
class Event:
    """Something that people should hear of.

    Attributes:
        kind: Of the object that it is about.
        about: That object; it may be gone already.
        reason: In one word.
        note: In a sentence.
        warning: It needs somebody's attention.
    """

    kind: Kind
    about: Object
    reason: str
    note: str
    warning: bool


class Scribe:
    """Writes what the operator has to say.

    Args:
        client: Where to.
        clock: Times of events.
        ids: Their names.
        may_write: Asked before each write: only a leader writes.
    """

    def __init__(self, client: Client, clock: Clock, ids: Ids, may_write: Callable[[], bool]) -> None:
        self._client = client
        self._clock = clock
        self._ids = ids
        self._may_write = may_write
        self._wishes: dict[tuple[str, str, str], tuple[Kind, Object]] = {}
        self._told: dict[tuple[str, str, str], tuple[str, str]] = {}
        self._events: asyncio.Queue[Event] = asyncio.Queue(_EVENTS)
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self.failures = 0
        """Writes that failed since the start; each is tried again with the next look."""
        self.lost_events = 0
        """Events that found the queue full."""

    @property
    def pending(self) -> int:
        """Objects whose status waits to be written."""
        return len(self._wishes)

    def now(self) -> str:
        """The time, as Kubernetes writes it."""
        return datetime.fromtimestamp(self._clock.now(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def status(self, kind: Kind, found: Object, status: Mapping[str, Any]) -> bool:
        """Wishes a status; False where the object has it already."""
        metadata = found["metadata"]
        key = (kind.plural, metadata["namespace"], metadata["name"])
        wished = (str(metadata.get("resourceVersion")), json.dumps(status, sort_keys=True))
        if wished[1] == json.dumps(found.get("status", {}), sort_keys=True):
            self._wishes.pop(key, None)
            self._told.pop(key, None)
            return False
        if self._told.get(key) == wished:
            return False  # written already; the object that would show it has not come by yet
        if len(self._told) >= _REMEMBERED:
            self._told.clear()  # at worst something is written twice
        self._told[key] = wished
        self._wishes[key] = (
            kind,
            {
                "apiVersion": API_VERSION,
                "kind": kind.name,
                # With the uid, an object of the same name that was made since then does not get this status.
                "metadata": {"name": metadata["name"], "namespace": metadata["namespace"], "uid": metadata["uid"]},
                "status": dict(status),
            },
        )
        self._idle.clear()
        self._wake.set()
        return True

    def event(self, event: Event) -> None:
        """Wishes an event. Whoever calls sees to it that the same thing is not told again and again."""
        try:
            self._events.put_nowait(event)
        except asyncio.QueueFull:
            self.lost_events += 1

    async def run(self) -> None:
        """Writes until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(_WRITERS):
                group.create_task(self._write_statuses())
            group.create_task(self._write_events())

    async def _write_statuses(self) -> None:
        while True:
            while not self._wishes:
                self._idle.set()
                self._wake.clear()
                await self._wake.wait()
            key = next(iter(self._wishes))
            kind, wish = self._wishes.pop(key)
            if not self._may_write():
                self._told.pop(key, None)
                continue
            try:
                await self._client.apply(paths.custom(kind, key[1], key[2], "status"), wish)
            except Missing:
                self._told.pop(key, None)  # it was deleted meanwhile
            except ApiError as error:
                self.failures += 1
                self._told.pop(key, None)
                _LOG.warning("a status was not written", extra={"fields": {"error.type": error.reason}})
                # The next look wishes it again; without a pause a server that refuses would be asked in a hot loop.
                await asyncio.sleep(error.retry_after_seconds or _AGAIN_SECONDS)

    async def _write_events(self) -> None:
        while True:
            event = await self._events.get()
            # What an object's status says is waited for; events only tell about it.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_EVENT_SECONDS):
                    await self._idle.wait()
            if not self._may_write():
                continue
            try:
                namespace = event.about["metadata"]["namespace"]
                await self._client.create(paths.events(namespace), self._body(event))
            except ApiError as error:
                self.failures += 1
                _LOG.warning("an event was not written", extra={"fields": {"error.type": error.reason}})

    def _body(self, event: Event) -> Object:
        metadata = event.about["metadata"]
        at = datetime.fromtimestamp(self._clock.now(), UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        return {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": f"{metadata['name'][:200]}.{self._ids.uuid7()}", "namespace": metadata["namespace"]},
            "eventTime": at,
            "reportingController": FIELD_MANAGER,
            "reportingInstance": FIELD_MANAGER,
            "action": "Reconcile",
            "reason": event.reason,
            "note": event.note[:_NOTE_CHARS],
            "type": "Warning" if event.warning else "Normal",
            "regarding": {
                "apiVersion": API_VERSION,
                "kind": event.kind.name,
                "name": metadata["name"],
                "namespace": metadata["namespace"],
                "uid": metadata["uid"],
            },
        }
