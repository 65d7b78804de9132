"""Calls over a real stream: order, exactness, typed ends, large answers."""

from __future__ import annotations

import asyncio

import pytest

from forerun.client import (
    AsyncClient,
    Call,
    CallError,
    CallRejected,
    CallTimeout,
    CallUnavailable,
    ErasedServer,
    InvalidRequest,
    Mode,
    NotAuthorized,
    OutcomeUnknown,
    PlatformUnavailable,
    SessionClosed,
    Status,
)
from tests.integration.client.scripted import TOKEN, ScriptedServer, ScriptedServicer, serve


async def test_a_call_travels_and_comes_back(client: AsyncClient, platform: ScriptedServer) -> None:
    async with client.session("agent", label="run 7", tools=["echo"]) as session:
        result = await session.call_tool("echo", {"order_id": 2**70, "näme": "ü"})
    assert result.ok and result.raise_for_status() is result
    assert result.json() == {"order_id": 2**70, "näme": "ü"}
    hello = platform.servicer.hellos[0]
    assert (hello.agent, hello.label, list(hello.tools), hello.resume) == ("agent", "run 7", ["echo"], False)
    assert session.totals is not None and (session.totals.calls, session.totals.hits) == (1, 3)
    assert platform.servicer.journals[session.id].ended == "done"


async def test_text_of_arguments_is_not_touched(client: AsyncClient, platform: ScriptedServer) -> None:
    async with client.session("agent") as session:
        text = b'{ "b": 1.0 , "a":1e2 }'
        assert (await session.call_tool("echo", text)).content == text
        assert (await session.call_tool("echo", text.decode())).content == text


async def test_results_come_in_call_order_each_with_its_own_end(client: AsyncClient, platform: ScriptedServer) -> None:
    async with client.session("agent") as session:
        calls = [Call("wait", {"n": 0}), Call("bad"), Call("echo", {"n": 2}), Call("lost")]
        asking = asyncio.ensure_future(session.call_tools(calls))
        await session.call_tool("echo")
        assert not asking.done()
        platform.servicer.streams[0].released.set()
        results = await asking
    assert [result.status.value for result in results] == ["ok", "rejected", "ok", "outcome_unknown"]


async def test_one_message_is_one_batch(client: AsyncClient, platform: ScriptedServer) -> None:
    async with client.session("agent") as session:
        calls = [Call("echo", {"n": n}, provider_call_id=f"id-{n}") for n in range(800)]
        results = await session.call_tools(calls)
    assert [result.json()["n"] for result in results] == list(range(800))
    assert [result.call for result in results] == calls
    (batch,) = platform.servicer.journals[session.id].asked
    assert [call.index for call in batch.calls] == list(range(800))
    assert batch.calls[3].provider_call_id == "id-3"
    assert not batch.HasField("timeout_seconds")


async def test_results_stream_as_they_finish(client: AsyncClient, platform: ScriptedServer) -> None:
    async with client.session("agent") as session:
        order: list[str] = []
        async for result in session.stream_tools([Call("wait"), Call("echo"), Call("bad")]):
            order.append(result.call.name)
            if len(order) == 2:
                platform.servicer.streams[0].released.set()
    assert sorted(order[:2]) == ["bad", "echo"] and order[2] == "wait"


async def test_leaving_a_stream_of_results_takes_the_others_back(client: AsyncClient, platform: ScriptedServer) -> None:
    async with client.session("agent") as session:
        results = session.stream_tools([Call("hang"), Call("echo")])
        assert (await anext(results)).call.name == "echo"
        await results.aclose()
        await session.call_tool("echo")
        assert platform.servicer.journals[session.id].cancelled == [(1, 0)]


@pytest.mark.parametrize(
    ("tool", "kind"),
    [("bad", CallRejected), ("late", CallTimeout), ("gone", CallUnavailable), ("lost", OutcomeUnknown)],
)
async def test_other_ends_are_typed_errors(client: AsyncClient, tool: str, kind: type[CallError]) -> None:
    async with client.session("agent") as session:
        with pytest.raises(kind) as caught:
            await session.call_tool(tool)
        (result,) = await session.call_tools([Call(tool)])
    assert (caught.value.reason, caught.value.metadata, caught.value.retry_after_seconds) == (
        "BECAUSE",
        {"why": "so"},
        1.5,
    )
    assert not result.ok and result.failure is not None and caught.value.result.status is result.status


async def test_a_large_result_comes_whole(client: AsyncClient) -> None:
    async with client.session("agent") as session:
        result = await session.call_tool("big")
    assert result.content == bytes(range(256)) * 20_480  # 5 MiB


async def test_a_damaged_answer_is_asked_for_again_and_runs_once(client: AsyncClient, platform: ScriptedServer) -> None:
    async with client.session("agent") as session:
        assert (await session.call_tool("corrupt", {"a": 1})).json() == {"a": 1}
        with pytest.raises(OutcomeUnknown) as caught:
            await session.call_tool("always corrupt")
    assert caught.value.reason == "RESULT_CORRUPT"
    assert set(platform.servicer.journals[session.id].runs.values()) == {1}


async def test_a_result_that_comes_twice_is_delivered_once(client: AsyncClient) -> None:
    async with client.session("agent") as session:
        streamed = [one.json() async for one in session.stream_tools([Call("twice", {"n": 1})])]
        assert streamed == [{"n": 1}]
        assert (await session.call_tool("echo", {"n": 2})).json() == {"n": 2}


async def test_taking_one_call_back(client: AsyncClient, platform: ScriptedServer) -> None:
    async with client.session("agent") as session:
        slow, quick = Call("hang"), Call("echo")
        asking = asyncio.ensure_future(session.call_tools([slow, quick]))
        await platform.servicer.asked.wait()
        await session.cancel(slow)
        first, second = await asking
    assert (first.status, second.status) == (Status.CANCELLED, Status.OK)


async def test_cancelling_the_waiting_task_takes_its_calls_back(client: AsyncClient, platform: ScriptedServer) -> None:
    async with client.session("agent") as session:
        asking = asyncio.ensure_future(session.call_tools([Call("hang"), Call("hang")]))
        await platform.servicer.asked.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await session.call_tool("echo")
        assert platform.servicer.journals[session.id].cancelled == [(1, 0), (1, 1)]


async def test_turns_follow_the_messages(client: AsyncClient, platform: ScriptedServer) -> None:
    async with client.session("agent", mode="shadow") as session:
        assert session.mode is Mode.SHADOW and session.policy == "p@1"
        await session.user_turn("hello")
        await session.model_started()
        await session.model_started()  # the request was repeated: the same message
        await session.assistant_message("I look it up")
        assert (await session.call_tool("echo")).turn == 1
        assert (await session.call_tool("echo")).turn == 2
        await session.model_started()
        await session.assistant_message("done")
        await session.user_turn("and now?")
        await session.assistant_message("nothing")
        await session.task_outcome(1.0, "solved")
        assert (await session.call_tool("echo")).turn == 4
    journal = platform.servicer.journals[session.id]
    turns = [
        event.model_started.turn or event.assistant_message.turn
        for event in journal.events
        if event.WhichOneof("event") in ("model_started", "assistant_message")
    ]
    assert turns == [1, 1, 1, 3, 3, 4]
    assert [event.WhichOneof("event") for event in journal.events].count("user_turn") == 2
    assert journal.events[-1].task_outcome.label == "solved"


async def test_what_cannot_be_asked_is_refused_before_it_is_sent(client: AsyncClient, platform: ScriptedServer) -> None:
    async with client.session("agent") as session:
        with pytest.raises(InvalidRequest, match=r"\$\.a\[1\]"):
            await session.call_tool("echo", {"a": [0, float("nan")]})
        with pytest.raises(InvalidRequest, match="1001"):
            await session.call_tools([Call("echo") for _ in range(1001)])
        with pytest.raises(InvalidRequest, match="MESSAGE_TOO_LARGE"):
            await session.call_tools([Call("echo", {"x": "y" * 1_000_000}) for _ in range(5)])
        with pytest.raises(InvalidRequest, match="timeout_seconds"):
            await session.call_tool("echo", timeout_seconds=0)
        same = Call("echo")
        with pytest.raises(InvalidRequest, match="twice"):
            await session.call_tools([same, same])
        assert await session.call_tools([]) == []
    assert platform.servicer.journals[session.id].asked == []
    with pytest.raises(SessionClosed):
        await session.call_tool("echo")


async def test_a_wrong_token_is_said_at_once(platform: ScriptedServer) -> None:
    async with AsyncClient(platform.address, "another") as client:
        with pytest.raises(NotAuthorized, match="CREDENTIAL_REFUSED"):
            await client.session("agent").open()


async def test_nobody_listens(platform: ScriptedServer) -> None:
    await platform.stop()
    async with AsyncClient(platform.address, TOKEN, connect_timeout_seconds=0.5) as client:
        with pytest.raises(PlatformUnavailable, match="forerun up"):
            await client.session("agent").open()
        with pytest.raises(PlatformUnavailable):
            await client.get_totals()


async def test_a_platform_that_says_nothing_does_not_hold_a_call(client: AsyncClient, platform: ScriptedServer) -> None:
    async with client.session("agent") as session:
        session_margin = pytest.MonkeyPatch()
        session_margin.setattr("forerun.client._asking.MARGIN_SECONDS", 0.1)
        with pytest.raises(OutcomeUnknown, match="DEADLINE_EXCEEDED"):
            await session.call_tool("hang", timeout_seconds=0.1)
        session_margin.undo()
        await session.call_tool("echo")
        assert platform.servicer.journals[session.id].cancelled == [(1, 0)]


async def test_the_other_calls(client: AsyncClient, platform: ScriptedServer) -> None:
    assert (await client.get_totals()).calls == 7
    assert await client.set_speculation(on=False, reason="test") == 1
    assert [(one.on, one.tenant, one.reason) for one in platform.servicer.switched] == [(False, "", "test")]
    done, waited_for = ErasedServer("one", True, 2, 40, 1), ErasedServer("two", False)
    assert await client.erase_histories("acme", wait_seconds=2.0) == [done, waited_for]
    assert [(one.tenant, one.wait_seconds) for one in platform.servicer.erased] == [("acme", 2.0)]
    assert await client.list_tools("agent") == []


async def test_a_closed_client_closes_its_sessions() -> None:
    server = await serve(ScriptedServicer())
    async with AsyncClient(server.address, TOKEN) as client:
        session = client.session("agent")
        await session.open()
        asking = asyncio.ensure_future(session.call_tools([Call("hang")]))
        await server.servicer.asked.wait()
    (result,) = await asking
    assert result.status is Status.OUTCOME_UNKNOWN and session.totals is not None
    await server.stop()


async def test_a_session_that_is_being_closed_takes_nothing_more(
    client: AsyncClient, platform: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forerun.client._session._CLOSE_SECONDS", 0.2)
    session = client.session("agent")
    await session.open()
    platform.servicer.deaf = True
    closing = asyncio.ensure_future(session.close())
    await asyncio.sleep(0)  # it has begun, and waits for the platform, which says nothing
    with pytest.raises(SessionClosed, match="SESSION_ENDED"):
        await session.call_tool("echo")
    assert not closing.done()
    await closing
