"""All tenants of one process, each in a folder of its own, so that a tenant is erased by removing its folder."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from forerun.runtime import metrics_table as m
from forerun.runtime.errors import ErrorReason, FailedPrecondition, ForerunError
from forerun.runtime.metrics import Metrics
from forerun.runtime.subjects import token
from forerun.snapshots.objects import storage_errors
from forerun.snapshots.tenant import Tenant

_LOG: Final = logging.getLogger(__name__)

_FOLDER_CHARS: Final = 200

Open = Callable[[Path], Callable[[], Tenant]]
"""Reads a tenant's folder on a worker thread; what it returns makes the tenant on the loop."""


class Tenants:
    """Opens tenants when they are asked for. A component of the process.

    Args:
        folder: Where the tenants' folders lie; made if it is missing. One process uses it at a time.
        open_folder: Opens one of them.
        metrics: Where the size on disk is shown.
    """

    def __init__(self, folder: Path, open_folder: Open, *, metrics: Metrics) -> None:
        self._folder = folder
        self._open_folder = open_folder
        self._metrics = metrics
        self._tenants: dict[str, Tenant] = {}
        self._opening: dict[str, asyncio.Lock] = {}
        self._guard: int | None = None

    async def start(self) -> None:
        """Takes the folder and opens every tenant in it.

        Raises:
            FailedPrecondition: another process has the folder.
        """
        await asyncio.to_thread(self._take)
        for name in await asyncio.to_thread(self._names):
            try:
                await self._opened(name)
            except ForerunError:
                # Its own calls will say so; the other tenants must not suffer from it.
                _LOG.exception("the snapshots of a tenant cannot be opened")

    async def stop(self, grace_seconds: float) -> None:
        """Waits for commits that have begun and gives the folder back."""
        try:
            async with asyncio.timeout(grace_seconds):
                for tenant in list(self._tenants.values()):
                    await tenant.close()
        finally:
            if self._guard is not None:
                os.close(self._guard)
                self._guard = None

    async def tenant(self, name: str) -> Tenant:
        """The snapshots of a tenant.

        Raises:
            DataLoss: its log is damaged.
        """
        return await self._opened(_folder_name(name))

    def show_size(self) -> None:
        """Brings the gauge up to date."""
        self._metrics.set(m.SNAPSHOT_BYTES, sum(tenant.size_bytes for tenant in self._tenants.values()))

    async def _opened(self, folder: str) -> Tenant:
        found = self._tenants.get(folder)
        if found is not None:
            return found
        async with self._opening.setdefault(folder, asyncio.Lock()):
            if folder not in self._tenants:
                make = await asyncio.to_thread(self._open_folder, self._folder / folder)
                self._tenants[folder] = make()
                self.show_size()
        self._opening.pop(folder, None)
        return self._tenants[folder]

    async def collect(self) -> None:
        """Collects for all tenants; where it fails for one, the others still have their turn."""
        for tenant in list(self._tenants.values()):
            try:
                await tenant.collect(dry_run=False)
            except ForerunError:
                _LOG.exception("a collection failed; nothing that is in use was removed")
        self.show_size()

    def _take(self) -> None:
        with storage_errors():
            self._folder.mkdir(parents=True, exist_ok=True)
            guard = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(guard)
            raise FailedPrecondition(
                ErrorReason.SETTING_INVALID,
                f"another process uses {self._folder}; give each snapshots service a data_dir of its own",
                metadata={"setting": "data_dir"},
            ) from error
        self._guard = guard

    def _names(self) -> list[str]:
        with storage_errors():
            return sorted(entry.name for entry in os.scandir(self._folder) if entry.is_dir())


def _folder_name(tenant: str) -> str:
    """A tenant's id where it can be a file's name, else a digest of it, which no id encodes to."""
    name = token(tenant)
    return name if len(name) <= _FOLDER_CHARS else "=" + hashlib.sha256(tenant.encode()).hexdigest()
