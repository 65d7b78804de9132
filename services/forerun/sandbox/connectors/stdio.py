"""Model Context Protocol servers over stdio, inside a sandbox.

The server finds the system's programs, an own /tmp, and at /workspace, where it starts, the directory that the policy
names as `workspace_seed`, read only. It has no network. It runs until its connection is closed; what it may use at once
is bounded as for a command, and a server that wants more is ended.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from forerun.core import limits
from forerun.runtime.errors import ErrorReason, FailedPrecondition
from forerun.sandbox.completion import to_the_end
from forerun.sandbox.connectors.port import Ended, ToolFault, rejected
from forerun.sandbox.isolation.launch import Bind, Child, Launch, SetupFailed, read_some, write_all
from forerun.sandbox.isolation.levels import Isolation, Ladder
from forerun.sandbox.isolation.limits import CommandLimits
from forerun.sandbox.isolation.rootfs import base_environment
from forerun.sandbox.tools import Server
from forerun.sandbox.workspaces.disk import remove

_LOOK_SECONDS: Final = 0.2
_LEAVE_SECONDS: Final = 2.0
# A server has no deadline of its own; its calls have.
_CPU_SECONDS: Final = 30 * 24 * 3600.0
# One message is one line. An answer of the largest size may be escaped.
_MOST_LINE_BYTES: Final = 2 * limits.RESULT_BYTES


class Incoming:
    """What a server says, one message for each line."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self._held = bytearray()
        self._searched = 0

    def __aiter__(self) -> Incoming:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        while (end := self._held.find(b"\n", self._searched)) < 0:
            self._searched = len(self._held)
            chunk = await read_some(self._child.stdout)
            if not chunk or len(self._held) > _MOST_LINE_BYTES:
                self._child.kill()
                raise StopAsyncIteration
            self._held += chunk
        line = bytes(self._held[:end])
        del self._held[: end + 1]
        self._searched = 0
        try:
            return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
        except ValueError as error:
            return error

    async def receive(self) -> SessionMessage | Exception:
        """The next message."""
        return await anext(self)

    async def aclose(self) -> None:
        """The descriptor belongs to the process, which is closed as a whole."""

    async def __aenter__(self) -> Incoming:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class Outgoing:
    """What a server is told."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self._turn = asyncio.Lock()

    async def send(self, item: SessionMessage, /) -> None:
        """Sends a message. A server that does not listen any more is ended, which its reader sees."""
        line = item.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
        async with self._turn:
            try:
                await write_all(self._child.stdin, line)
            except OSError:
                self._child.kill()
            except asyncio.CancelledError:
                # Half a line would spoil every later message.
                self._child.kill()
                raise

    async def aclose(self) -> None:
        """As for `Incoming`."""

    async def __aenter__(self) -> Outgoing:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class StdioSandbox:
    """Starts stdio servers at the isolation that they ask for.

    Args:
        ladder: Isolation of this machine.
        scratch_root: Directory for the servers' /tmp.
    """

    def __init__(self, ladder: Ladder, scratch_root: str) -> None:
        self._ladder = ladder
        self._scratch_root = scratch_root

    @asynccontextmanager
    async def open(self, server: Server, environment: dict[str, str]) -> AsyncIterator[tuple[Incoming, Outgoing]]:
        """A running server; at the end nothing of it is left.

        Raises:
            ToolFault: This machine cannot isolate it as it asks, or the isolation did not come up.
        """
        mcp = server.mcp
        assert mcp is not None
        try:
            isolation = self._ladder.choose(server.min_isolation)
        except FailedPrecondition as error:
            raise rejected(error.reason, error.message, server=server.name) from error
        bounds = CommandLimits()
        scratch = tempfile.mkdtemp(prefix="mcp-", dir=self._scratch_root)
        launch = Launch(
            argv=tuple(mcp.command), environment=base_environment() | environment,
            workspace=Bind(server.workspace_seed, read_only=True) if server.workspace_seed else None,
            scratch=scratch, stdin=None, talks=True, file_bytes=bounds.disk_bytes, cpu_seconds=_CPU_SECONDS,
            pids=bounds.pids, memory_bytes=bounds.memory_bytes,
        )  # fmt: skip
        try:
            child = await _started(isolation, launch, server)
            attending = (asyncio.ensure_future(_drain(child)), asyncio.ensure_future(_guard(child, bounds)))
            try:
                yield Incoming(child), Outgoing(child)
            finally:
                await to_the_end(_end(child, attending))
        finally:
            await to_the_end(asyncio.to_thread(remove, Path(scratch)))


async def _started(isolation: Isolation, launch: Launch, server: Server) -> Child:
    try:
        return await isolation.start(launch)
    except SetupFailed as error:
        raise ToolFault(
            Ended.UNAVAILABLE, ErrorReason.TOOL_FAILED,
            f"the sandbox of the MCP server {server.name} did not come up: {error}",
            metadata={"server": server.name}, not_started=True,
        ) from error  # fmt: skip


async def _drain(child: Child) -> None:
    """What it writes to standard error is for nobody, and must not block it."""
    while await read_some(child.stderr):
        pass


async def _guard(child: Child, bounds: CommandLimits) -> None:
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        usage = await child.usage(most=bounds.pids)
        if child.kernel_limit() or usage.tasks > bounds.pids or usage.memory_bytes > bounds.memory_bytes:
            return child.kill()


async def _end(child: Child, attending: Sequence[asyncio.Future[None]]) -> None:
    """Says goodbye by closing its standard input, as the protocol wants it, and does not wait long."""
    child.hang_up()
    with suppress(TimeoutError):
        async with asyncio.timeout(_LEAVE_SECONDS):
            await child.ended()
    for task in attending:
        task.cancel()
    await asyncio.gather(*attending, return_exceptions=True)
    await child.close()
