"""Tool servers from the contract's messages: what a policy file or the key-value store says, checked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from forerun.runtime.errors import ErrorReason, InvalidArgument
from forerun.runtime.tool_servers import check_server
from forerun.sandbox.isolation.levels import LevelName
from forerun.sandbox.isolation.limits import CommandLimits
from forerun.sandbox.tools import (
    ANY_OBJECT,
    CommandEndpoint,
    Endpoint,
    HttpEndpoint,
    McpServer,
    PythonEndpoint,
    Server,
    Tool,
    tool,
)
from forerun.v1 import policy_pb2


@dataclass(frozen=True, slots=True)
class McpTool:
    """A tool of an MCP server that the policy names: renamed, or one of the few that may be used."""

    name: str
    remote_name: str
    description: str
    input_schema: str
    endpoint_version: str


@dataclass(frozen=True, slots=True)
class Definition:
    """One server.

    Attributes:
        server: Where its tools live.
        tools: Its tools, unless it is an MCP server.
        listed: For an MCP server, the tools that the policy names; empty takes all that it lists.
    """

    server: Server
    tools: tuple[Tool, ...]
    listed: tuple[McpTool, ...]


def definitions_of(messages: Iterable[policy_pb2.ToolServer]) -> tuple[Definition, ...]:
    """The servers of a policy.

    Raises:
        InvalidArgument: A server or a tool is wrong; the message names it.
    """
    found = tuple(_definition(message) for message in messages)
    seen: set[str] = set()
    for name in (one.name for definition in found for one in definition.tools):
        if name in seen:
            raise _wrong(f"two tools have the name {name}")
        seen.add(name)
    if len({definition.server.name for definition in found}) != len(found):
        raise _wrong("two tool servers have the same name")
    return found


def _definition(message: policy_pb2.ToolServer) -> Definition:
    check_server(message)
    try:
        level = LevelName(message.min_isolation or LevelName.PROCESS.value)
    except ValueError:
        raise _wrong(f"min_isolation of {message.name} is none of {', '.join(LevelName)}") from None
    mcp = _mcp(message) if message.HasField("mcp") else None
    if mcp is not None and mcp.command and level is not LevelName.PROCESS and message.egress:
        raise _wrong(f"{message.name} asks for isolation, in which a stdio server has no network: leave its egress out")
    server = Server(message.name, tuple(message.egress), level, message.workspace_seed, mcp)
    if mcp is not None:
        return Definition(server, (), tuple(_listed(spec) for spec in message.tools))
    return Definition(server, tuple(_tool(server, spec) for spec in message.tools), ())


def _mcp(message: policy_pb2.ToolServer) -> McpServer:
    mcp = message.mcp
    return McpServer(tuple(mcp.command), mcp.url, dict(mcp.environment), dict(mcp.headers), mcp.stateless)


def _listed(spec: policy_pb2.ToolSpec) -> McpTool:
    return McpTool(spec.name, spec.remote_name or spec.name, spec.description, spec.input_schema, spec.endpoint_version)


def _tool(server: Server, spec: policy_pb2.ToolSpec) -> Tool:
    endpoint: Endpoint
    match spec.WhichOneof("endpoint"):
        case "http":
            http = spec.http
            endpoint = HttpEndpoint(
                http.method or "GET", http.url, dict(http.headers), http.json_body, http.idempotency_header,
                tuple(http.alternatives),
            )  # fmt: skip
        case "python":
            endpoint = PythonEndpoint(spec.python.entry_point)
        case _:  # check_server has seen that it is there
            endpoint = _command(spec.command)
    return tool(
        spec.name, server, endpoint, description=spec.description, input_schema=spec.input_schema or ANY_OBJECT,
        endpoint_version=spec.endpoint_version,
    )  # fmt: skip


def _command(message: policy_pb2.Command) -> CommandEndpoint:
    usual = CommandLimits()
    limits = CommandLimits(
        memory_bytes=message.memory_bytes if message.HasField("memory_bytes") else usual.memory_bytes,
        pids=message.pids if message.HasField("pids") else usual.pids,
        cpu_seconds=message.cpu_seconds if message.HasField("cpu_seconds") else usual.cpu_seconds,
        disk_bytes=message.disk_bytes if message.HasField("disk_bytes") else usual.disk_bytes,
    )
    return CommandEndpoint(
        tuple(message.argv), message.stdin_argument, dict(message.environment), limits,
        cpu_follows_timeout=not message.HasField("cpu_seconds"),
    )  # fmt: skip


def _wrong(what: str) -> InvalidArgument:
    return InvalidArgument(ErrorReason.POLICY_INVALID, what)
