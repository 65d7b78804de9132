"""An MCP server over stdio for the tests. Its log is a file, one JSON line for each thing that happened."""

import asyncio
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

from mcp.server.mcpserver import MCPServer
from mcp_types import ToolAnnotations

LOG = Path(sys.argv[1])
server: MCPServer[None] = MCPServer("tests")
state = {"count": 0}


def note(**what: object) -> None:
    with LOG.open("a") as file:
        file.write(json.dumps({"pid": os.getpid(), **what}) + "\n")


@server.tool(structured_output=False, annotations=ToolAnnotations(read_only_hint=True, open_world_hint=False))
async def count() -> str:
    """Counts the calls of this process."""
    state["count"] += 1
    note(event="count")
    return json.dumps({"count": state["count"]})


@server.tool()
async def exact(value: Any) -> dict[str, Any]:
    """Gives back what it gets, as structured content."""
    return {"value": value, "none": None}


@server.tool(structured_output=False)
async def slow() -> str:
    """Waits until it is cancelled."""
    note(event="begun")
    try:
        await asyncio.sleep(60)
    except BaseException as error:
        note(event="cancelled", kind=type(error).__name__)
        raise
    return "late"


@server.tool(structured_output=False)
async def fail() -> str:
    """Fails."""
    raise ValueError("no such thing")


@server.tool(structured_output=False)
async def environment() -> str:
    """What it finds in its environment."""
    return json.dumps(dict(os.environ))


@server.tool(structured_output=False)
def reach(path: str, port: int) -> str:
    """Whether it sees a file, may write at its place, and may connect to a port of this machine."""
    try:
        socket.create_connection(("127.0.0.1", port), 2).close()
        connects = True
    except OSError:
        connects = False
    try:
        (Path.cwd() if Path.cwd() == Path("/workspace") else Path(path).parent).joinpath("written").write_text("mine")
        writes = True
    except OSError:
        writes = False
    return json.dumps(
        {"sees": Path(path).exists(), "writes": writes, "connects": connects, "kernel": os.uname().release}
    )


@server.tool(structured_output=False)
async def hog() -> str:
    """Takes more memory than a tool may."""
    held = b"x" * (1 << 31)
    await asyncio.sleep(60)
    return str(len(held))


@server.tool(structured_output=False)
async def die() -> str:
    """Ends the process in the middle of a call."""
    os._exit(3)


if __name__ == "__main__":
    server.run()
