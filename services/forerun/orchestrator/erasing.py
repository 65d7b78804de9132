"""Erasing what model servers remember of a tenant: asked for durably, and followed until they say that it is done."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from forerun.runtime.bus import Bus, Entry
from forerun.runtime.clock import Clock
from forerun.runtime.erasures import ErasedHistories, ServerReport, erasure_content
from forerun.runtime.ids import Ids
from forerun.runtime.topology import ERASURES, SERVERS

_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Erasure:
    """How far an erasure is.

    Attributes:
        name: Of the erasure.
        servers: What each model server that runs has erased; None: it has not said so yet.
    """

    name: str
    servers: Mapping[str, ErasedHistories | None]


@dataclass(slots=True)
class _Answers:
    """What servers say of one erasure."""

    tenant: str
    erasure: str
    servers: dict[str, ErasedHistories | None] = field(default_factory=dict)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    async def hear(self, name: str, entry: Entry | None) -> None:
        """A report, or the end of a server."""
        if entry is None:
            self.servers.pop(name, None)
        else:
            self.servers[name] = self._done(entry.value)
        self.news.set()

    def _done(self, content: bytes) -> ErasedHistories | None:
        try:
            found = ServerReport.read(content).erased.get(self.tenant)
        except (ValueError, KeyError, TypeError):
            _LOG.error("a model server's report cannot be read")
            return None
        return found if found is not None and found.erasure == self.erasure else None

    @property
    def complete(self) -> bool:
        """Every server that runs has erased it."""
        return None not in self.servers.values()


class Erasing:
    """Erases tenants at model servers.

    Args:
        bus: Where servers hear of it, and say what they did.
        clock: For the record.
        ids: Names erasures, in order of time.
    """

    def __init__(self, bus: Bus, clock: Clock, ids: Ids) -> None:
        self._bus = bus
        self._clock = clock
        self._ids = ids

    async def erase(self, tenant: str, wait_seconds: float) -> Erasure:
        """Erases a tenant at all model servers, also at those that are away now.

        Args:
            tenant: Whose histories go.
            wait_seconds: How long to wait for the servers that run.

        Raises:
            Unavailable: The broker did not store it: nobody hears of it.
        """
        name = self._ids.uuid7()
        await self._bus.kv(ERASURES).put(tenant, erasure_content(name, self._clock.now()))
        answers = _Answers(tenant, name)
        watch = await self._bus.kv(SERVERS).watch("", answers.hear)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_seconds):
                    while not answers.complete:
                        answers.news.clear()
                        await answers.news.wait()
        finally:
            await watch.close()
        return Erasure(name, dict(sorted(answers.servers.items())))
