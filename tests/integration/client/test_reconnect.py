"""Broken streams: nothing is lost, nothing runs twice, nothing waits without end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest

from forerun.client import (
    AsyncClient,
    Call,
    InvalidRequest,
    NotAuthorized,
    OutcomeUnknown,
    PlatformUnavailable,
    SessionClosed,
    Status,
)
from forerun.v1 import session_pb2
from tests.integration.client.scripted import TOKEN, Journal, ScriptedServer, ScriptedServicer, serve


async def until(condition: Any) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110  (the condition lies in another task's state)
            await asyncio.sleep(0.01)


async def test_a_lost_answer_is_fetched_and_the_call_is_not_repeated(
    client: AsyncClient, platform: ScriptedServer
) -> None:
    async with client.session("agent") as session:
        first, second = await session.call_tools([Call("drop", {"n": 1}), Call("echo")])
        assert first.json() == {"n": 1} and second.ok
        journal = platform.servicer.journals[session.id]
        assert set(journal.runs.values()) == {1}
        assert [hello.resume for hello in platform.servicer.hellos] == [False, True]
        assert {hello.session for hello in platform.servicer.hellos} == {session.id}
        # The turn is the same: the platform recognises the call by its key.
        assert {batch.turn for batch in journal.asked} == {1}


async def test_only_open_calls_are_sent_again_with_what_remains_of_their_time(
    client: AsyncClient, platform: ScriptedServer
) -> None:
    async with client.session("agent") as session:
        calls = [Call("echo", {"n": 0}), Call("wait", {"n": 1}), Call("wait", {"n": 2})]
        asking = asyncio.ensure_future(session.call_tools(calls, timeout_seconds=30))
        await until(lambda: (1, 0) in platform.servicer.journals[session.id].answers)
        await session.call_tool("echo")  # comes after the first answer
        platform.servicer.streams[0].fail(grpc.StatusCode.UNAVAILABLE, "")
        await until(lambda: len(platform.servicer.streams) == 2)
        await until(lambda: len(platform.servicer.journals[session.id].asked) == 3)
        platform.servicer.streams[1].released.set()
        results = await asking
    assert [result.json()["n"] for result in results] == [0, 1, 2]
    again = platform.servicer.journals[session.id].asked[-1]
    assert [call.index for call in again.calls] == [1, 2]
    assert 0 < again.timeout_seconds < 30


async def test_half_of_a_large_answer_is_none(client: AsyncClient, platform: ScriptedServer) -> None:
    async with client.session("agent") as session:
        result = await session.call_tool("cut")
    assert result.content == b"x" * (3 * 1024 * 1024)
    assert set(platform.servicer.journals[session.id].runs.values()) == {1}


async def test_a_platform_that_restarts_is_found_again() -> None:
    servicer = ScriptedServicer()
    server = await serve(servicer)
    port = int(server.address.rpartition(":")[2])
    async with AsyncClient(server.address, TOKEN) as client, client.session("agent") as session:
        asking = asyncio.ensure_future(session.call_tools([Call("wait", {"n": 1})]))
        await servicer.asked.wait()
        await server.stop()
        later = asyncio.ensure_future(session.call_tool("echo", {"n": 2}))  # asked while nobody listens
        await asyncio.sleep(0)
        server = await serve(servicer, port)
        assert (await later).json() == {"n": 2}
        servicer.streams[-1].released.set()
        assert (await asking)[0].json() == {"n": 1}
    await server.stop()


async def test_calls_end_by_their_deadline_while_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forerun.client._asking.MARGIN_SECONDS", 0.1)
    servicer = ScriptedServicer()
    server = await serve(servicer)
    async with AsyncClient(server.address, TOKEN) as client:
        session = client.session("agent")
        await session.open()
        asking = asyncio.ensure_future(session.call_tools([Call("hang")], timeout_seconds=0.5))
        await servicer.asked.wait()
        await server.stop()
        await until(lambda: not servicer.streams[0].tasks)
        (sent,) = await asking
        (unsent,) = await session.call_tools([Call("echo")], timeout_seconds=0.2)
        # What was sent may have taken effect, what was not certainly has not.
        assert (sent.status, unsent.status) == (Status.OUTCOME_UNKNOWN, Status.UNAVAILABLE)
        monkeypatch.setattr("forerun.client._session._CLOSE_SECONDS", 0.2)
        await session.close()
        assert session.totals is None


async def test_a_session_that_was_taken_over_is_not_opened_again(client: AsyncClient, platform: ScriptedServer) -> None:
    session = client.session("agent")
    await session.open()
    asking = asyncio.ensure_future(session.call_tools([Call("hang")]))
    await platform.servicer.asked.wait()
    platform.servicer.streams[0].fail(grpc.StatusCode.FAILED_PRECONDITION, "SESSION_TAKEN_OVER")
    (result,) = await asking
    assert result.status is Status.OUTCOME_UNKNOWN
    assert result.failure is not None and result.failure.reason == "SESSION_TAKEN_OVER"
    with pytest.raises(SessionClosed, match="SESSION_TAKEN_OVER"):
        await session.call_tool("echo")
    await session.close()
    assert len(platform.servicer.hellos) == 1


async def test_another_owner_is_connected_to(client: AsyncClient, platform: ScriptedServer) -> None:
    async with client.session("agent") as session:
        platform.servicer.streams[0].fail(grpc.StatusCode.ABORTED, "SESSION_TAKEN_OVER")
        assert (await session.call_tool("echo", {"n": 1})).json() == {"n": 1}
    assert [hello.resume for hello in platform.servicer.hellos] == [False, True]


async def test_a_revoked_token_ends_the_session(client: AsyncClient, platform: ScriptedServer) -> None:
    async with client.session("agent") as session:
        asking = asyncio.ensure_future(session.call_tool("hang"))
        await platform.servicer.asked.wait()
        platform.servicer.streams[0].fail(grpc.StatusCode.UNAUTHENTICATED, "CREDENTIAL_REFUSED")
        with pytest.raises(OutcomeUnknown, match="CREDENTIAL_REFUSED"):
            await asking
        with pytest.raises(NotAuthorized):
            await session.user_turn("hello")


@pytest.mark.parametrize(
    ("code", "reason", "kind", "hellos"),
    [
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL", PlatformUnavailable, 1),
        (grpc.StatusCode.INTERNAL, "INTERNAL", Exception, 1),
        (grpc.StatusCode.INVALID_ARGUMENT, "ARGUMENT_INVALID", InvalidRequest, 1),
    ],
)
async def test_what_repeating_cannot_help_is_not_repeated(
    client: AsyncClient,
    platform: ScriptedServer,
    code: grpc.StatusCode,
    reason: str,
    kind: type[Exception],
    hellos: int,
) -> None:
    platform.servicer.refuse = lambda hello: (code, reason)
    with pytest.raises(kind, match=reason):
        await client.session("agent").open()
    assert len(platform.servicer.hellos) == hellos


async def test_a_welcome_that_was_lost(client: AsyncClient, platform: ScriptedServer) -> None:
    answers = iter([(grpc.StatusCode.UNAVAILABLE, ""), (grpc.StatusCode.ALREADY_EXISTS, "SESSION_EXISTS"), None])
    session = client.session("agent")
    platform.servicer.journals[session.id] = Journal(session_pb2.Hello(session=session.id))
    platform.servicer.refuse = lambda hello: next(answers)
    async with session:
        assert (await session.call_tool("echo", {"n": 1})).json() == {"n": 1}
    assert [hello.resume for hello in platform.servicer.hellos] == [False, False, True]


async def test_goodbye_lets_open_calls_finish_and_sends_new_ones_elsewhere(
    client: AsyncClient, platform: ScriptedServer
) -> None:
    async with client.session("agent") as session:
        asking = asyncio.ensure_future(session.call_tool("goodbye", {"n": 1}))
        await platform.servicer.asked.wait()
        await until(platform.servicer.streams[0].out.empty)
        later = asyncio.ensure_future(session.call_tool("echo", {"n": 2}))
        await asyncio.sleep(0.1)
        assert not later.done() and len(platform.servicer.streams) == 1
        platform.servicer.streams[0].released.set()
        assert (await asking).json() == {"n": 1}
        assert (await later).json() == {"n": 2}
        assert len(platform.servicer.streams) == 2
    journal = platform.servicer.journals[session.id]
    assert [(batch.turn, len(batch.calls)) for batch in journal.asked] == [(1, 1), (2, 1)]
    assert set(journal.runs.values()) == {1}


async def test_a_call_taken_back_while_disconnected_is_stopped_afterwards() -> None:
    servicer = ScriptedServicer()
    server = await serve(servicer)
    port = int(server.address.rpartition(":")[2])
    async with AsyncClient(server.address, TOKEN) as client, client.session("agent") as session:
        call = Call("hang")
        asking = asyncio.ensure_future(session.call_tools([call]))
        await servicer.asked.wait()
        await server.stop()
        await session.cancel(call)
        server = await serve(servicer, port)
        (result,) = await asking
        assert result.status is Status.CANCELLED
        assert servicer.journals[session.id].cancelled == [(1, 0)]
    await server.stop()


async def test_going_on_with_a_session_of_another_program(platform: ScriptedServer) -> None:
    async with AsyncClient(platform.address, TOKEN) as client:
        first = client.session("agent")
        await first.open()
        await first.call_tool("echo")
        async with AsyncClient(platform.address, TOKEN) as other:
            async with other.session("agent", session_id=first.id, resume=True) as second:
                assert (await second.call_tool("echo")).turn == 2
            with pytest.raises(SessionClosed, match="SESSION_NOT_FOUND"):
                await other.session("agent", session_id="01890000-0000-7000-8000-000000000000", resume=True).open()
        with pytest.raises(InvalidRequest):
            client.session("agent", resume=True)


class Mute(ScriptedServicer):
    """A platform that takes the greeting and says nothing."""

    async def Connect(  # noqa: N802
        self, request_iterator: AsyncIterator[session_pb2.ConnectRequest], context: Any
    ) -> AsyncIterator[session_pb2.ConnectResponse]:
        self.hellos.append((await anext(request_iterator)).hello)
        self.asked.set()
        await asyncio.Event().wait()
        yield session_pb2.ConnectResponse()


async def test_a_channel_that_is_closed_before_the_welcome_leaves_nobody_waiting() -> None:
    server = await serve(Mute())
    channel = grpc.aio.insecure_channel(server.address)
    try:
        async with AsyncClient(channel=channel, token=TOKEN) as client:
            opening = asyncio.ensure_future(client.session("agent").open())
            async with asyncio.timeout(10):
                await server.servicer.asked.wait()
                await channel.close()
                with pytest.raises(SessionClosed):
                    await opening
    finally:
        await server.stop()
