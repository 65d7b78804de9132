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
from forerun.runtime.erasures import ErasedHistories, ServerReport, erasure_content, erasure_of
from forerun.runtime.errors import Unavailable
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
    """What servers say of one erasure.

    Attributes:
        erasures: Its name, and those of later ones of the tenant: whoever has done one of these has done it.
        reports: What each server that runs has erased.
        news: There is another report.
    """

    erasures: list[str]
    reports: dict[str, Mapping[str, ErasedHistories]] = field(default_factory=dict)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    async def hear(self, name: str, entry: Entry | None) -> None:
        """A report, or the end of a server."""
        if entry is None:
            self.reports.pop(name, None)
        else:
            self.reports[name] = _erased(entry.value)
        self.news.set()

    @property
    def servers(self) -> dict[str, ErasedHistories | None]:
        """What each server has erased for it; None: it has not said so yet."""
        return {
            name: next((erased[one] for one in self.erasures if one in erased), None)
            for name, erased in sorted(self.reports.items())
        }

    @property
    def complete(self) -> bool:
        """Every server that runs has erased it."""
        return None not in self.servers.values()


def _erased(content: bytes) -> Mapping[str, ErasedHistories]:
    try:
        return ServerReport.read(content).erased
    except (ValueError, KeyError, TypeError, AttributeError):
        _LOG.error("a model server's report cannot be read")
        return {}


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
            Unavailable: The broker does not answer. Ask again: it may not have stored it.
        """
        name = self._ids.uuid7()
        revision = await self._bus.kv(ERASURES).put(tenant, erasure_content(name, self._clock.now()))
        answers = _Answers([name])
        watch = await self._bus.kv(SERVERS).watch("", answers.hear)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_seconds):
                    while not answers.complete:
                        answers.news.clear()
                        await answers.news.wait()
                        if not answers.complete:
                            await self._look_for_later(tenant, revision, answers.erasures)
        finally:
            await watch.close()
        return Erasure(name, answers.servers)

    async def _look_for_later(self, tenant: str, revision: int, erasures: list[str]) -> None:
        """Adds the tenant's last erasure where it came after ours: servers that hear of both do only that one."""
        with contextlib.suppress(Unavailable, ValueError, KeyError, TypeError):
            last = await self._bus.kv(ERASURES).get(tenant)
            if last is not None and last.revision > revision and (later := erasure_of(last.value)) not in erasures:
                erasures.append(later)
