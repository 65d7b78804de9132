"""What a session does with what the platform says to it, and what it knows from that."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

from forerun.client._calls import Batch, OpenCall
from forerun.client._direct import Bypass
from forerun.client._errors import ForerunClientError
from forerun.client._ports import Platform
from forerun.client._results import Mode, Result, mode_of, only_reads
from forerun.client._tools import Invocations, Tool
from forerun.v1 import session_pb2

_LOG: Final = logging.getLogger("forerun.client")
# A platform that had heard nothing for too long ends the session.
_FORGOTTEN: Final = frozenset({"SESSION_ENDED", "SESSION_IDLE", "SESSION_NOT_FOUND"})


class SessionListener:
    """Hears what the connection of a session hears, apart from answers to calls.

    Args:
        platform: The client of the session.
        session: Its id.
        agent: Its agent.
        tools: Functions of the program, by name.
        mode: What was asked for, until the platform says what is in force.
        direct: Told when calls begin and cease to go around the platform.
        answer: Sends the result of a function of the program.

    Attributes:
        mode: The mode in force.
        held_out: The hold-out took the session.
        policy: Name and version of the policy in force.
        turn: Number of the last message.
        own_seconds: Time limits of functions of the program, as the platform says.
        bypass: The way around the platform.
    """

    def __init__(
        self,
        platform: Platform,
        *,
        session: str,
        agent: str,
        tools: Mapping[str, Tool],
        mode: Mode | None,
        direct: Callable[[bool], None],
        answer: Callable[[session_pb2.ClientToolResult], None],
    ) -> None:
        self.mode = mode
        self.held_out = False
        self.policy = ""
        self.turn = 0
        self._platform = platform
        self._session = session
        self._agent = agent
        self._invocations = Invocations(tools, answer)
        self.own_seconds: Mapping[str, float] = {}
        self._own_reads: frozenset[str] = frozenset()
        self._learning: asyncio.Task[None] | None = None
        self.bypass = Bypass(
            platform.direct, tools, after_seconds=platform.direct_after_seconds, reads=self.reads, changed=direct
        )

    def reads(self, tool: str) -> bool:
        """Whether a tool only reads, as far as the platform has said."""
        return tool in self._own_reads or self._platform.reads(self._agent, tool)

    async def limits(self) -> Mapping[str, float]:
        """The tools' own time limits in seconds; of those in this program at least, where the platform is away."""
        try:
            return {**self.own_seconds, **await self._platform.timeouts(self._agent)}
        except ForerunClientError:
            return self.own_seconds

    async def close(self) -> None:
        """Stops what the platform has asked for."""
        if self._learning is not None:
            self._learning.cancel()
        await self._invocations.close()

    # ------------------------------------------------------------ called by the connection

    def welcomed(self, message: session_pb2.Welcome) -> None:
        """The session is open, or open again."""
        self.mode = mode_of(message.mode)
        self.held_out = message.held_out
        self.policy = message.policy
        self.turn = max(self.turn, message.last_turn)
        self.own_seconds = {tool.name: tool.contract.timeout_seconds for tool in message.client_tools}
        self._own_reads = frozenset(tool.name for tool in message.client_tools if only_reads(tool.contract))
        self.bypass.up()
        if self.bypass.enabled and self._learning is None:
            learn = self._platform.learn(self._agent)
            self._learning = asyncio.get_running_loop().create_task(learn, name="tool contracts")

    def invoked(self, message: session_pb2.ClientToolInvocation) -> None:
        """A tool of this program is asked for."""
        self._invocations.start(message)

    def invocation_cancelled(self, invocation: str) -> None:
        """It is not wanted any more."""
        self._invocations.cancel(invocation)

    def disconnected(self) -> None:
        """The connection broke, and the platform has given up on what it had asked for over it."""
        self._invocations.cancel_all()
        self.bypass.down()

    def direct_writes(self) -> session_pb2.DirectWrites.ValueType:
        """What was written past the platform since it was last told."""
        return self.bypass.wrote()

    def takes(self, one: OpenCall, result: Result, batch: Batch) -> bool:
        """Takes a call for which the platform could do nothing."""
        return self.bypass.takes(one, result, batch)

    def goes_on(self, error: ForerunClientError) -> bool:
        """The platform has ended the session, perhaps because it had not heard of it."""
        if error.reason not in _FORGOTTEN or not self.bypass.active:
            return False
        _LOG.warning(
            "the platform has ended session %s meanwhile (%s); its further calls run directly, a new session is "
            "connected again",
            self._session,
            error.reason,
        )
        return True
