"""What waits for one connection of a client: in order, and bounded."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, Generic, TypeVar

from forerun.core import limits
from forerun.runtime.errors import ErrorReason, ForerunError, ResourceExhausted

_RETRY_SECONDS: Final = 0.1
Message = TypeVar("Message")


class Stream(Generic[Message]):
    """Messages for one connection.

    A client that does not take them is sent away at the bound: what waits by then is still delivered, then the error.
    Nothing is lost by that. The client connects again and asks for what it has not got, by the keys of its calls.

    Attributes:
        error: Why the stream ended early, or None.
    """

    def __init__(self) -> None:
        self.error: ForerunError | None = None
        self._items: deque[tuple[int, Iterator[Message]]] = deque()
        self._bytes = 0
        self._ended = False
        self._wake = asyncio.Event()
        self._sending = False
        self._when_sent: dict[Callable[[], None], asyncio.TimerHandle] = {}

    def put(self, messages: Iterator[Message], size_bytes: int) -> bool:
        """Takes messages that belong together, and makes them one by one when they are sent; False when it is full.

        Args:
            messages: At least one. Held back as an iterator: the chunks of a large result are not copied beforehand.
            size_bytes: Of all of them, about.
        """
        if self._ended:
            return False
        full = len(self._items) >= limits.STREAM_MESSAGES or self._bytes + size_bytes > limits.STREAM_BYTES
        if full and self._items:
            self.end(_too_slow(len(self._items), self._bytes))
            return False
        self._items.append((size_bytes, messages))
        self._bytes += size_bytes
        self._wake.set()
        return True

    def end(self, error: ForerunError | None = None) -> None:
        """Takes nothing more. A client that does not even read what is left gets nothing of it after a while."""
        if self._ended:
            return
        self._ended = True
        self._sent()
        self.error = error
        self._wake.set()
        if self._items:
            asyncio.get_running_loop().call_later(limits.STREAM_LINGER_SECONDS, self._items.clear)

    def when_sent(self, callback: Callable[[], None], at_most_seconds: float) -> None:
        """Calls back, once, when nothing waits here or is being sent: at once, or within a time."""
        if not self._items and not self._sending:
            callback()
        elif callback not in self._when_sent:
            timer = asyncio.get_running_loop().call_later(at_most_seconds, self._overdue, callback)
            self._when_sent[callback] = timer

    def _sent(self) -> None:
        waiting, self._when_sent = self._when_sent, {}
        for callback, timer in waiting.items():
            timer.cancel()
            callback()

    def _overdue(self, callback: Callable[[], None]) -> None:
        if self._when_sent.pop(callback, None) is not None:
            callback()

    async def take(self) -> Message | None:
        """The next message; None at the end. May be cancelled without losing one. To ask says that the last is sent."""
        self._sending = False
        while True:
            while self._items:
                size_bytes, messages = self._items[0]
                message = next(messages, None)
                if message is not None:
                    self._sending = True
                    return message
                self._items.popleft()
                self._bytes -= size_bytes
            self._sent()
            if self._ended:
                return None
            self._wake.clear()
            await self._wake.wait()


def _too_slow(count: int, size_bytes: int) -> ResourceExhausted:
    return ResourceExhausted(
        ErrorReason.QUEUE_FULL,
        f"the client reads too slowly: {count} messages of {size_bytes} bytes wait for it, the most that a stream "
        f"holds (STREAM_MESSAGES {limits.STREAM_MESSAGES}, STREAM_BYTES {limits.STREAM_BYTES}); connect again, open "
        "calls are answered under their keys",
        metadata={
            "limit": "STREAM_MESSAGES" if count >= limits.STREAM_MESSAGES else "STREAM_BYTES",
            "limit_messages": str(limits.STREAM_MESSAGES),
            "limit_bytes": str(limits.STREAM_BYTES),
        },
        retry_after_seconds=_RETRY_SECONDS,
    )
