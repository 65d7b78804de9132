"""How a session asks for the calls of a message, and what ends those that the platform does not answer in time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from forerun.client._calls import DEADLINE_MAX_SECONDS, Batch, OpenCall, asked_calls
from forerun.client._ports import Road
from forerun.client._results import Call, Failure
from forerun.v1 import event_pb2

if TYPE_CHECKING:
    from forerun.client._connection import Connection
    from forerun.client._direct import Bypass
    from forerun.client._listener import SessionListener

DEADLINE_DEFAULT_SECONDS: Final = 60.0
"""The platform's, where a tool's contract has none (compared by a contract test)."""
MARGIN_SECONDS: Final = 5.0
"""After a call's own deadline, for the answer that says so."""


def open_batch(
    calls: Sequence[Call], messages: Sequence[event_pb2.AskedCall], turn: int, timeout_seconds: float | None
) -> Batch:
    """The calls of a message, each with its form on the wire and the future that gets its result."""
    loop = asyncio.get_running_loop()
    opened = [
        OpenCall(call, turn, message, loop.create_future()) for call, message in zip(calls, messages, strict=True)
    ]
    return Batch(turn, opened, timeout_seconds, loop.time())


class Deadlines:
    """Ends batches whose time is over without a word from the platform.

    Args:
        road: The way to the platform.
        limits: The tools' own time limits in seconds, by name, asked when a call takes longer than most.
    """

    def __init__(self, road: Road, limits: Callable[[], Awaitable[Mapping[str, float]]]) -> None:
        self._road = road
        self._limits = limits
        self._extending: set[asyncio.Task[None]] = set()

    def watch(self, batch: Batch) -> None:
        """Begins to wait for the end of a batch."""
        bound = DEADLINE_DEFAULT_SECONDS if batch.timeout_seconds is None else batch.timeout_seconds
        batch.timer = asyncio.get_running_loop().call_at(batch.asked_at + bound + MARGIN_SECONDS, self._late, batch)

    def close(self) -> None:
        """Asks for no limits any more."""
        for task in self._extending:
            task.cancel()

    def _late(self, batch: Batch) -> None:
        if batch.timeout_seconds is not None:
            self.give_up(batch)
            return
        task = asyncio.get_running_loop().create_task(self._extend(batch), name="tool time limits")
        self._extending.add(task)
        task.add_done_callback(self._extending.discard)

    async def _extend(self, batch: Batch) -> None:
        """Without a deadline of the caller the tools' own limits count: some take longer than most.

        They count from the last answer: a call that waits for others of its message has not used any of its time.
        """
        limits = await self._limits()
        loop = asyncio.get_running_loop()
        longest = max((limits.get(one.call.name, 0.0) for one in batch.open), default=0.0)
        due = batch.progressed_at + min(longest, DEADLINE_MAX_SECONDS) + MARGIN_SECONDS
        if due <= loop.time():
            self.give_up(batch)
        else:
            batch.timer = loop.call_at(due, self._late, batch)

    def give_up(self, batch: Batch) -> None:
        """Nobody waits for the open calls of a batch any more."""
        seconds = asyncio.get_running_loop().time() - batch.asked_at
        self._road.give_up(
            batch, Failure("DEADLINE_EXCEEDED", f"the platform gave no answer within {seconds:.0f} s of the ask")
        )


class Asking:
    """The calls of a session on their way: over its connection, or around the platform while that is away.

    Args:
        connection: Of the session.
        bypass: The way around the platform.
        listener: Knows what the platform has said of tools.
    """

    def __init__(self, connection: Connection, bypass: Bypass, listener: SessionListener) -> None:
        self._connection = connection
        self._bypass = bypass
        self._listener = listener
        self._deadlines = Deadlines(connection, listener.limits)

    def open(self, batch: Batch) -> None:
        """Asks for the calls of a batch; each gets its end."""
        self._deadlines.watch(batch)
        self._connection.ask(batch)
        if self._bypass.active:
            self._bypass.ask(batch)

    def take_back(self, batch: Batch) -> None:
        """Nobody wants the open calls of a batch any more."""
        for one in batch.open:
            self._connection.take_back(one)

    def give_up(self, batch: Batch) -> None:
        """Nobody waits for the open calls of a batch any more."""
        self._deadlines.give_up(batch)

    def close(self) -> None:
        """Ends with the session."""
        self._deadlines.close()

    # ------------------------------------------------------------ tasks of a plan that runs in the client

    @property
    def direct(self) -> bool:
        """Calls run around the platform now."""
        return self._bypass.active

    def reads(self, tool: str) -> bool:
        """Whether a tool only reads, as far as the platform has said."""
        return self._listener.reads(tool)

    def ask_task(
        self, turn: int, index: int, call: Call, *, timeout_seconds: float | None, perhaps_begun: bool
    ) -> Batch:
        """Asks for the call of one task.

        Args:
            turn: Message of the plan.
            index: Place of the task in it.
            call: With its references resolved.
            timeout_seconds: Longest execution; None: the tool's own limit.
            perhaps_begun: The platform may have begun it: only it knows, and it is not run around it.

        Raises:
            ForerunClientError: the session takes nothing any more, or the arguments are too large.
        """
        self._connection.check()
        messages = asked_calls([call], timeout_seconds)
        messages[0].index = index
        batch = open_batch([call], messages, turn, timeout_seconds)
        batch.calls[0].written = perhaps_begun
        self.open(batch)
        return batch

    def take_back_task(self, batch: Batch) -> None:
        """Takes a task back. While the platform is away, nobody is waited for."""
        if not self._bypass.active:
            self.take_back(batch)
            return
        for one in batch.open:
            one.withdraw(Failure("CALL_CANCELLED", "the task was taken back while the platform was away"))
