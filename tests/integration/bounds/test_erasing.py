"""A tenant is erased at every model server of the platform: who may ask, and what the answer says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from forerun.cli.virtual import TENANT
from forerun.client import ErasedServer, ForerunClientError, NotAuthorized
from forerun.core.limits import ERASURE_WAIT_SECONDS, NAME_CHARS
from forerun.runtime.bus import Bus
from forerun.runtime.bus_memory import MemoryBus
from forerun.serving.governed import Following, Governed
from forerun.serving.orders import OrderFolder
from tests.integration.bounds.conftest import RULES
from tests.integration.bounds.test_sessions import write_users
from tests.integration.cases.conftest import Play, Stage


class Loop:
    """The loop of a model server; one that hangs erases when it is let."""

    def __init__(self, *, hangs: bool = False) -> None:
        self.let = asyncio.Event()
        self.erased: list[str] = []
        if not hangs:
            self.let.set()

    async def erase(self, tenant: str, erasure: str) -> Mapping[str, int]:
        await self.let.wait()
        self.erased.append(tenant)
        return {"histories": 2, "tokens": 40, "files": 1}


@asynccontextmanager
async def model_server(s: Stage, folder: Path, name: str, loop: Loop) -> AsyncIterator[None]:
    """A model server that follows the platform."""

    async def connect() -> Bus:
        return MemoryBus(s.platform.broker, "serving")

    following = Following(name=name, profile="toy")
    governed = Governed(
        following, connect, OrderFolder(folder / name), loop, clock=s.platform.clock, say=lambda _: None
    )
    assert await governed.hear(5.0)
    running = asyncio.create_task(governed.run())
    try:
        await asyncio.sleep(0.1)
        yield
    finally:
        running.cancel()
        await governed.close()


def test_every_server_that_runs_says_what_it_erased(play: Play, tmp_path: Path) -> None:
    async def scene(s: Stage) -> None:
        assert await s.client.erase_histories("acme") == [], "nobody serves models"
        slow = Loop(hangs=True)
        async with model_server(s, tmp_path, "a", Loop()), model_server(s, tmp_path, "b", slow):
            done = ErasedServer("a", True, 2, 40, 1)
            began = s.platform.clock.monotonic()
            assert await s.client.erase_histories("acme", wait_seconds=3.0) == [done, ErasedServer("b", False)]
            assert s.platform.clock.monotonic() - began == pytest.approx(3.0, abs=0.5)
            slow.let.set()
            began = s.platform.clock.monotonic()
            found = await s.client.erase_histories("acme", wait_seconds=30.0)
            assert [one.erased for one in found] == [True, True]
            assert s.platform.clock.monotonic() - began < 1.0, "it waits no longer than it has to"
            slow.let.clear()
            found = await s.client.erase_histories("acme", wait_seconds=1.0)
            assert [one.erased for one in found] == [True, False], "what was erased before is another erasure"
            slow.let.set()
            await asyncio.sleep(1.0)
            slow.let.clear()
            first, second, third = [
                asyncio.create_task(s.client.erase_histories("acme", wait_seconds=30.0)) for _ in range(3)
            ]
            await asyncio.sleep(1.0)
            slow.let.set()
            began = s.platform.clock.monotonic()
            for one in (first, second, third):
                assert [server.erased for server in await one] == [True, True], "a later one is enough"
            assert s.platform.clock.monotonic() - began < 1.0
        away = Loop()
        await s.client.erase_histories("rival")
        async with model_server(s, tmp_path, "c", away):
            await asyncio.sleep(2.0)
        assert set(away.erased) == {"acme", "rival"}, "it was away, and is back"

    play(scene, RULES)


def test_a_user_erases_its_own_tenant_and_an_operator_any(play: Play) -> None:
    async def scene(s: Stage) -> None:
        write_users(s, ("other", "umbrella", "user"))
        await asyncio.sleep(1.0)
        async with s.client_of("other") as other:
            with pytest.raises(NotAuthorized, match="operator"):
                await other.erase_histories(TENANT)
            assert await other.erase_histories("umbrella") == []
        assert await s.client.erase_histories("umbrella") == []
        for tenant in ("", "x" * (NAME_CHARS + 1)):
            with pytest.raises(ForerunClientError, match="NAME_CHARS"):
                await s.client.erase_histories(tenant)
        with pytest.raises(ForerunClientError, match="ERASURE_WAIT_SECONDS"):
            await s.client.erase_histories("acme", wait_seconds=ERASURE_WAIT_SECONDS + 1.0)

    play(scene, RULES)
