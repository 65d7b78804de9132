"""HTTP tools over real connections, to judged addresses only."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from forerun.runtime.clock import SystemClock
from forerun.runtime.errors import ErrorReason
from forerun.sandbox.connectors.connections import Connections
from forerun.sandbox.connectors.egress import EgressTransport
from forerun.sandbox.connectors.http import HttpConnector
from forerun.sandbox.connectors.port import Ended, Result, ToolFault
from forerun.sandbox.connectors.secrets import Secrets
from forerun.sandbox.tools import HttpEndpoint, Server, tool
from tests.unit.sandbox.fakes import invocation

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serving(answer: Serve) -> AsyncIterator[int]:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            await answer(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def call(url: str, egress: tuple[str, ...] = ()) -> Result:
    connector = HttpConnector(
        EgressTransport(Connections(most=8, idle_most=8)), Secrets(None), SystemClock(), max_bytes=1000
    )
    try:
        subject = tool("t", Server("s", egress=egress), HttpEndpoint("GET", url))
        return await connector.call(invocation(subject), lambda _: None)
    finally:
        await connector.close()


async def fine(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
    await writer.drain()


async def test_names_and_addresses_of_this_machine_need_to_be_listed() -> None:
    async with serving(fine) as port:
        assert (await call(f"http://localhost:{port}/")).content == b"ok"
        assert (await call(f"http://127.0.0.1:{port}/")).content == b"ok"
        with pytest.raises(ToolFault) as refused:
            await call(f"http://127.0.0.1:{port}/", ("api.test",))
        assert refused.value.reason is ErrorReason.EGRESS_DENIED


async def test_the_server_hears_of_a_cancelled_call() -> None:
    begun, hung_up = asyncio.Event(), asyncio.Event()

    async def slow(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        begun.set()
        assert await reader.read() == b""
        hung_up.set()

    async with serving(slow) as port:
        running = asyncio.ensure_future(call(f"http://127.0.0.1:{port}/"))
        await begun.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        async with asyncio.timeout(5):
            await hung_up.wait()


async def test_a_connection_that_breaks_after_the_call_was_sent_leaves_it_unknown() -> None:
    async def half(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf")
        await writer.drain()

    async def nothing(_: asyncio.StreamReader, __: asyncio.StreamWriter) -> None:
        return

    for answer in (half, nothing):
        async with serving(answer) as port:
            with pytest.raises(ToolFault) as broken:
                await call(f"http://127.0.0.1:{port}/")
            assert (broken.value.ended, broken.value.not_started) == (Ended.OUTCOME_UNKNOWN, False)


async def test_nobody_there_is_certainly_not_started() -> None:
    async with serving(fine) as port:
        pass
    with pytest.raises(ToolFault) as refused:
        await call(f"http://127.0.0.1:{port}/")
    assert (refused.value.ended, refused.value.not_started) == (Ended.UNAVAILABLE, True)
