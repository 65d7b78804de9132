"""Sizes pools: hears the load, decides, asks the target for its size, and tells the workers what they may."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf.json_format import ParseError
from google.protobuf.message import DecodeError

from forerun.core.capacity import History
from forerun.operator.crds.kinds import POOL
from forerun.operator.engine.conditions import Condition, Reason, Status, Type, merged
from forerun.operator.engine.loads import Loads
from forerun.operator.engine.pools import Sized, rules_of, size, spec_of, target_of, without_target
from forerun.operator.kubernetes import paths
from forerun.operator.kubernetes.client import Client, Object
from forerun.operator.kubernetes.errors import ApiError, Denied, Missing
from forerun.operator.kubernetes.statuses import Event, Scribe
from forerun.runtime import metrics_table as m
from forerun.runtime import subjects
from forerun.runtime.bus import Bus, Message, Subscription
from forerun.runtime.clock import Clock
from forerun.runtime.errors import ForerunError
from forerun.runtime.metrics import Metrics
from forerun.runtime.topology import CAPACITY
from forerun.v1 import capacity_pb2, sandbox_pb2

_LOG: Final = logging.getLogger(__name__)

_PENDING: Final = 1_024
# Figures alone are written this often; what somebody may wait for (conditions, a decided size) at once.
_FIGURES_SECONDS: Final = 10.0


@dataclass(slots=True)
class _Known:
    """What is remembered of a pool: of its load, and what was told and when."""

    uid: str
    history: History | None = None
    told: bytes | None = None
    figures_at: float = float("-inf")
    shown: tuple[Any, ...] = ()


class Sizing:
    """Sizes all pools.

    Args:
        client: Where pools and targets are.
        bus: Where reports come from and capacities go.
        scribe: Where statuses and events go.
        metrics: Where sizes are exposed.
        clock: Tells the time.
        may_write: Asked before each write: only a leader writes.
    """

    def __init__(
        self, client: Client, bus: Bus, scribe: Scribe, *, metrics: Metrics, clock: Clock, may_write: Callable[[], bool]
    ) -> None:
        self._client = client
        self._bus = bus
        self._scribe = scribe
        self._metrics = metrics
        self._clock = clock
        self._may_write = may_write
        self._loads = Loads()
        self._pools: dict[tuple[str, str], _Known] = {}
        self._subscriptions: list[Subscription] = []
        self._swept = False

    async def start(self) -> None:
        """Listens to reports."""
        for pattern, handler in ((subjects.loads(), self._hear_worker), (subjects.demands(), self._hear_orchestrator)):
            self._subscriptions.append(await self._bus.subscribe(pattern, handler, pending_messages=_PENDING))

    async def stop(self) -> None:
        """Listens no more."""
        for subscription in self._subscriptions:
            await subscription.close()

    async def look(self, pools: Sequence[Object]) -> None:
        """One look at every pool, the oldest first: it has its target, if two want the same."""
        self._loads.forget(self._clock.monotonic())
        alive = {_key(pool) for pool in pools}
        if not self._swept:
            await self._sweep({name for _, name in alive})
        for gone in [key for key in self._pools if key not in alive]:
            await self._forget(gone)
        targets: dict[tuple[str, str, str], str] = {}
        names: dict[str, str] = {}
        for pool in sorted(pools, key=_age):
            namespace, name = _key(pool)
            target = pool["spec"]["target"]
            place = (namespace, str(target.get("kind", "Deployment")), str(target["name"]))
            other = targets.setdefault(place, name)
            elsewhere = names.setdefault(name, namespace)
            if other != name:
                self._refuse(pool, Reason.TARGET_TAKEN, f"the pool {other} sizes {place[1]} {place[2]} already")
            elif elsewhere != namespace:
                self._refuse(pool, Reason.NAME_TAKEN, f"a pool in namespace {elsewhere} has this name already")
            else:
                await self._look_at(pool, place)

    async def _look_at(self, pool: Object, place: tuple[str, str, str]) -> None:
        namespace, kind, target_name = place
        if not self._may_write():
            return
        try:
            target = target_of(await self._client.get(paths.workload(kind, namespace, target_name)))
            known = self._known(pool)
            name, now = pool["metadata"]["name"], self._clock.monotonic()
            signal = self._loads.signal(name, target.ready, now)
            rules = rules_of(spec_of(pool))
            known.history, sized = size(name, rules, target, signal, known.history, self._loads.workers(name, now))
            if sized.scale_to is not None and self._may_write():
                body = {"spec": {"replicas": sized.scale_to}}
                await self._client.merge(paths.scale(kind, namespace, target_name), body)
                self._tell_scaled(pool, target.asked, sized)
            await self._publish(known, sized)
            self._show(pool, known, sized, demand=signal.demand)
        except Missing:
            self._refuse(pool, Reason.TARGET_NOT_FOUND, f"there is no {kind} {target_name} in this namespace")
        except Denied as error:
            self._refuse(pool, Reason.PERMISSION_MISSING, str(error))
        except ParseError as error:
            self._refuse(pool, Reason.INVALID, str(error))
        except ApiError as error:
            self._metrics.add(m.API_FAILURES)
            _LOG.warning("a pool was not looked at", extra={"fields": {"error.type": error.reason}})
        except ForerunError as error:
            _LOG.warning("a capacity was not published", extra={"fields": {"error.type": error.reason}})

    async def _sweep(self, alive: set[str]) -> None:
        """Takes back what was decided for pools that went while no operator looked."""
        store = self._bus.kv(CAPACITY)
        try:
            for name in await store.keys():
                if name not in alive and self._may_write():
                    await store.delete(name)
        except ForerunError as error:
            _LOG.warning("a capacity was not taken back", extra={"fields": {"error.type": error.reason}})
            return
        self._swept = True

    def _known(self, pool: Object) -> _Known:
        key, uid = _key(pool), str(pool["metadata"]["uid"])
        known = self._pools.get(key)
        if known is None or known.uid != uid:
            known = self._pools[key] = _Known(uid)
        return known

    async def _publish(self, known: _Known, sized: Sized) -> None:
        content = sized.capacity.SerializeToString(deterministic=True)
        if content != known.told and self._may_write():
            await self._bus.kv(CAPACITY).put(sized.capacity.pool, content)
            known.told = content

    async def _forget(self, key: tuple[str, str]) -> None:
        """A pool is gone: workers do as their own settings say, and its target stays as it is."""
        if not self._may_write():
            return
        try:
            await self._bus.kv(CAPACITY).delete(key[1])
        except ForerunError as error:
            _LOG.warning("a capacity was not taken back", extra={"fields": {"error.type": error.reason}})
            return
        del self._pools[key]

    def _show(self, pool: Object, known: _Known, sized: Sized, *, demand: int) -> None:
        name, status = pool["metadata"]["name"], sized.status
        for state, field in (("desired", "desiredReplicas"), ("present", "replicas"), ("ready", "readyReplicas")):
            self._metrics.set(m.POOL_REPLICAS, status[field], pool=name, state=state)
        self._metrics.set(m.POOL_DEMAND, demand, pool=name)
        self._metrics.set(m.POOL_SPECULATIVE_SLOTS, sized.decision.speculative_slots, pool=name)
        signal = next(one for one in sized.conditions if one.type is Type.SIGNAL_KNOWN)
        self._metrics.set(m.POOL_SIGNAL_KNOWN, signal.status is Status.TRUE, pool=name)
        now = self._clock.monotonic()
        shown = (
            pool["metadata"]["generation"], status["desiredReplicas"], status["replicas"], status["readyReplicas"],
            sized.conditions,
        )  # fmt: skip
        if shown != known.shown or now - known.figures_at >= _FIGURES_SECONDS:
            known.shown, known.figures_at = shown, now
            self._write(pool, status, sized.conditions)

    def _refuse(self, pool: Object, reason: Reason, message: str) -> None:
        before = _ready(pool)
        if self._write(pool, {}, without_target(reason, message)) and before != reason.value:
            self._scribe.event(Event(POOL, pool, reason.value, message, warning=True))

    def _write(self, pool: Object, fields: Any, conditions: tuple[Condition, ...]) -> bool:
        generation = int(pool["metadata"]["generation"])
        before = pool.get("status", {}).get("conditions", ())
        written = merged(before, conditions, generation=generation, at=self._scribe.now())
        status = {"observedGeneration": generation, **fields, "conditions": written}
        return self._scribe.status(POOL, pool, status)

    def _tell_scaled(self, pool: Object, before: int, sized: Sized) -> None:
        note = f"from {before} to {sized.scale_to} replicas: {sized.decision.reason}"
        self._scribe.event(Event(POOL, pool, "Scaled", note, warning=False))

    async def _hear_worker(self, message: Message) -> None:
        try:
            report = sandbox_pb2.LoadReport.FromString(message.data)
        except DecodeError:
            return
        self._loads.hear_worker(report, self._clock.monotonic())

    async def _hear_orchestrator(self, message: Message) -> None:
        try:
            report = capacity_pb2.DemandReport.FromString(message.data)
        except DecodeError:
            return
        self._loads.hear_orchestrator(report, self._clock.monotonic())


def _key(pool: Object) -> tuple[str, str]:
    return pool["metadata"]["namespace"], pool["metadata"]["name"]


def _age(pool: Object) -> tuple[str, str, str]:
    return str(pool["metadata"].get("creationTimestamp", "")), *_key(pool)


def _ready(pool: Object) -> str:
    for one in pool.get("status", {}).get("conditions", ()):
        if one.get("type") == Type.READY.value:
            return str(one["reason"])
    return ""
