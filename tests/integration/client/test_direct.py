"""Calls around a platform that cannot be reached: bounded, in order, never twice, said, and back by themselves."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest

from forerun.client import (
    Answer,
    AsyncClient,
    AsyncSession,
    Call,
    Client,
    NotAuthorized,
    NotConfigured,
    PlatformUnavailable,
    Result,
    Served,
    Status,
    _asking,
)
from forerun.v1 import policy_pb2, session_pb2
from tests.integration.client.scripted import TOKEN, ScriptedServer, ScriptedServicer, serve

SOON = 0.05
NONE = session_pb2.DIRECT_WRITES_UNSPECIFIED
ENDED = session_pb2.DIRECT_WRITES_ENDED
UNSETTLED = session_pb2.DIRECT_WRITES_UNSETTLED


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110  (the condition lies in another task's state)
            await asyncio.sleep(0.01)


@dataclass
class Tools:
    """The tools themselves, as an agent without a platform would call them."""

    ran: list[str] = field(default_factory=list)
    hold: asyncio.Event | None = None

    async def __call__(self, call: Call) -> Any:
        self.ran.append(call.name)
        if self.hold is not None:
            await self.hold.wait()
        return {"directly": call.name}


def read(name: str) -> session_pb2.SessionTool:
    contract = policy_pb2.EffectContract(tool=name, effect=policy_pb2.EFFECT_READ)
    return session_pb2.SessionTool(name=name, contract=contract)


def client(address: str, direct: Any, **more: Any) -> AsyncClient:
    return AsyncClient(address, TOKEN, direct=direct, direct_after_seconds=SOON, **more)


async def learned(session: AsyncSession, name: str) -> None:
    """Waits until the client knows that a tool only reads."""
    await until(lambda: session._platform.reads(session.agent, name))


async def test_a_session_begins_without_a_platform_and_finds_it_later(
    unused_tcp_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    tools = Tools()
    with caplog.at_level(logging.WARNING, logger="forerun.client"):
        async with client(f"127.0.0.1:{unused_tcp_port}", tools) as opened:
            async with opened.session("agent") as session, opened.session("agent") as other:
                assert session.direct and other.direct
                await session.user_turn("nobody hears it")
                await session.partial_message([Call("echo", {"n": 1})])
                results = await session.call_tools([Call("echo", {"n": 1}), Call("write", {"n": 2})])
                assert [result.served for result in results] == [Served.FALLBACK] * 2
                assert [result.json() for result in results] == [{"directly": "echo"}, {"directly": "write"}]
                assert session.direct_calls == 2 and tools.ran == ["echo", "write"]
                server = await serve(ScriptedServicer(), unused_tcp_port)
                await until(lambda: not session.direct and not other.direct)
                result = await session.call_tool("echo", {"n": 3})
                assert result.served is Served.DIRECT and result.json() == {"n": 3} and len(tools.ran) == 2
                assert session.mode is not None
            # Only who has written past the platform says so; what nobody heard is not told afterwards.
            hellos = {hello.session: hello.direct_writes for hello in server.servicer.hellos}
            assert hellos == {session.id: ENDED, other.id: NONE}
            assert server.servicer.journals[session.id].events == []
            await server.stop()
    assert [record.message.partition(" at")[0] for record in caplog.records] == [
        "no platform answers", "calls go through the platform",
    ]  # fmt: skip


async def test_what_may_have_started_is_not_started_again(
    platform: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a read is; a write ends unknown at its deadline, and what comes after it in its message waits for that."""
    monkeypatch.setattr(_asking, "MARGIN_SECONDS", 0.1)
    tools = Tools()
    platform.servicer.tools = [read("wait")]
    async with client(platform.address, tools) as opened, opened.session("agent") as session:
        await learned(session, "wait")
        reading = asyncio.ensure_future(session.call_tools([Call("wait", {"n": 1})]))
        writing = asyncio.ensure_future(
            session.call_tools([Call("hang", {"n": 2}), Call("wait", {"n": 3})], timeout_seconds=1.0)
        )
        await until(lambda: len(platform.servicer.journals[session.id].asked) == 2)
        await platform.stop()
        (result,) = await reading
        assert (result.served, result.status) == (Served.FALLBACK, Status.OK)
        assert session.direct and tools.ran == ["wait"]
        later = await session.call_tool("new", {"n": 3})
        assert later.served is Served.FALLBACK and tools.ran == ["wait", "new"]
        unknown, after = await writing
        assert unknown.status is Status.OUTCOME_UNKNOWN and after.status is Status.OUTCOME_UNKNOWN
        assert tools.ran == ["wait", "new"]


async def test_the_platform_answers_what_it_was_asked_when_it_is_back() -> None:
    tools, servicer = Tools(), ScriptedServicer()
    server = await serve(servicer)
    port = int(server.address.rpartition(":")[2])
    async with client(server.address, tools) as opened, opened.session("agent") as session:
        writing = asyncio.ensure_future(session.call_tools([Call("drop", {"n": 1}), Call("echo", {"n": 2})]))
        await until(lambda: servicer.journals[session.id].answers)
        await server.stop()
        await until(lambda: session.direct)
        server = await serve(servicer, port)
        results = await writing
        assert [(result.status, result.json()) for result in results] == [(Status.OK, {"n": 1}), (Status.OK, {"n": 2})]
        assert tools.ran == [] and set(servicer.journals[session.id].runs.values()) == {1}
        assert not any(hello.direct_writes for hello in servicer.hellos)
    await server.stop()


async def test_a_message_is_finished_by_whoever_is_there(unused_tcp_port: int) -> None:
    """A call that runs directly ends so; the rest of its message goes to the platform, after it, and not twice."""
    tools = Tools(hold=asyncio.Event())
    async with client(f"127.0.0.1:{unused_tcp_port}", tools) as opened, opened.session("agent") as session:
        asking = asyncio.ensure_future(session.call_tools([Call("one", {"n": 1}), Call("two", {"n": 2})]))
        await until(lambda: tools.ran)
        server = await serve(ScriptedServicer(), unused_tcp_port)
        await until(lambda: not session.direct)
        assert server.servicer.journals[session.id].asked == []
        assert tools.hold is not None
        tools.hold.set()
        one, two = await asking
        assert (one.served, two.served) == (Served.FALLBACK, Served.DIRECT) and tools.ran == ["one"]
        # The write ended after the greeting, so there was another one before anything was asked.
        assert [hello.direct_writes for hello in server.servicer.hellos] == [ENDED, ENDED]
    await server.stop()


async def test_a_call_that_the_broker_kept_from_starting_runs_directly(platform: ScriptedServer) -> None:
    tools = Tools()
    async with client(platform.address, tools) as opened, opened.session("agent") as session:
        (result,) = await session.call_tools([Call("no broker", {"n": 1})])
        assert result.served is Served.FALLBACK and tools.ran == ["no broker"]
        await until(lambda: len(platform.servicer.hellos) == 2)
        assert platform.servicer.hellos[1].direct_writes == ENDED
        # In the middle of a message it would run after what follows it; other failures are no outage.
        first, second = await session.call_tools([Call("no broker"), Call("echo")])
        (gone,) = await session.call_tools([Call("gone")])
        assert (first.status, second.status, gone.status) == (Status.UNAVAILABLE, Status.OK, Status.UNAVAILABLE)
        assert tools.ran == ["no broker"]


async def test_a_session_that_the_platform_has_ended_meanwhile_goes_on_directly(platform: ScriptedServer) -> None:
    tools = Tools()
    port = int(platform.address.rpartition(":")[2])
    async with client(platform.address, tools) as opened, opened.session("agent") as session:
        await platform.stop()
        await until(lambda: session.direct)
        platform.servicer.journals[session.id].ended = "idle"
        server = await serve(platform.servicer, port)
        await until(lambda: len(platform.servicer.hellos) >= 2)
        assert (await session.call_tool("echo")).served is Served.FALLBACK
        async with opened.session("agent") as fresh:
            assert (await fresh.call_tool("echo")).served is Served.DIRECT
        assert (await session.call_tool("echo")).served is Served.FALLBACK
        await server.stop()


async def test_direct_calls_have_deadlines_and_can_be_taken_back(platform: ScriptedServer) -> None:
    tools = Tools(hold=asyncio.Event())
    platform.servicer.tools = [read("read")]
    async with client(platform.address, tools) as opened, opened.session("agent") as session:
        await learned(session, "read")
        await platform.stop()
        await until(lambda: session.direct)

        async def ended(name: str, end: Callable[[Call], Any]) -> Result:
            call, before = Call(name), len(tools.ran)
            asking = asyncio.ensure_future(session.call_tools([call]))
            await until(lambda: len(tools.ran) > before)
            await end(call)
            return (await asking)[0]

        assert (await ended("read", session.cancel)).status is Status.CANCELLED
        assert (await ended("write", session.cancel)).status is Status.OUTCOME_UNKNOWN

        async def late(call: Call) -> None:
            (batch,) = [one for one in session._connection.batches if call in [open_.call for open_ in one.calls]]  # type: ignore[union-attr]
            session._asking.give_up(batch)  # type: ignore[union-attr]

        assert (await ended("read", late)).status is Status.TIMEOUT
        assert (await ended("write", late)).status is Status.OUTCOME_UNKNOWN
        port = int(platform.address.rpartition(":")[2])
        server = await serve(platform.servicer, port)
        await until(lambda: not session.direct)
        assert platform.servicer.hellos[-1].direct_writes == UNSETTLED  # a write that was cut off may go on
    await server.stop()


async def test_what_a_direct_call_may_return(unused_tcp_port: int) -> None:
    answers: dict[str, Any] = {
        "text": "plain",
        "bytes": b"\x00",
        "json": {"a": 1},
        "answer": Answer(b"<a/>", "text/xml"),
    }

    def tools(call: Call) -> Any:  # in a thread
        if call.name == "fails":
            raise ValueError("no such order")
        return answers[call.name]

    async with client(f"127.0.0.1:{unused_tcp_port}", tools) as opened, opened.session("agent") as session:
        results = await session.call_tools([Call(name) for name in (*answers, "fails")])
    assert [(result.content, result.media_type) for result in results[:-1]] == [
        (b"plain", "text/plain"), (b"\x00", "application/octet-stream"), (b'{"a":1}', "application/json"),
        (b"<a/>", "text/xml"),
    ]  # fmt: skip
    assert results[-1].ok and results[-1].tool_error and results[-1].json()["error"]["type"] == "ValueError"


async def test_functions_of_the_program_need_no_other_way(unused_tcp_port: int) -> None:
    opened = client(f"127.0.0.1:{unused_tcp_port}", None)

    @opened.tool
    def add(a: int, b: int) -> int:
        return a + b

    async with opened, opened.session("agent") as session:
        result, other = await session.call_tools(
            [Call("add", {"a": 1, "b": 2}), Call("elsewhere")], timeout_seconds=0.2
        )
        assert (result.json(), result.served) == (3, Served.FALLBACK)
        # To this one there is no other way, and it was certainly not sent.
        assert other.status is Status.UNAVAILABLE


async def test_a_platform_that_nobody_has_started_yet(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, platform: ScriptedServer
) -> None:
    for name in ("FORERUN_ADDRESS", "FORERUN_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FORERUN_DATA", str(tmp_path))
    async with AsyncClient(direct=Tools(), direct_after_seconds=SOON) as opened, opened.session("agent") as session:
        assert (await session.call_tool("echo")).served is Served.FALLBACK
        (tmp_path / "token").write_text(TOKEN)
        run = {"address": platform.address, "token_file": str(tmp_path / "token")}
        (tmp_path / "run.json").write_text(json.dumps(run))
        await until(lambda: not session.direct)
        assert (await session.call_tool("echo")).served is Served.DIRECT
    (tmp_path / "run.json").unlink()
    with pytest.raises(NotConfigured):
        await AsyncClient().__aenter__()


async def test_what_is_no_outage_is_an_error_as_ever(platform: ScriptedServer, unused_tcp_port: int) -> None:
    async with AsyncClient(platform.address, "wrong", direct=Tools()) as opened:
        with pytest.raises(NotAuthorized):
            await opened.session("agent").open()
    async with AsyncClient(f"127.0.0.1:{unused_tcp_port}", TOKEN, connect_timeout_seconds=SOON) as opened:
        with pytest.raises(PlatformUnavailable):
            await opened.session("agent").open()
    platform.servicer.refuse = lambda _: (grpc.StatusCode.UNAVAILABLE, "BROKER_UNAVAILABLE")
    async with client(platform.address, Tools()) as opened, opened.session("agent") as session:
        assert (await session.call_tool("echo")).served is Served.FALLBACK  # no broker: nothing can be opened


def test_programs_without_asyncio(unused_tcp_port: int) -> None:
    def direct(call: Call) -> str:
        return call.name

    address = f"127.0.0.1:{unused_tcp_port}"
    with (
        Client(address, TOKEN, direct=direct, direct_after_seconds=SOON) as opened,
        opened.session("agent") as session,
    ):
        assert session.direct and session.call_tool("echo").text == "echo" and session.direct_calls == 1
