"""Tools of Model Context Protocol servers.

One connection for each (tenant, principal, credential scope, server) where the server is declared `stateless`. Any
other server may keep state with its connection: each session has one of its own, on which calls that the agent asked
for run and nothing else, which makes no room for others while its session lives, and whose loss is told to the session
instead of being hidden by another connection (ADR 7). Cancelling a call sends the protocol's cancel notification. A
stdio server is a plain process of the worker's user, unless its `min_isolation` asks for a sandbox.

The observation is the text itself where the answer is one plain text block; otherwise the canonical JSON of `content`,
`structuredContent` and `isError`, marked `profile=mcp-result`. Integers and texts are exact; numbers with a fraction
pass through the client library as doubles. Sampling, elicitation, roots and logging of a server are not offered to it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

import httpx2
from mcp import Client, MCPError, StdioServerParameters, stdio_client
from mcp.client.stdio import DEFAULT_INHERITED_ENV_VARS
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CONNECTION_CLOSED, CallToolResult, TextContent
from mcp_types import Tool as ListedTool

from forerun.core import limits
from forerun.core.canonical import JsonValue, canonical
from forerun.core.intake import sanitise
from forerun.runtime.errors import ErrorReason
from forerun.sandbox.connectors.egress import Egress, McpEgressTransport, Resolve, system_resolve
from forerun.sandbox.connectors.port import Ended, Invocation, Result, Sink, ToolFault, rejected, text_media_type
from forerun.sandbox.connectors.secrets import Secrets
from forerun.sandbox.connectors.stdio import StdioSandbox
from forerun.sandbox.isolation.levels import LevelName
from forerun.sandbox.isolation.rootfs import base_environment
from forerun.sandbox.owner import Owner
from forerun.sandbox.tools import McpEndpoint, McpServer, Server

_CONNECT_SECONDS: Final = 30.0
_CLOSE_SECONDS: Final = 10.0
_MOST_PAGES: Final = 100

OpenClient = Callable[[Server], AbstractAsyncContextManager[Client]]


@dataclass(frozen=True, slots=True)
class _Key:
    server: str
    tenant: str = ""
    principal: str = ""
    credential_scope: str = ""
    session: str = ""

    @property
    def stateful(self) -> bool:
        """It keeps the state of a session."""
        return bool(self.session)


class _Connection:
    """A connection with the task that owns it: the client library wants to be left in the task that entered it."""

    def __init__(self, server: Server, open_client: OpenClient) -> None:
        self._ready: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._closing = asyncio.Event()
        self._calls = 0
        self._used_at = asyncio.get_running_loop().time()
        self._task = asyncio.ensure_future(self._own(server, open_client))

    @property
    def dead(self) -> bool:
        return self._task.done() or self._closing.is_set()

    @contextmanager
    def calling(self) -> Iterator[None]:
        """A call runs on it."""
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1
            self._used_at = asyncio.get_running_loop().time()

    def idle(self, seconds: float) -> bool:
        """No call has run on it for so long."""
        return not self._calls and asyncio.get_running_loop().time() - self._used_at >= seconds

    async def client(self) -> Client:
        return await asyncio.shield(self._ready)

    async def close(self) -> None:
        self._closing.set()
        done, _ = await asyncio.wait([self._task], timeout=_CLOSE_SECONDS)
        if not done:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=_CLOSE_SECONDS)

    async def _own(self, server: Server, open_client: OpenClient) -> None:
        try:
            async with open_client(server) as client:
                self._ready.set_result(client)
                await self._closing.wait()
        except Exception as error:
            if not self._ready.done():
                self._ready.set_exception(error)
                self._ready.exception()  # whoever waits gets it; nobody waiting is fine
        finally:
            if not self._ready.done():
                self._ready.cancel()


class McpConnector:
    """Calls tools of MCP servers and lists them.

    Args:
        secrets: Resolves `secret:NAME` in environment and headers.
        resolve: Resolves names of HTTP servers.
        open_client: Opens a connection; None dials the server as its definition says.
        sandbox: Starts stdio servers whose `min_isolation` is above `process`; None refuses them.
    """

    def __init__(
        self, secrets: Secrets, *, resolve: Resolve = system_resolve, open_client: OpenClient | None = None,
        sandbox: StdioSandbox | None = None,
    ) -> None:  # fmt: skip
        self._secrets = secrets
        self._sandbox = sandbox
        self._resolve = resolve
        self._open_client = open_client or self._dial
        self._connections: dict[_Key, _Connection] = {}
        self._transports: dict[int, McpEgressTransport] = {}

    async def call(self, invocation: Invocation, sink: Sink) -> Result:
        """Calls a tool.

        Raises:
            ToolFault: There is no answer. STATE_LOST where the connection that the session had is gone.
        """
        endpoint = invocation.tool.endpoint
        assert isinstance(endpoint, McpEndpoint)
        key = _key(invocation)
        if key.stateful:
            self._check_state(key, invocation)
        connection, client = await self._connected(key, invocation.tool.server)
        try:
            with connection.calling():
                answer = await client.call_tool(endpoint.remote_name, _plain(invocation.arguments))
        except MCPError as error:
            if self._forgotten(client):
                await self._forget(key, connection)
                raise (_lost if key.stateful else _unknown_there)(invocation.tool.server.name) from error
            if error.code == CONNECTION_CLOSED or connection.dead:
                await self._forget(key, connection)
                raise _broken(invocation) from error
            return _refused(error)
        except (OSError, httpx2.HTTPError, RuntimeError, ValueError) as error:
            # The library has no common root for a transport that broke under a call.
            await self._forget(key, connection)
            raise _broken(invocation) from error
        return _observation(answer)

    def ends_with_call(self, invocation: Invocation) -> bool:
        """No: a server is told of a cancellation, and may go on all the same."""
        return False

    async def list_tools(self, server: Server) -> list[ListedTool]:
        """What a server offers, over a connection of the platform's own.

        Raises:
            ToolFault: It cannot be reached.
        """
        key = _Key(server.name)
        connection, client = await self._connected(key, server)
        listed: list[ListedTool] = []
        cursor: str | None = None
        try:
            for _ in range(_MOST_PAGES):
                page = await client.list_tools(cursor=cursor)
                listed += page.tools
                cursor = page.next_cursor
                if cursor is None:
                    break
        except (MCPError, OSError, httpx2.HTTPError, RuntimeError, ValueError) as error:
            await self._forget(key, connection)
            raise ToolFault(
                Ended.UNAVAILABLE, ErrorReason.TOOL_FAILED, f"the MCP server {server.name} does not list its tools",
                not_started=True,
            ) from error  # fmt: skip
        finally:
            # Listing needs no state, and a stdio server that nobody calls should not run.
            await self._forget(key, connection)
        return listed

    async def close_session(self, owner: Owner) -> None:
        """Ends the connections of a session."""
        for key in [key for key in self._connections if (key.tenant, key.session) == (owner.tenant, owner.session)]:
            await self._forget(key, self._connections[key])

    async def close(self) -> None:
        """Ends all connections and the stdio servers behind them."""
        connections = list(self._connections.values())
        self._connections.clear()
        await asyncio.gather(*(connection.close() for connection in connections))

    def _check_state(self, key: _Key, invocation: Invocation) -> None:
        """Refuses what would be answered from another state than that of the session's own calls."""
        server = invocation.tool.server.name
        if invocation.speculative:
            raise rejected(
                ErrorReason.POLICY_DENIED,
                f"the MCP server {server} keeps state with its connection, so nothing runs ahead of it; where no call "
                "depends on earlier ones, declare it `stateless`", server=server,
            )  # fmt: skip
        connection = self._connections.get(key)
        if invocation.expects_state and (connection is None or connection.dead):
            raise _lost(server)

    async def _connected(self, key: _Key, server: Server) -> tuple[_Connection, Client]:
        connection = self._connections.get(key)
        if connection is None or connection.dead:
            await self._make_room()
            connection = self._connections[key] = _Connection(server, self._open_client)
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                return connection, await connection.client()
        except ToolFault:
            await self._forget(key, connection)
            raise
        except Exception as error:
            await self._forget(key, connection)
            if isinstance(fault := _fault_of(error), ToolFault):
                raise fault from error
            raise ToolFault(
                Ended.UNAVAILABLE, ErrorReason.TOOL_FAILED, f"the MCP server {server.name} cannot be reached",
                metadata={"server": server.name}, not_started=True,
            ) from error  # fmt: skip

    async def _make_room(self) -> None:
        """Closes the oldest idle connection when there are too many: one that keeps no session's state.

        A session that was silent for longer than any may be has ended, or will be told.
        """
        if len(self._connections) < limits.MCP_CONNECTIONS:
            return
        for key, connection in self._connections.items():
            bound = limits.SESSION_IDLE_SECONDS if key.stateful else 0.0
            if connection.dead or connection.idle(bound):
                await self._forget(key, connection)
                return
        raise ToolFault(
            Ended.UNAVAILABLE, ErrorReason.QUEUE_FULL,
            f"all {limits.MCP_CONNECTIONS} MCP connections of this worker are busy, or keep the state of sessions "
            "(MCP_CONNECTIONS)",
            metadata={"limit": "MCP_CONNECTIONS"}, not_started=True,
        )  # fmt: skip

    async def _forget(self, key: _Key, connection: _Connection) -> None:
        if self._connections.get(key) is connection:
            del self._connections[key]
        await connection.close()

    @asynccontextmanager
    async def _dial(self, server: Server) -> AsyncIterator[Client]:
        mcp = server.mcp
        assert mcp is not None
        if mcp.command:
            if server.min_isolation is not LevelName.PROCESS:
                if self._sandbox is None:
                    raise rejected(
                        ErrorReason.ISOLATION_UNAVAILABLE, "this worker isolates no stdio servers", server=server.name
                    )
                environment = self._secrets.resolve(mcp.environment)
                async with Client(self._sandbox.open(server, environment)) as client:
                    yield client
                return
            with open(os.devnull, "w") as errors:  # noqa: ASYNC230  (never blocks)
                async with Client(stdio_client(self._stdio(mcp), errlog=errors)) as client:
                    yield client
            return
        egress = Egress.of(server.egress, [mcp.url])
        transport = McpEgressTransport(httpx2.AsyncHTTPTransport(), egress, self._resolve)
        http = httpx2.AsyncClient(
            transport=transport, headers=self._secrets.resolve(mcp.headers), trust_env=False,
            timeout=httpx2.Timeout(None, connect=_CONNECT_SECONDS),
        )  # fmt: skip
        async with http, Client(streamable_http_client(mcp.url, http_client=http)) as client:
            self._transports[id(client)] = transport
            try:
                yield client
            finally:
                del self._transports[id(client)]

    def _forgotten(self, client: Client) -> bool:
        """The server has restarted, or ended the session of its own: it has executed nothing of this request."""
        transport = self._transports.get(id(client))
        return transport is not None and transport.forgotten

    def _stdio(self, mcp: McpServer) -> StdioServerParameters:
        # The library lays our environment over a few variables of the host; all of these get values that say nothing.
        inherited = dict.fromkeys(DEFAULT_INHERITED_ENV_VARS, "")
        environment = inherited | base_environment() | self._secrets.resolve(mcp.environment)
        return StdioServerParameters(command=mcp.command[0], args=list(mcp.command[1:]), env=environment)


def _key(invocation: Invocation) -> _Key:
    server = invocation.tool.server
    return _Key(
        server.name, invocation.tenant, invocation.principal, invocation.credential_scope,
        session=invocation.session if invocation.tool.stateful else "",
    )  # fmt: skip


def _fault_of(error: BaseException) -> BaseException:
    """The first real error inside the groups that task groups make of it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _lost(server: str) -> ToolFault:
    return rejected(
        ErrorReason.STATE_LOST,
        f"the session's connection to the MCP server {server} is gone, and with it the state that its calls made; this "
        "call was not executed, the next one begins with a new connection", server=server,
    )  # fmt: skip


def _unknown_there(server: str) -> ToolFault:
    return ToolFault(
        Ended.UNAVAILABLE, ErrorReason.TOOL_FAILED, f"the MCP server {server} does not know its connection any more",
        metadata={"server": server}, not_started=True,
    )  # fmt: skip


def _broken(invocation: Invocation) -> ToolFault:
    return ToolFault(
        Ended.OUTCOME_UNKNOWN, ErrorReason.TOOL_FAILED,
        f"the connection to the MCP server of {invocation.tool.name} broke during the call",
        metadata={"tool": invocation.tool.name, "server": invocation.tool.server.name},
    )  # fmt: skip


def _refused(error: MCPError) -> Result:
    """The server's own refusal, such as an unknown tool: an answer."""
    value: JsonValue = {"error": {"code": error.code, "message": error.message}}
    return Result(canonical(value), "application/json; profile=mcp-error", tool_error=True)


def _observation(answer: CallToolResult) -> Result:
    if len(answer.content) == 1 and answer.structured_content is None:
        block = answer.content[0]
        if isinstance(block, TextContent) and block.annotations is None and block.meta is None:
            content = block.text.encode("utf-8", "replace")
            return Result(content, text_media_type(content), tool_error=bool(answer.is_error))
    whole: dict[str, object] = {
        "content": [block.model_dump(mode="json", by_alias=True, exclude_none=True) for block in answer.content],
        "isError": bool(answer.is_error),
    }
    if answer.structured_content is not None:
        whole["structuredContent"] = answer.structured_content
    made = sanitise(whole)
    nulled = f'; nulled="{" ".join(made.replaced)}"' if made.replaced else ""
    return Result(
        canonical(made.value), f"application/json; profile=mcp-result{nulled}", tool_error=bool(answer.is_error)
    )


def _plain(arguments: Mapping[str, JsonValue]) -> dict[str, object]:
    return {name: _plain_value(value) for name, value in arguments.items()}


def _plain_value(value: JsonValue) -> object:
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, list):
        return [_plain_value(item) for item in value]
    if isinstance(value, dict):
        return _plain(value)
    return value
