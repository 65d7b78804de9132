"""A scripted platform and a client of it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from forerun.client import AsyncClient
from tests.integration.client.scripted import TOKEN, ScriptedServer, ScriptedServicer, serve


@pytest.fixture
async def platform() -> AsyncIterator[ScriptedServer]:
    server = await serve(ScriptedServicer())
    yield server
    await server.stop()


@pytest.fixture
async def client(platform: ScriptedServer) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(platform.address, TOKEN) as opened:
        yield opened
