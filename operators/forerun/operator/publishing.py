"""Publishes policies and tool servers: carries out the plans of `engine/publication.py`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from forerun.operator.crds.kinds import KINDS, POLICY, TOOL_SERVER, Kind
from forerun.operator.engine.conditions import Reason, Status, Type, merged
from forerun.operator.engine.publication import Key, Plan, Publisher, Verdict, object_key, store_key, unpublished
from forerun.operator.kubernetes.client import Object
from forerun.operator.kubernetes.statuses import Event, Scribe
from forerun.runtime import metrics_table as m
from forerun.runtime.bus import Bus, Entry, Subscription
from forerun.runtime.bus_errors import KeyConflict
from forerun.runtime.clock import Clock
from forerun.runtime.errors import ForerunError
from forerun.runtime.metrics import Metrics
from forerun.runtime.topology import POLICIES

_LOG: Final = logging.getLogger(__name__)

_LABELS: Final = {POLICY: "policy", TOOL_SERVER: "tool_server"}
_BY_PLURAL: Final = {kind.plural: kind for kind in KINDS}
_GONE: Final = 1_000
# One after the other the writes of a start would take as long as the way to the broker is, five hundred times.
_WRITES_AT_ONCE: Final = 16


class Publishing:
    """Keeps the key-value store equal to what the custom resources say.

    Args:
        bus: Where the store is.
        scribe: Where statuses and events go.
        metrics: Where looks are counted.
        clock: Times them.
        may_write: Asked before each write: only a leader writes.
        changed: Called when the store has changed.
    """

    def __init__(
        self, bus: Bus, scribe: Scribe, *, metrics: Metrics, clock: Clock, may_write: Callable[[], bool],
        changed: Callable[[], None],
    ) -> None:  # fmt: skip
        self._bus = bus
        self._scribe = scribe
        self._metrics = metrics
        self._clock = clock
        self._may_write = may_write
        self._changed = changed
        self._publisher = Publisher()
        self._stored: dict[str, Entry] = {}
        self._subscription: Subscription | None = None
        self._gone: dict[Key, Object] = {}
        self._left_behind: set[Key] = set()

    async def start(self) -> None:
        """Reads what is published, and follows it."""
        self._subscription = await self._bus.kv(POLICIES).watch("", self._hear)

    async def stop(self) -> None:
        """Follows no more."""
        if self._subscription is not None:
            await self._subscription.close()

    def deleted(self, kind: Kind, found: Object) -> None:
        """Remembers an object that is gone, so that it can be said of it what is left behind."""
        metadata = found["metadata"]
        key = (kind.plural, metadata["namespace"], metadata["name"])
        if store_key(key) in self._stored and len(self._gone) < _GONE:
            self._gone[key] = found

    async def look(
        self,
        objects: Mapping[Kind, Sequence[Object]],
        *,
        outdated: Mapping[Kind, Sequence[str]],
        owns: tuple[str, ...] | None,
    ) -> bool:
        """One look at everything: publishes, takes back, and says of each object what became of it.

        Returns:
            False where something could not be done: look again soon.
        """
        began = self._clock.monotonic()
        values = {key: entry.value for key, entry in self._stored.items()}
        plan = self._publisher.plan(objects, values, outdated=outdated, owns=owns)
        try:
            failed = await self._carry_out(plan)
        except KeyConflict:
            return False  # somebody else has written: what was planned is old
        self._metrics.observe(m.RECONCILE_SECONDS, self._clock.monotonic() - began)
        self._metrics.add(m.RECONCILES, result="failed" if failed else "ok")
        for kind, found in objects.items():
            self._tell_all(kind, found, plan, failed)
        return not failed

    async def _carry_out(self, plan: Plan) -> dict[Key, ForerunError]:
        """Deletes and writes; those that failed.

        Raises:
            KeyConflict: the store is not as this look saw it.
        """
        store = self._bus.kv(POLICIES)
        failed: dict[Key, ForerunError] = {}
        for text in plan.deletions:
            key = object_key(text)
            assert key is not None
            if not self._may_write():
                return failed
            try:
                await store.delete(text, revision=self._stored[text].revision)
                self._stored.pop(text, None)
                self._gone.pop(key, None)
                self._left_behind.discard(key)
            except KeyConflict:
                raise
            except ForerunError as error:
                failed[key] = error
                self._leave_behind(key)
        for begin in range(0, len(plan.writes), _WRITES_AT_ONCE):
            if not self._may_write():
                return failed
            some = plan.writes[begin : begin + _WRITES_AT_ONCE]
            ends = await asyncio.gather(*(self._write(*one) for one in some), return_exceptions=True)
            for (text, _), end in zip(some, ends, strict=True):
                key = object_key(text)
                assert key is not None
                if isinstance(end, ForerunError) and not isinstance(end, KeyConflict):
                    failed[key] = end
                elif isinstance(end, BaseException):
                    raise end
        if failed:
            _LOG.warning("not everything was published", extra={"fields": {"forerun.count": len(failed)}})
        return failed

    async def _write(self, text: str, content: bytes) -> None:
        """Writes one, only upon what this look has seen: another leader's newer version is never written over."""
        store = self._bus.kv(POLICIES)
        before = self._stored.get(text)
        revision = (
            await store.create(text, content) if before is None else await store.update(text, content, before.revision)
        )
        self._stored[text] = Entry(content, revision)

    def _tell_all(self, kind: Kind, found: Sequence[Object], plan: Plan, failed: Mapping[Key, ForerunError]) -> None:
        counts = {"in_force": 0, "refused": 0}
        for one in found:
            metadata = one["metadata"]
            key = (kind.plural, metadata["namespace"], metadata["name"])
            verdict = plan.verdicts[key]
            if key in failed:
                verdict = unpublished(verdict, Reason.BROKER_UNAVAILABLE, failed[key].message)
            ready = verdict.conditions[0].status is Status.TRUE
            counts["in_force" if ready else "refused"] += 1
            self._tell(kind, one, verdict)
        for result, count in counts.items():
            self._metrics.set(m.RESOURCES, count, resource=_LABELS[kind], result=result)

    def _tell(self, kind: Kind, one: Object, verdict: Verdict) -> None:
        before, generation = one.get("status", {}), int(one["metadata"]["generation"])
        status: Object = {
            "observedGeneration": generation,
            "conditions": merged(
                before.get("conditions", ()), verdict.conditions, generation=generation, at=self._scribe.now()
            ),
        }
        if verdict.published is not None:
            status["publishedVersion"] = verdict.published.version
            if verdict.published.generation is not None:
                status["publishedGeneration"] = verdict.published.generation
        if not self._scribe.status(kind, one, status):
            return
        ready = next(one for one in verdict.conditions if one.type is Type.READY)
        if _told(before) != (ready.status.value, ready.reason.value, generation):
            bad = ready.status is not Status.TRUE
            self._scribe.event(Event(kind, one, ready.reason.value, ready.message, warning=bad))

    def _leave_behind(self, key: Key) -> None:
        """Says once of an object that is gone that what it published is still in force."""
        found = self._gone.get(key)
        if found is None or key in self._left_behind:
            return
        self._left_behind.add(key)
        note = (
            f"{'/'.join(key)} is deleted, but still in force: the broker cannot be reached. The operator goes on trying"
        )
        self._scribe.event(Event(_BY_PLURAL[key[0]], found, Reason.BROKER_UNAVAILABLE.value, note, warning=True))

    async def _hear(self, key: str, entry: Entry | None) -> None:
        known = self._stored.get(key)
        if entry is None:
            if known is not None:
                del self._stored[key]
                self._changed()
        elif known is None or entry.revision > known.revision:
            self._stored[key] = entry
            if known is None or known.value != entry.value:
                self._changed()


def _told(status: Object) -> tuple[str, str, int] | None:
    """Status, reason and generation of the `Ready` condition that an object shows."""
    for one in status.get("conditions", ()):
        if one.get("type") == Type.READY.value:
            return str(one["status"]), str(one["reason"]), int(one.get("observedGeneration", 0))
    return None
