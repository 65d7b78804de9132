"""MCP tools over stdio and HTTP, with the official server library."""

import asyncio
import contextlib
import json
import os
import socket
import sys
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import mcp
import pytest
import uvicorn
from mcp.server.mcpserver import MCPServer
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from forerun.core import limits
from forerun.runtime.errors import ErrorReason
from forerun.sandbox.connectors.mcp import McpConnector
from forerun.sandbox.connectors.port import Ended, Result, ToolFault
from forerun.sandbox.connectors.secrets import Secrets
from forerun.sandbox.connectors.stdio import StdioSandbox
from forerun.sandbox.isolation.levels import Choice, Ladder, LevelName, probe
from forerun.sandbox.isolation.process import ProcessLevel
from forerun.sandbox.owner import Owner
from forerun.sandbox.tools import McpEndpoint, McpServer, Server, tool
from tests.integration.sandbox.conftest import left_of, need, processes
from tests.unit.sandbox.fakes import invocation

_SERVER = Path(__file__).parent / "mcp_server.py"
_LIBRARIES = str(Path(mcp.__file__).parents[1])


class Desk:
    def __init__(self, connector: McpConnector, server: Server, log: Path) -> None:
        self.connector, self.server, self.log_file = connector, server, log

    async def call(self, name: str, raw: bytes = b"{}", /, **more: object) -> Result:
        subject = tool(name, self.server, McpEndpoint(name))
        asked = invocation(subject, raw=raw, arguments=subject.checked(raw), **more)
        return await self.connector.call(asked, lambda _: None)

    async def count(self, **more: object) -> int:
        return int(json.loads((await self.call("count", b"{}", **more)).content)["count"])

    def log(self, event: str) -> list[dict[str, object]]:
        if not self.log_file.exists():
            return []
        lines = [json.loads(line) for line in self.log_file.read_text().splitlines()]
        return [line for line in lines if line["event"] == event]

    async def until(self, event: str) -> None:
        async with asyncio.timeout(10):
            while not self.log(event):  # noqa: ASYNC110  (another process has no event of ours)
                await asyncio.sleep(0.01)


@pytest.fixture
async def desk(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Desk]:
    stateless = getattr(request, "param", False)
    log = tmp_path / "log"
    definition = McpServer(
        command=(sys.executable, str(_SERVER), str(log)),
        environment={"GIVEN": "secret:mine", "PYTHONPATH": ":".join(sys.path)},
        stateless=stateless,
    )
    (tmp_path / "mine").write_text("given secret")
    connector = McpConnector(Secrets(tmp_path))
    yield Desk(connector, Server("desk", mcp=definition), log)
    await connector.close()


async def test_a_text_answer_is_its_text(desk: Desk) -> None:
    result = await desk.call("count")
    assert (result.content, result.media_type, result.tool_error) == (b'{"count": 1}', "application/json", False)


async def test_structured_answers_are_exact(desk: Desk) -> None:
    result = await desk.call("exact", b'{"value": {"big": 123456789012345678901234567890, "f": 0.1, "null": null}}')
    value = json.loads(result.content)["structuredContent"]
    assert value == {"value": {"big": 123456789012345678901234567890, "f": 0.1, "null": None}, "none": None}
    assert result.media_type == "application/json; profile=mcp-result"


async def test_errors_of_a_tool_and_of_the_protocol_are_answers(desk: Desk) -> None:
    failed = await desk.call("fail")
    assert failed.tool_error
    assert b"fail" in failed.content
    assert (await desk.call("absent")).tool_error


async def test_state_belongs_to_a_session_and_nothing_runs_ahead_of_it(desk: Desk) -> None:
    assert [await desk.count(session="a"), await desk.count(session="a")] == [1, 2]
    with pytest.raises(ToolFault, match="stateless") as refused:
        await desk.count(session="a", speculative=True)
    assert (refused.value.ended, refused.value.reason) == (Ended.REJECTED, ErrorReason.POLICY_DENIED)
    assert refused.value.not_started
    assert await desk.count(session="b") == 1
    assert await desk.count(session="a", principal="bob") == 1
    assert await desk.count(session="a") == 3
    await desk.connector.close_session(Owner("other", "a"))
    assert await desk.count(session="a") == 4
    await desk.connector.close_session(Owner("acme", "a"))
    assert await desk.count(session="a") == 1
    assert await desk.count(session="b") == 2


@pytest.mark.parametrize("desk", [True], indirect=True)
async def test_a_stateless_server_is_shared_by_sessions_and_not_by_principals(desk: Desk) -> None:
    assert [await desk.count(session="a"), await desk.count(session="b", speculative=True)] == [1, 2]
    assert await desk.count(principal="bob") == 1


async def test_a_session_keeps_its_state_where_others_want_room(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MCP_CONNECTIONS", 1)
    assert await desk.count(session="a") == 1
    with pytest.raises(ToolFault) as refused:
        await desk.count(session="b")
    assert (refused.value.reason, refused.value.not_started) == (ErrorReason.QUEUE_FULL, True)
    assert await desk.count(session="a", expects_state=True) == 2
    # One that has been silent for longer than a session may be makes room, and whoever comes back is told.
    monkeypatch.setattr(limits, "SESSION_IDLE_SECONDS", 0.0)
    assert await desk.count(session="b") == 1
    with pytest.raises(ToolFault) as lost:
        await desk.count(session="a", expects_state=True)
    assert (lost.value.ended, lost.value.reason) == (Ended.REJECTED, ErrorReason.STATE_LOST)
    assert lost.value.not_started


@pytest.mark.parametrize("desk", [True], indirect=True)
async def test_idle_connections_make_room_and_busy_ones_are_one_error_that_names_the_bound(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MCP_CONNECTIONS", 1)
    assert [await desk.count(principal=name) for name in ("a", "b", "a")] == [1, 1, 1]
    hanging = asyncio.ensure_future(desk.call("slow", principal="c"))
    await desk.until("begun")
    with pytest.raises(ToolFault) as caught:
        await desk.count(principal="d")
    assert caught.value.reason is ErrorReason.QUEUE_FULL
    assert caught.value.metadata["limit"] == "MCP_CONNECTIONS"
    hanging.cancel()
    await asyncio.wait([hanging])


async def test_a_cancelled_call_is_cancelled_at_the_server(desk: Desk) -> None:
    running = asyncio.ensure_future(desk.call("slow"))
    await desk.until("begun")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await desk.until("cancelled")
    # The connection goes on.
    assert await desk.count() == 1
    assert len({line["pid"] for event in ("begun", "count") for line in desk.log(event)}) == 1


async def test_a_server_that_dies_in_a_call_leaves_an_unknown_outcome_and_is_started_again(desk: Desk) -> None:
    await desk.call("count")
    with pytest.raises(ToolFault) as broken:
        await desk.call("die")
    assert (broken.value.ended, broken.value.not_started) == (Ended.OUTCOME_UNKNOWN, False)
    assert await desk.count() == 1


async def test_a_server_that_does_not_start_is_unavailable(tmp_path: Path) -> None:
    connector = McpConnector(Secrets(None))
    desk = Desk(connector, Server("gone", mcp=McpServer(command=("/nonexistent/server",))), tmp_path)
    with pytest.raises(ToolFault) as refused:
        await desk.call("count")
    assert (refused.value.ended, refused.value.not_started) == (Ended.UNAVAILABLE, True)
    with pytest.raises(ToolFault):
        await connector.list_tools(desk.server)
    await connector.close()


async def test_a_server_sees_only_its_own_environment(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOST_API_KEY", "USER", "SHELL", "LOGNAME"):
        monkeypatch.setenv(name, "canary")
    seen = json.loads((await desk.call("environment")).content)
    assert "canary" not in seen.values()
    assert seen["GIVEN"] == "given secret"


@pytest.mark.parametrize("level", [LevelName.GVISOR, LevelName.BUBBLEWRAP])
async def test_a_stdio_server_in_a_sandbox(level: LevelName, ladder: Ladder, tmp_path: Path) -> None:
    need(ladder, level)
    before = processes(os.getpid())
    secret = tmp_path / "secret"
    secret.write_text("secret")
    (tmp_path / "scratch").mkdir()
    connector = McpConnector(
        Secrets(None), sandbox=StdioSandbox(ladder.chosen(Choice(level.value)), str(tmp_path / "scratch"))
    )
    server = Server("desk", mcp=_portable(), min_isolation=level, workspace_seed=_LIBRARIES)
    desk = Desk(connector, server, tmp_path / "none")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        asked = json.dumps({"path": str(secret), "port": port}).encode()
        told = json.loads((await desk.call("reach", asked)).content)
        unisolated = Desk(connector, Server("free", mcp=_portable(_LIBRARIES)), tmp_path / "none")
        free = json.loads((await unisolated.call("reach", asked)).content)
    assert (told["sees"], told["writes"], told["connects"]) == (False, False, False)
    assert (free["sees"], free["writes"], free["connects"]) == (True, True, True)
    assert ("gvisor" in told["kernel"]) is (level is LevelName.GVISOR)
    # Its state lives as long as its connection, messages of any size pass, and what it prints elsewhere harms nothing.
    assert [await desk.count(), await desk.count()] == [1, 2]
    long = "x" * 900_000
    answer = await desk.call("exact", json.dumps({"value": long}).encode())
    assert json.loads(answer.content)["structuredContent"]["value"] == long
    with pytest.raises(ToolFault) as broken:
        await desk.call("die")
    assert broken.value.ended is Ended.OUTCOME_UNKNOWN
    assert await desk.count() == 1
    its_own = processes(os.getpid()) - before
    await connector.close()
    assert left_of(its_own) == set()
    assert list((tmp_path / "scratch").iterdir()) == []


async def test_a_stdio_server_in_a_sandbox_that_wants_too_much_is_ended(ladder: Ladder, tmp_path: Path) -> None:
    need(ladder, LevelName.BUBBLEWRAP)
    connector = McpConnector(Secrets(None), sandbox=StdioSandbox(ladder, str(tmp_path)))
    server = Server("desk", mcp=_portable(), min_isolation=LevelName.BUBBLEWRAP, workspace_seed=_LIBRARIES)
    desk = Desk(connector, server, tmp_path / "none")
    with pytest.raises(ToolFault) as broken:
        await desk.call("hog")
    assert broken.value.ended is Ended.OUTCOME_UNKNOWN
    await connector.close()


async def test_isolation_that_a_stdio_server_cannot_have_is_refused(desk: Desk, tmp_path: Path) -> None:
    strict = Server("desk", mcp=desk.server.mcp, min_isolation=LevelName.BUBBLEWRAP)
    weak = McpConnector(Secrets(tmp_path), sandbox=StdioSandbox(await probe([ProcessLevel()]), str(tmp_path)))
    for connector in (desk.connector, weak):
        with pytest.raises(ToolFault) as refused:
            await Desk(connector, strict, desk.log_file).call("count")
        assert refused.value.reason is ErrorReason.ISOLATION_UNAVAILABLE
        assert refused.value.not_started


def _portable(libraries: str = "/workspace") -> McpServer:
    """The test server with nothing outside of a directory with libraries."""
    return McpServer(
        command=("python3", "-c", _SERVER.read_text(), "/tmp/forerun-test-log"), environment={"PYTHONPATH": libraries}
    )


async def test_a_list_has_schemas_and_hints(desk: Desk) -> None:
    listed = {one.name: one for one in await desk.connector.list_tools(desk.server)}
    assert set(listed) == {"count", "exact", "slow", "fail", "environment", "reach", "hog", "die"}
    assert listed["count"].annotations is not None and listed["count"].annotations.read_only_hint is True
    assert "value" in listed["exact"].input_schema["properties"]


# ---------------------------------------------------------------- streamable HTTP


@contextlib.asynccontextmanager
async def serving(app: Starlette, port: int = 0) -> AsyncIterator[int]:
    with socket.create_server(("127.0.0.1", port)) as listening:
        running = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="on"))
        task = asyncio.ensure_future(running.serve(sockets=[listening]))
        while not running.started:  # noqa: ASYNC110  (uvicorn has no event for it)
            await asyncio.sleep(0.01)
        try:
            yield listening.getsockname()[1]
        finally:
            running.should_exit = True
            await task


@contextlib.asynccontextmanager
async def http_server() -> AsyncIterator[tuple[str, list[str]]]:
    seen: list[str] = []
    server: MCPServer[None] = MCPServer("http")

    @server.tool(structured_output=False)
    async def hello() -> str:
        seen.append("hello")
        return "hello over http"

    async with serving(server.streamable_http_app()) as port:
        yield f"http://127.0.0.1:{port}/mcp", seen


def with_sessions() -> Starlette:
    """A server of the protocol of 2025, which counts its calls by session and forgets them when it restarts."""
    counts: dict[str, int] = {}

    async def answer(request: Request) -> Response:
        asked = await request.json()
        session = request.headers.get("mcp-session-id", "")
        headers: dict[str, str] = {}
        match asked["method"]:
            case "initialize":
                headers["mcp-session-id"] = str(uuid.uuid4())
                counts[headers["mcp-session-id"]] = 0
                about = {"name": "old", "version": "1"}
                result: Any = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": about}
            case _ if session not in counts:
                return Response(status_code=404 if session else 400)
            case "tools/list":
                result = {"tools": [{"name": "count", "inputSchema": {"type": "object"}}]}
            case "tools/call":
                counts[session] += 1
                text = json.dumps({"count": counts[session]})
                result = {"content": [{"type": "text", "text": text}], "isError": False}
            case _:
                return Response(status_code=202)
        return JSONResponse({"jsonrpc": "2.0", "id": asked["id"], "result": result}, headers=headers)

    return Starlette(routes=[Route("/mcp", answer, methods=["POST"])])


async def test_streamable_http(tmp_path: Path) -> None:
    async with http_server() as (url, seen):
        connector = McpConnector(Secrets(None))
        desk = Desk(connector, Server("web", mcp=McpServer(url=url)), tmp_path)
        assert (await desk.call("hello")).content == b"hello over http"
        assert [one.name for one in await connector.list_tools(desk.server)] == ["hello"]
        elsewhere = Server("web2", mcp=McpServer(url=url), egress=("api.test",))
        with pytest.raises(ToolFault) as refused:
            await Desk(connector, elsewhere, tmp_path).call("hello")
        assert refused.value.reason is ErrorReason.EGRESS_DENIED
        assert seen == ["hello"]
        await connector.close()


@pytest.mark.parametrize("stateless", [False, True])
async def test_an_http_server_that_forgot_the_session_has_executed_nothing(tmp_path: Path, stateless: bool) -> None:
    connector = McpConnector(Secrets(None))
    async with serving(with_sessions()) as port:
        web = McpServer(url=f"http://127.0.0.1:{port}/mcp", stateless=stateless)
        desk = Desk(connector, Server("web", mcp=web), tmp_path)
        assert [await desk.count(), await desk.count()] == [1, 2]
    async with serving(with_sessions(), port):
        with pytest.raises(ToolFault) as caught:
            await desk.count(expects_state=True)
        lost, again = (Ended.REJECTED, ErrorReason.STATE_LOST), (Ended.UNAVAILABLE, ErrorReason.TOOL_FAILED)
        assert (caught.value.ended, caught.value.reason) == (again if stateless else lost)
        assert caught.value.not_started
        assert await desk.count() == 1
        await connector.close()
