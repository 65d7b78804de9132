"""`staged` is believed only of tools that work in the workspace: what is elsewhere is not repeated."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx
import pytest

from forerun.cli.virtual import VirtualPlatform
from forerun.client import AsyncClient, OutcomeUnknown
from forerun.runtime.clock import SystemClock
from forerun.runtime.ids import SystemIds
from tests.integration.cases.conftest import policy, tool


async def test_a_staged_write_of_a_server_that_hangs_up_is_sent_once(tmp_path: Path) -> None:
    received: list[bytes] = []

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(await reader.readuntil(b"\r\n\r\n"))
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/pay"
    endpoint = {"http": {"method": "POST", "url": address, "jsonBody": True}}
    file = tmp_path / "policy.yaml"
    file.write_text(json.dumps(policy(tool("pay", "WRITE", writes=["bill"], staged=True, endpoint=endpoint))))
    clock = SystemClock()
    ids = SystemIds(clock)
    platform = VirtualPlatform(
        directory=tmp_path, policy_file=file, clock=clock, ids=ids, http=httpx.AsyncHTTPTransport()
    )
    await platform.start()
    try:
        async with AsyncClient(channel=platform.channel(), ids=ids) as client, client.session("a") as session:
            with pytest.raises(OutcomeUnknown):
                await session.call_tool("pay", {"sum": 1})
    finally:
        await platform.stop()
        server.close()
        await server.wait_closed()
    assert len(received) == 1
