"""An MCP server that keeps one value, for as long as its process or connection lives."""

from __future__ import annotations

import asyncio
import os

from mcp.server.mcpserver import MCPServer


def state_server(seconds: float) -> MCPServer[None]:
    """A server with its own value, whose reads take so long."""
    server: MCPServer[None] = MCPServer("st")
    state = {"v": "unset"}

    @server.tool(structured_output=False)
    async def put(v: str) -> str:
        state["v"] = v
        return str(os.getpid())

    @server.tool(structured_output=False)
    async def get() -> str:
        value = state["v"]
        await asyncio.sleep(seconds)
        return value

    return server


if __name__ == "__main__":
    state_server(0.0).run()
