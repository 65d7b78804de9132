"""Tools that live in the client."""

from __future__ import annotations

import asyncio
import json
import threading

import grpc
import pytest

from forerun.client import AsyncClient, InvalidRequest
from forerun.v1 import common_pb2, policy_pb2, session_pb2
from tests.integration.client.scripted import Response, ScriptedServer
from tests.integration.client.test_reconnect import until


async def test_functions_are_called_back(client: AsyncClient, platform: ScriptedServer) -> None:
    main = threading.current_thread()

    @client.tool
    def add(left: int, right: int = 1) -> int:
        assert threading.current_thread() is not main, "a plain function runs in a thread"
        return left + right

    session = client.session("agent", tools=["echo"])

    @session.tool(name="greet", schema={"type": "object"})
    async def greeting(name: str) -> str:
        return f"hello {name}"

    @session.tool
    def raw() -> bytes:
        return b"\x00\x01"

    async with session:
        assert (await session.call_tool("add", {"left": 2**80})).json() == 2**80 + 1
        assert (await session.call_tool("greet", {"name": "Ada"})).text == "hello Ada"
        assert (await session.call_tool("raw")).content == b"\x00\x01"
    declared = {tool.name: json.loads(tool.input_schema) for tool in platform.servicer.hellos[0].client_tools}
    assert declared["greet"] == {"type": "object"}
    assert declared["add"]["properties"] == {"left": {"type": "integer"}, "right": {"type": "integer", "default": 1}}
    with pytest.raises(InvalidRequest, match="before the session is opened"):
        session.tool(raw)
    async with client.session("agent") as other:
        assert [tool.name for tool in platform.servicer.hellos[1].client_tools] == ["add"]
        assert (await other.call_tool("add", {"left": 1})).json() == 2


async def test_what_a_function_raises_is_its_answer(client: AsyncClient) -> None:
    @client.tool
    def fails(reason: str) -> None:
        raise LookupError(reason)

    @client.tool
    def strange() -> object:
        return {"deep": [float("nan")]}

    @client.tool
    def huge() -> str:
        return "x" * 5_000_000

    async with client.session("agent") as session:
        result = await session.call_tool("fails", {"reason": "no such order"})
        assert result.ok and result.tool_error
        assert result.json() == {"error": {"type": "LookupError", "message": "no such order"}}
        wrong = await session.call_tool("fails", {"raisin": 1})
        assert wrong.tool_error and wrong.json()["error"]["type"] == "TypeError"
        nan = await session.call_tool("strange")
        assert nan.tool_error and "$.deep[0]" in nan.json()["error"]["message"]
        large = await session.call_tool("huge")
        assert large.tool_error and large.json()["error"]["type"] == "ResultTooLarge"


async def test_a_function_is_stopped_when_the_platform_says_so(client: AsyncClient, platform: ScriptedServer) -> None:
    started, stopped = asyncio.Event(), asyncio.Event()

    @client.tool
    async def patient() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    async with client.session("agent") as session:
        asking = asyncio.ensure_future(session.call_tool("patient"))
        await started.wait()
        cancel = session_pb2.ClientToolCancel(invocation="invocation-0")
        platform.servicer.streams[0].out.put_nowait(Response(invocation_cancel=cancel))
        await asyncio.wait_for(stopped.wait(), 5)
        # Nothing is answered for it; the platform has answered the call itself.
        assert not platform.servicer.streams[0].invocations["invocation-0"].done()
        asking.cancel()
        await asyncio.wait([asking])


async def test_a_function_is_stopped_with_its_connection(client: AsyncClient, platform: ScriptedServer) -> None:
    runs: list[str] = []

    @client.tool
    async def patient() -> str:
        runs.append("started")
        if len(runs) == 1:
            try:
                await asyncio.Event().wait()
            finally:
                runs.append("stopped")
        return "done"

    async with client.session("agent") as session:
        asking = asyncio.ensure_future(session.call_tool("patient"))
        await until(lambda: runs)
        platform.servicer.streams[0].fail(grpc.StatusCode.UNAVAILABLE, "")
        assert (await asking).text == "done"
    assert runs == ["started", "stopped", "started"]


async def test_an_unknown_tool_is_answered(client: AsyncClient, platform: ScriptedServer) -> None:
    async with client.session("agent"):
        stream = platform.servicer.streams[0]
        result = await stream.invoke("nothing", b"{}")
        assert result.status == common_pb2.CALL_STATUS_UNAVAILABLE


async def test_tools_that_take_long_are_waited_for(
    client: AsyncClient, platform: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forerun.client._asking.MARGIN_SECONDS", 0.05)
    monkeypatch.setattr("forerun.client._asking.DEADLINE_DEFAULT_SECONDS", 0.05)
    contract = policy_pb2.EffectContract(tool="wait", timeout_seconds=30.0)
    platform.servicer.tools.append(session_pb2.SessionTool(name="wait", contract=contract))
    async with client.session("agent") as session:
        slow = asyncio.ensure_future(session.call_tool("wait", {"n": 1}))
        unknown = await asyncio.wait({asyncio.ensure_future(session.call_tool("hang"))})
        assert [task.exception().__class__.__name__ for task in unknown[0]] == ["OutcomeUnknown"]
        await asyncio.sleep(0.2)
        assert not slow.done()
        platform.servicer.streams[0].released.set()
        assert (await slow).json() == {"n": 1}
