"""Services as real processes: started, found by the address that they log, and ended."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forerun.runtime.auth import AUTHORIZATION, Caller, CallToken, on_behalf_of

INTERNAL_TOKEN = "internal-token-of-the-tests-0123456789abcdef"

Metadata = tuple[tuple[str, str | bytes], ...]


@dataclass
class Service:
    """One service of the platform as a process.

    Attributes:
        name: `snapshots`, `verifier` and so on.
        settings: By name of the field; token files are added.
        folder: For token files.
        tenants: Tenants that get a user token, which is their name.
    """

    name: str
    settings: Mapping[str, str]
    folder: Path
    tenants: tuple[str, ...] = ("acme", "other")
    address: str = ""
    log: list[str] = field(default_factory=list)
    _process: asyncio.subprocess.Process | None = None
    _reader: asyncio.Task[None] | None = None

    @property
    def process(self) -> asyncio.subprocess.Process:
        assert self._process is not None
        return self._process

    async def start(self) -> None:
        """Starts it and waits until it is ready."""
        tokens, internal = self.folder / "tokens.json", self.folder / "internal"
        entries = [
            {"sha256": hashlib.sha256(tenant.encode()).hexdigest(), "tenant": tenant, "principal": "p", "scope": ""}
            for tenant in self.tenants
        ]
        tokens.write_text(json.dumps({"tokens": entries}))
        internal.write_text(INTERNAL_TOKEN)
        settings = {
            "listen_address": "127.0.0.1:0",
            "token_file": str(tokens),
            "internal_token_file": str(internal),
            **self.settings,
        }
        prefix = f"FORERUN_{self.name.upper()}_"
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            f"forerun.{self.name}",
            stderr=asyncio.subprocess.PIPE,
            env=os.environ | {prefix + key.upper(): value for key, value in settings.items()},
        )
        ready = asyncio.Event()
        self._reader = asyncio.create_task(self._read(ready))
        async with asyncio.timeout(60):
            await ready.wait()
        assert self.address, "it did not start:\n" + "".join(self.log)

    async def _read(self, ready: asyncio.Event) -> None:
        assert self.process.stderr is not None
        self.address = ""
        while line := (await self.process.stderr.readline()).decode():
            self.log.append(line)
            record: dict[str, Any] = json.loads(line) if line.startswith("{") else {"message": ""}
            if record["message"] == "listening":
                self.address = record["fields"]["server.address"]
            elif record["message"] == "ready":
                ready.set()
        ready.set()  # it ended: whoever waits finds no address

    async def stop(self) -> int:
        """Ends it in order and returns its exit code."""
        if self.process.returncode is None:
            self.process.terminate()
        return await self._ended()

    async def kill(self) -> None:
        """Ends it as a crash would."""
        if self.process.returncode is None:
            self.process.kill()
        await self._ended()

    async def _ended(self) -> int:
        async with asyncio.timeout(30):
            code = await self.process.wait()
        if self._reader is not None:
            await self._reader
        return code


def as_user(tenant: str) -> Metadata:
    """Metadata of a user of a tenant."""
    return ((AUTHORIZATION, f"Bearer {tenant}"),)


def as_service(tenant: str = "", principal: str = "p") -> Metadata:
    """Metadata of another service of the installation, acting for somebody where a tenant is named."""
    own: Metadata = CallToken(INTERNAL_TOKEN).metadata()
    return own + on_behalf_of(Caller(tenant, principal, "scope")) if tenant else own
