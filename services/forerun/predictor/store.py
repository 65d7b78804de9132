"""Keeps models in the object store: one object per (tenant, agent), the newest counts."""

from __future__ import annotations

import json
import logging
from typing import Final

from forerun.predictor.engine.engine import Engine
from forerun.predictor.engine.state import MalformedState
from forerun.runtime.bus import Bus
from forerun.runtime.clock import Clock
from forerun.runtime.errors import ForerunError
from forerun.runtime.topology import MODELS

_LOG: Final = logging.getLogger(__name__)


class ModelStore:
    """Loads a tenant's models when it is first heard of, and saves the ones that have changed.

    Args:
        engine: Holds the models.
        bus: Where they are kept.
        clock: For the order of saves.
    """

    def __init__(self, engine: Engine, bus: Bus, clock: Clock) -> None:
        self._engine = engine
        self._objects = bus.objects(MODELS)
        self._clock = clock
        self._loaded: set[str] = set()
        self._changed: set[tuple[str, str]] = set()
        self._digests: dict[tuple[str, str], str] = {}

    def changed(self, tenant: str, agent: str) -> None:
        """A model has learned something."""
        self._changed.add((tenant, agent))

    async def ready(self, tenant: str) -> None:
        """Loads what is kept of a tenant, once. What cannot be read is learned anew."""
        if tenant in self._loaded:
            return
        newest: dict[str, tuple[float, str, bytes]] = {}
        try:
            for digest in await self._objects.digests(tenant):
                data = await self._objects.get(digest, tenant)
                header, _, state = data.partition(b"\n")
                about = json.loads(header)
                agent, saved_at = str(about["agent"]), float(about["saved_at"])
                if agent not in newest or newest[agent][0] < saved_at:
                    newest[agent] = (saved_at, digest, state)
        except ForerunError as error:
            # Not now; nothing of this tenant is saved before, so that nothing that is kept is overwritten.
            _LOG.warning("kept models cannot be read", extra={"fields": {"error.type": error.reason}})
            return
        except (ValueError, KeyError, TypeError):
            _LOG.warning("a kept model is of no use to this version")
        self._loaded.add(tenant)
        for agent, (_, digest, state) in newest.items():
            try:
                self._engine.load(tenant, agent, state)
                self._digests[(tenant, agent)] = digest
            except MalformedState:
                _LOG.warning("a kept model is of no use to this version")

    async def save(self) -> None:
        """Saves what has changed.

        Raises:
            ForerunError: the object store refused; it is tried again with the next save.
        """
        for tenant, agent in sorted(self._changed):
            if tenant not in self._loaded:
                continue
            header = json.dumps({"agent": agent, "saved_at": self._clock.now()}).encode()
            try:
                state = self._engine.dump(tenant, agent)
            except KeyError:  # the engine forgot it in favour of others; what was saved before stays
                self._changed.discard((tenant, agent))
                continue
            digest = await self._objects.put(header + b"\n" + state, tenant)
            self._changed.discard((tenant, agent))
            before = self._digests.get((tenant, agent))
            self._digests[(tenant, agent)] = digest
            if before is not None and before != digest:
                await self._objects.delete(before, tenant)
