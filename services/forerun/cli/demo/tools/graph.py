"""The entity graph over the corpus, as a Model Context Protocol server on standard input and output.

The `ticket` argument names the case that a look-up is made for, as such servers log it; here it also picks the draw.
"""

import argparse
import json
from pathlib import Path

from mcp.server import MCPServer

from forerun.cli.demo.draws import Draws
from forerun.cli.demo.library import Library, load_library
from forerun.cli.demo.tools.log import ExecutionLog
from forerun.cli.demo.tools.pace import paced
from forerun.core.canonical import JsonValue


def build_server(*, library: Library, draws: Draws, log: ExecutionLog) -> MCPServer[None]:
    """The server with its two tools."""
    server: MCPServer[None] = MCPServer(name="graph", log_level="WARNING")

    @server.tool(structured_output=False)
    async def lookup_entity(ticket: str, id: str) -> str:
        """Kind, name and references of one entity of the corpus."""
        log.started(ticket, "lookup_entity", {"id": id})
        async with paced(draws, ticket, "lookup_entity", {"id": id}):
            document = library.documents.get(id)
        if document is None:
            return _text({"error": f"no entity {id}"})
        return _text({"id": document.id, "kind": document.kind, "name": document.title, "refs": document.refs})

    @server.tool(structured_output=False)
    async def related(ticket: str, id: str) -> str:
        """Entities that refer to one entity, with the role that it plays there."""
        log.started(ticket, "related", {"id": id})
        async with paced(draws, ticket, "related", {"id": id}):
            found = library.related(id)
        return _text({"id": id, "related": found})

    return server


def _text(value: JsonValue) -> str:
    return json.dumps(value, ensure_ascii=False)


def main() -> None:
    """Serves until standard input ends."""
    parser = argparse.ArgumentParser(prog="graph")
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--scale", type=float, required=True)
    options = parser.parse_args()
    draws = Draws(options.seed, options.scale)
    build_server(library=load_library(), draws=draws, log=ExecutionLog(options.log)).run("stdio")


if __name__ == "__main__":
    main()
