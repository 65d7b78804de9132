"""The tools that this worker serves now: from its definitions, and from the MCP servers among them."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

from mcp_types import Tool as ListedTool

from forerun.runtime.errors import ErrorReason, ForerunError, NotFound, Unavailable
from forerun.runtime.tasks import TaskScope
from forerun.sandbox.connectors.port import ToolFault
from forerun.sandbox.definitions import Definition, McpTool
from forerun.sandbox.tools import Hints, McpEndpoint, Server, Tool, tool

_LOG: Final = logging.getLogger(__name__)

_FIRST_RETRY_SECONDS: Final = 1.0
_LAST_RETRY_SECONDS: Final = 30.0
# Servers may change their tools without a word; a new listing costs one request.
_LIST_AGAIN_SECONDS: Final = 300.0


class Lists(Protocol):
    """Lists the tools of an MCP server."""

    async def list_tools(self, server: Server) -> list[ListedTool]:
        """What a server offers."""
        ...


class Registry:
    """Knows every tool by name.

    Args:
        lists: How MCP servers are asked.
        tasks: Owns the listing in the background.
        changed: Called after a change.
    """

    def __init__(self, lists: Lists, tasks: TaskScope, changed: Callable[[], None]) -> None:
        self._lists = lists
        self._tasks = tasks
        self._changed = changed
        self._fixed: dict[str, Tool] = {}
        self._listed: dict[str, dict[str, Tool]] = {}
        self._definitions: tuple[Definition, ...] = ()
        self._listing: list[asyncio.Task[None]] = []
        self._first: dict[str, asyncio.Event] = {}
        self.generation = 0

    def define(self, definitions: Sequence[Definition]) -> None:
        """Takes other definitions; MCP servers are listed in the background."""
        if tuple(definitions) == self._definitions:
            return
        self._definitions = tuple(definitions)
        for task in self._listing:
            task.cancel()
        self._fixed = {one.name: one for definition in definitions for one in definition.tools}
        remote = [definition for definition in definitions if definition.server.mcp is not None]
        self._listed = {d.server.name: self._listed.get(d.server.name, {}) for d in remote}
        self._first = {d.server.name: asyncio.Event() for d in remote}
        self._listing = [
            self._tasks.keep(partial(self._keep_listed, one), name=f"list-{one.server.name}") for one in remote
        ]
        self._announce()

    async def listed(self, timeout_seconds: float) -> None:
        """Waits until every MCP server was asked once, or the time is over."""
        waits = [event.wait() for event in self._first.values()]
        if waits:
            try:
                async with asyncio.timeout(timeout_seconds):
                    await asyncio.gather(*waits)
            except TimeoutError:
                _LOG.warning("MCP servers have not listed their tools yet")

    def tools(self) -> list[Tool]:
        """All tools, by name."""
        found = dict(self._fixed)
        for tools in self._listed.values():
            for name, listed in tools.items():
                found.setdefault(name, listed)
        return [found[name] for name in sorted(found)]

    def find(self, name: str) -> Tool:
        """A tool by its name.

        Raises:
            NotFound: There is none.
            Unavailable: There may be one: an MCP server has not listed its tools yet.
        """
        if name in self._fixed:
            return self._fixed[name]
        for tools in self._listed.values():
            if name in tools:
                return tools[name]
        waiting = [server for server, event in self._first.items() if not event.is_set()]
        if waiting:
            raise Unavailable(
                ErrorReason.TOOL_FAILED, f"MCP servers have not listed their tools yet: {', '.join(waiting)}",
                retry_after_seconds=_FIRST_RETRY_SECONDS,
            )  # fmt: skip
        raise NotFound(
            ErrorReason.TOOL_NOT_FOUND, "this worker serves no tool of this name", metadata={"tool": name[:200]}
        )

    async def _keep_listed(self, definition: Definition) -> None:
        delay = _FIRST_RETRY_SECONDS
        name = definition.server.name
        while True:
            try:
                found = _tools(definition, await self._lists.list_tools(definition.server))
            except (ToolFault, ForerunError) as error:
                _LOG.warning(
                    "an MCP server does not list its tools", extra={"fields": {"mcp.server": name, "error": str(error)}}
                )
                # Asked and found silent: what it offered before stays, and nobody waits for it any longer.
                self._first[name].set()
                await asyncio.sleep(delay)
                delay = min(delay * 2, _LAST_RETRY_SECONDS)
                continue
            if found != self._listed[name]:
                self._listed[name] = found
                self._announce()
            self._first[name].set()
            delay = _FIRST_RETRY_SECONDS
            await asyncio.sleep(_LIST_AGAIN_SECONDS)

    def _announce(self) -> None:
        self.generation += 1
        self._changed()


def _tools(definition: Definition, listed: Sequence[ListedTool]) -> dict[str, Tool]:
    offered = {one.name: one for one in listed}
    wanted = definition.listed or tuple(
        McpTool(f"{definition.server.name}.{name}", name, "", "", "") for name in offered
    )
    found: dict[str, Tool] = {}
    for want in wanted:
        offer = offered.get(want.remote_name)
        if offer is None:
            _LOG.warning(
                "an MCP server does not offer a tool that the policy names", extra={"fields": {"tool": want.name}}
            )
            continue
        try:
            found[want.name] = tool(
                want.name, definition.server, McpEndpoint(want.remote_name),
                description=want.description or offer.description or "",
                input_schema=want.input_schema or json.dumps(offer.input_schema, ensure_ascii=False),
                endpoint_version=want.endpoint_version, hints=_hints(offer),
            )  # fmt: skip
        except ForerunError as error:
            _LOG.warning(
                "a tool of an MCP server is left out", extra={"fields": {"tool": want.name, "error": error.message}}
            )
    return found


def _hints(offer: ListedTool) -> Hints:
    said = offer.annotations
    if said is None:
        return Hints()
    return Hints(said.read_only_hint, said.destructive_hint, said.idempotent_hint, said.open_world_hint)
