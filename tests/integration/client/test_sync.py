"""The client for programs without asyncio."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from forerun.client import Call, Client, InvalidRequest, OutcomeUnknown, PlanTask, Status
from tests.integration.client.scripted import TOKEN, ScriptedServer, ScriptedServicer, serve


@pytest.fixture
def served() -> Iterator[tuple[ScriptedServer, asyncio.AbstractEventLoop]]:
    """A platform in a loop and thread of its own, so that the test itself is a program without asyncio."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def start() -> ScriptedServer:
        return await serve(ScriptedServicer())

    server = asyncio.run_coroutine_threadsafe(start(), loop).result()
    yield server, loop
    asyncio.run_coroutine_threadsafe(server.stop(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.fixture
def client(served: tuple[ScriptedServer, asyncio.AbstractEventLoop]) -> Iterator[Client]:
    with Client(served[0].address, TOKEN) as opened:
        yield opened


def test_a_session(client: Client, served: tuple[ScriptedServer, asyncio.AbstractEventLoop]) -> None:
    @client.tool
    def double(n: int) -> int:
        return 2 * n

    with client.session("agent", mode="exact") as session:
        session.user_turn("hello")
        session.model_started()
        session.assistant_message("I look")
        results = session.call_tools([Call("double", {"n": n}) for n in range(3)])
        assert [result.json() for result in results] == [0, 2, 4]
        assert session.call_tool("echo", {"a": 1}).json() == {"a": 1}
        assert {result.index for result in session.stream_tools([Call("echo"), Call("echo")])} == {0, 1}
        with pytest.raises(OutcomeUnknown):
            session.call_tool("lost")
        session.task_outcome(0.5)
    assert session.totals is not None and session.totals.calls == 7
    assert client.get_totals().calls == 7
    assert client.set_speculation(on=True) == 1
    assert [one.name for one in client.erase_histories("acme")] == ["one", "two"]
    assert client.list_tools("agent") == []


def test_many_threads_share_a_session(client: Client) -> None:
    with client.session("agent") as session, ThreadPoolExecutor(8) as threads:
        results = list(threads.map(lambda n: session.call_tool("echo", {"n": n}), range(50)))
    assert [result.json()["n"] for result in results] == list(range(50))
    assert len({result.turn for result in results}) == 50


def test_taking_back_from_another_thread(
    client: Client, served: tuple[ScriptedServer, asyncio.AbstractEventLoop]
) -> None:
    server, loop = served
    with client.session("agent") as session, ThreadPoolExecutor(1) as threads:
        call = Call("hang")
        asking = threads.submit(session.call_tools, [call])
        asyncio.run_coroutine_threadsafe(server.servicer.asked.wait(), loop).result(10)
        session.cancel(call)
        assert asking.result(10)[0].status is Status.CANCELLED


def test_a_plan_without_asyncio() -> None:
    """Around a platform that is not there, by functions of the program."""
    with Client("127.0.0.1:1", TOKEN, direct_after_seconds=0.05) as alone:

        @alone.tool
        def double(n: int) -> dict[str, int]:
            return {"n": 2 * n}

        with alone.session("agent") as session:
            assert [tool.name for tool in session.list_tools()] == ["double"]
            result = session.run_plan([PlanTask("a", "double", {"n": 4}), PlanTask("b", "double", {"n": "$a.n"})])
        assert result["b"].json() == {"n": 16} and result.direct


def test_the_end_of_a_client() -> None:
    client = Client("127.0.0.1:1", TOKEN)
    with pytest.raises(InvalidRequest, match="open the client first"):
        client.session("agent")
    with client:
        session = client.session("agent")
    before = threading.active_count()
    with pytest.raises(InvalidRequest, match="closed"):
        session.open()
    client.close()
    assert threading.active_count() == before
    assert not any(thread.name == "forerun-client" for thread in threading.enumerate())
