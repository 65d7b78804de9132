"""The operator: follows custom resources, leads or waits, and looks at everything whenever something changed."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from forerun.operator.crds.kinds import KINDS, POLICY, POOL, TOOL_SERVER, Kind
from forerun.operator.crds.served import missing_fields
from forerun.operator.default_pool import DefaultPool
from forerun.operator.engine.conditions import Reason
from forerun.operator.kubernetes import paths
from forerun.operator.kubernetes.client import Client, Object
from forerun.operator.kubernetes.election import Election
from forerun.operator.kubernetes.errors import ApiError
from forerun.operator.kubernetes.reflector import Key, Reflector
from forerun.operator.kubernetes.rights import Right, missing, needed
from forerun.operator.kubernetes.statuses import Event, Scribe
from forerun.operator.publishing import Publishing
from forerun.operator.runner_pods import RunnerPods
from forerun.operator.settings import OperatorSettings
from forerun.operator.sizing import Sizing
from forerun.runtime import metrics_table as m
from forerun.runtime.bus import Bus
from forerun.runtime.clock import Clock
from forerun.runtime.ids import Ids
from forerun.runtime.metrics import Metrics
from forerun.runtime.tasks import Failure, TaskScope

_LOG: Final = logging.getLogger(__name__)

_CHECK_SECONDS: Final = 60.0
# Quick edits of one object, and the objects of one `kubectl apply`, are one look.
_GATHER_SECONDS: Final = 0.05
# After a look that could not do everything.
_AGAIN_SECONDS: Final = 2.0


class Operator:
    """Everything of the operator that needs a broker and an API server; made when the process starts.

    Args:
        settings: What the installation chose.
        client: The API server.
        bus: The broker.
        metrics: Counts.
        clock: Tells the time.
        ids: Makes our identity and names of events.
        failed: Told when something without which the operator is useless has ended.
    """

    def __init__(
        self, settings: OperatorSettings, client: Client, bus: Bus, *, metrics: Metrics, clock: Clock, ids: Ids,
        failed: Failure,
    ) -> None:  # fmt: skip
        self._settings = settings
        self._client = client
        self._metrics = metrics
        self._clock = clock
        self._tasks = TaskScope("operator", metrics=metrics, failure=failed)
        self._dirty = asyncio.Event()
        self._lease_namespace = settings.lease_namespace or client.namespace
        self._election = Election(
            client, self._lease_namespace, settings.lease_name, f"operator-{ids.uuid7()}", clock, self._led
        )
        self._scribe = Scribe(client, clock, ids, lambda: self._election.leading)
        self._publishing = Publishing(
            bus, self._scribe, metrics=metrics, clock=clock, may_write=lambda: self._election.leading,
            changed=self._dirty.set,
        )  # fmt: skip
        self._sizing = Sizing(
            client, bus, self._scribe, metrics=metrics, clock=clock, may_write=lambda: self._election.leading
        )
        self._default_pool = DefaultPool(
            client, settings, self._lease_namespace, metrics=metrics, clock=clock,
            may_write=lambda: self._election.leading,
        )  # fmt: skip
        self._runner_pods = RunnerPods(
            client, self._lease_namespace, settings.runners_selector, metrics=metrics, clock=clock,
            may_write=lambda: self._election.leading,
        )  # fmt: skip
        watched = settings.watched()
        self._reflectors: dict[Kind, list[Reflector]] = {
            kind: [
                Reflector(client, paths.custom(kind, namespace), clock, self._dirty.set)
                for namespace in (watched or (None,))
            ]
            for kind in KINDS
        }
        self._seen: dict[Kind, dict[Key, Object]] = {kind: {} for kind in KINDS}
        self._outdated: dict[Kind, tuple[str, ...]] | None = None
        self._lacking: tuple[Right, ...] = ()
        self._unchecked = ""

    @property
    def leading(self) -> bool:
        """This replica acts."""
        return self._election.leading

    @property
    def lacking(self) -> tuple[Right, ...]:
        """Rights that this account was found to lack."""
        return self._lacking

    async def start(self) -> None:
        """Begins to follow and to take part in the election."""
        await self._publishing.start()
        await self._sizing.start()
        for kind, reflectors in self._reflectors.items():
            for reflector in reflectors:
                self._tasks.spawn(reflector.run(), name=f"follow-{kind.plural}", critical=True)
        self._tasks.keep(self._check, name="check")
        self._tasks.spawn(self._election.run(), name="election", critical=True)
        self._tasks.spawn(self._scribe.run(), name="statuses", critical=True)
        self._tasks.spawn(self._publish(), name="publish", critical=True)
        self._tasks.every(self._settings.pool_seconds, self._size, name="pools")
        self._tasks.every(self._settings.pool_seconds, self._runner_pods.look, name="runner-pods")

    async def stop(self, grace_seconds: float) -> None:
        """Stops acting, then gives the Lease back, so that another replica goes on at once."""
        await self._tasks.stop(grace_seconds * 0.4)
        try:
            async with asyncio.timeout(grace_seconds * 0.4):
                await self._election.resign()
        except (ApiError, TimeoutError):
            _LOG.info("the Lease was not given back; it runs out by itself")
        await self._publishing.stop()
        await self._sizing.stop()
        await self._client.close()

    def _led(self) -> None:
        self._metrics.set(m.LEADING, self._election.leading)
        self._dirty.set()

    def _objects(self, kind: Kind) -> list[Object] | None:
        """All objects of a kind; None while not all are known, which is not the same as none."""
        reflectors = self._reflectors[kind]
        if not all(one.synced for one in reflectors):
            return None
        return [found for one in reflectors for found in one.objects.values()]

    async def _publish(self) -> None:
        done = True
        while True:
            try:
                async with asyncio.timeout(self._settings.resync_seconds if done else _AGAIN_SECONDS):
                    await self._dirty.wait()
            except TimeoutError:
                pass
            await asyncio.sleep(_GATHER_SECONDS)
            self._dirty.clear()
            # Whether the definitions are current has to be known first: an old one may have dropped a limit.
            if self._election.leading and self._outdated is not None:
                objects = {kind: found for kind in (POLICY, TOOL_SERVER) if (found := self._objects(kind)) is not None}
                for kind, found in objects.items():
                    self._note_deletions(kind, found)
                done = await self._publishing.look(objects, outdated=self._outdated, owns=self._settings.watched())

    def _note_deletions(self, kind: Kind, found: list[Object]) -> None:
        now = {(one["metadata"]["namespace"], one["metadata"]["name"]): one for one in found}
        for key, one in self._seen[kind].items():
            if key not in now:
                self._publishing.deleted(kind, one)
        self._seen[kind] = now

    async def _size(self) -> None:
        pools = self._objects(POOL)
        self._metrics.set(m.LEADING, self._election.leading)
        if pools is not None and self._election.leading:
            await self._default_pool.look(pools)
            await self._sizing.look(pools)

    async def _check(self) -> None:
        """Looks at the account's rights and at the age of the definitions, again and again: both may change."""
        while True:
            try:
                await self._check_definitions()
                await self._check_rights()
                self._unchecked = ""
            except ApiError as error:
                self._metrics.add(m.API_FAILURES)
                if error.reason != self._unchecked:
                    self._unchecked = error.reason
                    _LOG.warning(
                        "rights and definitions cannot be checked; are the definitions installed?",
                        extra={"fields": {"error.type": error.reason}},
                    )
            await asyncio.sleep(_CHECK_SECONDS if self._outdated is not None else _AGAIN_SECONDS)

    async def _check_definitions(self) -> None:
        outdated = missing_fields(await self._client.get(paths.OPENAPI))
        if outdated != self._outdated:
            self._outdated = outdated
            for kind, fields in outdated.items():
                if fields:
                    _LOG.error(
                        "the cluster's custom resource definition is older than this operator; upgrade it",
                        extra={
                            "fields": {
                                "forerun.resource": kind.plural,
                                "forerun.field": fields[0].replace("[]", ""),
                                "forerun.count": len(fields),
                            }
                        },
                    )
            self._dirty.set()

    async def _check_rights(self) -> None:
        rights = needed(
            self._settings.watched(), self._lease_namespace, default_pool=bool(self._settings.default_pool.name),
            runners=bool(self._settings.runners_selector),
        )  # fmt: skip
        lacking = await missing(self._client, rights)
        self._metrics.set(m.RIGHTS_MISSING, len(lacking))
        if lacking != self._lacking:
            for right in lacking:
                _LOG.error("this account lacks a right", extra={"fields": right.fields()})
                self._complain(right)
            self._lacking = lacking

    def _complain(self, right: Right) -> None:
        """Says of one object of the kind concerned that it cannot be looked after."""
        for kind in KINDS:
            if right.resource.partition("/")[0] == kind.plural:
                for one in (self._objects(kind) or ())[:1]:
                    note = f"the operator's account may not {right}"
                    self._scribe.event(Event(kind, one, Reason.PERMISSION_MISSING.value, note, warning=True))
