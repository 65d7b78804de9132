"""Calls without the platform: what a session does while the platform cannot be reached (fail open).

The caller gives a way around the platform: functions registered as tools, or one callable for everything else. After a
bounded wait calls take it, in the order of their message. What may have started is never started again, unless the
tool's contract says that it may be repeated; it waits for the platform, which knows, until its own deadline.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Final

from forerun.client._calls import Batch, OpenCall
from forerun.client._json import encode_arguments
from forerun.client._ports import Road
from forerun.client._results import Call, Result, Served, Status
from forerun.client._tools import Tool, content_of, failed, observe, run_function
from forerun.v1 import common_pb2, session_pb2

_LOG: Final = logging.getLogger("forerun.client")

Direct = Callable[[Call], Any]
"""Runs a call around the platform. A coroutine function is awaited, any other one runs in a thread. What it returns is
the observation (text, bytes, a JSON value, or an `Answer`); what it raises is a result with `tool_error`."""

# The platform gave up by itself, before anything started: the tool may be fine.
_PLATFORMS_OWN: Final = frozenset({"BROKER_UNAVAILABLE", "PEER_UNAVAILABLE", "SHUTTING_DOWN"})


@dataclass(frozen=True, slots=True)
class Answer:
    """What a call that was run directly gave, where its media type matters.

    Attributes:
        content: The tool's answer, byte for byte.
        media_type: Its media type.
        tool_error: The tool itself reports a failure.
    """

    content: bytes
    media_type: str = "application/json"
    tool_error: bool = False


class Bypass:
    """The way around the platform, of one session.

    Args:
        direct: For tools that are not functions of the program; None where there is no way to those.
        tools: Functions of the program, by name.
        after_seconds: How long an outage may last before calls take this way.
        reads: Whether a tool only reads, so that it may run again after it may have started.
        changed: Told when calls begin and cease to take this way.

    Attributes:
        active: Calls take this way now.
        calls: How many have taken it.
    """

    def __init__(
        self,
        direct: Direct | None,
        tools: Mapping[str, Tool],
        *,
        after_seconds: float,
        reads: Callable[[str], bool],
        changed: Callable[[bool], None],
    ) -> None:
        self.active = False
        self.calls = 0
        self._direct = direct
        self._tools = tools
        self._after_seconds = after_seconds
        self._reads = reads
        self._changed = changed
        self._road: Road | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._back = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        # Starts and ends of what may have written, and how many of them the platform has been told of.
        self._written = self._telling = self._told = 0
        self._unsettled = False

    @property
    def enabled(self) -> bool:
        """There is a way around the platform, for some tool at least."""
        return self._direct is not None or bool(self._tools)

    # ------------------------------------------------------------ the platform comes and goes

    def begin(self, road: Road) -> None:
        """The session is about to connect."""
        self._road = road
        self.down()

    def down(self) -> None:
        """The platform cannot be reached from now on."""
        if self.enabled and not self.active and self._timer is None and not self._closed:
            self._timer = asyncio.get_running_loop().call_later(self._after_seconds, self.activate)

    def wrote(self) -> session_pb2.DirectWrites.ValueType:
        """What the platform has to be told, in its next greeting, of writes past it."""
        self._telling = self._written
        if self._written == self._told:
            return session_pb2.DIRECT_WRITES_UNSPECIFIED
        return session_pb2.DIRECT_WRITES_UNSETTLED if self._unsettled else session_pb2.DIRECT_WRITES_ENDED

    def up(self) -> None:
        """The platform has taken the greeting."""
        self._told = self._telling
        self._stop_timer()
        if self.active:
            self.active = False
            self._back.set()
            self._changed(False)

    def activate(self) -> None:
        """Calls take this way from now on, those that wait first."""
        self._stop_timer()
        if self._closed or self.active or not self.enabled:
            return
        self.active = True
        self._back.clear()
        self._changed(True)
        for batch in self._road.batches if self._road is not None else ():
            self.ask(batch)

    async def close(self) -> None:
        """Stops what runs."""
        self._closed = True
        self._stop_timer()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self.active = False

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # ------------------------------------------------------------ calls

    def ask(self, batch: Batch) -> None:
        """Runs the calls of a message in their order, as without any platform."""
        if not batch.direct:
            self._spawn(batch, self._run(batch))

    def takes(self, one: OpenCall, result: Result, batch: Batch) -> bool:
        """Takes a call that the platform certainly did not start, for a reason of its own.

        Only the last one of its message: what comes after it would otherwise have run before it.
        """
        if result.status is not Status.UNAVAILABLE or result.failure is None or batch.direct or self._closed:
            return False
        if result.failure.reason not in _PLATFORMS_OWN or one is not batch.calls[-1] or not self._can(one):
            return False
        one.written = False
        self._spawn(batch, self._call(one))
        return True

    def _spawn(self, batch: Batch, work: Coroutine[Any, Any, None]) -> None:
        batch.direct = True
        task = asyncio.get_running_loop().create_task(work, name=f"forerun direct {batch.turn}")
        self._tasks.add(task)

        def ended(_: object) -> None:
            batch.direct = False
            self._tasks.discard(task)
            if self._road is not None and not self._closed and batch.open:
                self._road.ask_again(batch)

        task.add_done_callback(ended)

    def _can(self, one: OpenCall) -> bool:
        return self._direct is not None or one.call.name in self._tools

    async def _run(self, batch: Batch) -> None:
        for one in batch.calls:
            while self.active and not one.answer.done() and not self._may(one):
                # Only the platform can tell what became of it. What comes after it has to wait, too.
                await self._until_back_or_answered(one)
            if not self.active:
                return
            if not one.answer.done():
                await self._call(one)

    def _may(self, one: OpenCall) -> bool:
        return self._can(one) and (not one.written or self._reads(one.call.name))

    async def _until_back_or_answered(self, one: OpenCall) -> None:
        back = asyncio.ensure_future(self._back.wait())
        try:
            await asyncio.wait((back, one.answer), return_when=asyncio.FIRST_COMPLETED)
        finally:
            back.cancel()

    async def _call(self, one: OpenCall) -> None:
        one.direct, one.reads = True, self._reads(one.call.name)
        self._written += not one.reads
        running = asyncio.ensure_future(self._observed(one.call))
        try:
            # An answer that comes first is an end from outside: no time is left, or the call was taken back.
            await asyncio.wait((running, one.answer), return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not running.done() and not one.reads:
                self._unsettled = True  # a thread goes on, and a server may, whatever is cancelled here
            running.cancel()
            one.direct = False
            self._written += not one.reads
            if not self.active and self._written != self._told and self._road is not None:
                # The platform is there and may hold what was read before this write. It hears of it before the agent
                # hears that the write is done.
                self._road.reconnect()
        if not one.answer.done():
            self.calls += 1
            one.answer.set_result(_result(one, running.result()))

    async def _observed(self, call: Call) -> common_pb2.Observation:
        tool = self._tools.get(call.name)
        if tool is not None:
            return await observe(tool, encode_arguments(call.arguments))
        assert self._direct is not None
        try:
            value = await run_function(self._direct, call)
            if isinstance(value, Answer):
                return common_pb2.Observation(
                    content=value.content, media_type=value.media_type, tool_error=value.tool_error
                )
            content, media_type = content_of(value)
        except Exception as error:
            _LOG.info("the direct call of %s raised %s", call.name, type(error).__name__)
            return failed(type(error).__name__, str(error))
        return common_pb2.Observation(content=content, media_type=media_type)


def _result(one: OpenCall, observation: common_pb2.Observation) -> Result:
    return Result(
        call=one.call,
        turn=one.turn,
        index=one.message.index,
        status=Status.OK,
        content=observation.content,
        media_type=observation.media_type,
        tool_error=observation.tool_error,
        served=Served.FALLBACK,
    )
