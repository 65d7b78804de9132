"""Where the tools of a policy file live, and what that makes of the contracts beside them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from forerun.core.contracts import Contract, in_place
from forerun.v1 import policy_pb2


@dataclass(frozen=True, slots=True)
class Place:
    """A tool of a server, or all tools of one that lists its own.

    Attributes:
        name: The tool's name; with `*` at its end, the beginning of the names.
        server: Its server.
        uses_workspace: It works in the session's workspace.
        stateful: Its server keeps state with the session's connection.
    """

    name: str
    server: str
    uses_workspace: bool = False
    stateful: bool = False

    def takes(self, tool: str) -> bool:
        """A contract of this name may be meant for it."""
        mine, theirs = self.name.removesuffix("*"), tool.removesuffix("*")
        if self.name == mine and tool == theirs:
            return mine == theirs
        return (self.name != mine and theirs.startswith(mine)) or (tool != theirs and mine.startswith(theirs))


def places_of(servers: Iterable[policy_pb2.ToolServer]) -> list[Place]:
    """The tools of the servers. One of MCP that the file gives no tools for offers them as SERVER.TOOL."""
    found: list[Place] = []
    for server in servers:
        mcp = server.HasField("mcp")
        stateful = mcp and not server.mcp.stateless
        if mcp and not server.tools:
            found.append(Place(f"{server.name}.*", server.name, stateful=stateful))
        found.extend(
            Place(tool.name, server.name, uses_workspace=tool.HasField("command"), stateful=stateful)
            for tool in server.tools
        )
    return found


@dataclass(frozen=True, slots=True)
class Placed:
    """A contract of a policy, as it holds for the tools of its file.

    Attributes:
        contract: The effective contract.
        stateful: Its tools keep state with the session's connection, so they never run ahead.
        warnings: What of the contract does not hold, one sentence each.
    """

    contract: Contract
    stateful: bool = False
    warnings: tuple[str, ...] = ()


def placed(contract: Contract, places: Sequence[Place]) -> Placed:
    """What a contract is worth for the tools of its file; without servers in the file nothing is known of them."""
    if not places:
        return Placed(contract)
    tool = contract.tool
    meant = [place for place in places if place.takes(tool)]
    if not meant:
        return Placed(in_place(contract, uses_workspace=False), warnings=(_unmatched(tool, places),))
    warnings = []
    elsewhere = [place.server for place in meant if not place.uses_workspace]
    if contract.staged and elsewhere:
        warnings.append(
            f"{tool}: `staged` holds only for commands, which work in the session's workspace; on {_names(elsewhere)} "
            "it is a plain write, never run ahead and never repeated"
        )
    stateful = [place.server for place in meant if place.stateful]
    if contract.speculate and stateful:
        warnings.append(
            f"{tool}: never runs ahead on {_names(stateful)}, as an MCP server may keep state with its connection. "
            "Where no call depends on earlier ones, declare the server `stateless: true`"
        )
    return Placed(
        in_place(contract, uses_workspace=len(elsewhere) < len(meant)), len(stateful) == len(meant), tuple(warnings)
    )


def _unmatched(tool: str, places: Sequence[Place]) -> str:
    bare = tool.removesuffix("*")
    names = [place.name.removesuffix("*") + bare if place.name.endswith("*") else place.name for place in places]
    near = difflib.get_close_matches(bare, dict.fromkeys(names), n=3)
    meant = f"; did you mean {' or '.join(near)}?" if near else ""
    return f"{tool}: no server of this file offers it, so it holds only for a tool that the client brings{meant}"


def _names(servers: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(servers))
