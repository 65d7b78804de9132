"""Streams that carry one request after the other: where each waits for its next one, and how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final, TypeVar

from forerun.runtime.errors import NEVER_STARTED, STARTED_KEY, ErrorReason, Unavailable

_RETRY_SECONDS: Final = 0.1
_Request = TypeVar("_Request")


class Turns:
    """The streams of one server that wait for a request."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Task[object], None] = {}
        self._refusing = False

    async def next(self, requests: AsyncIterator[_Request]) -> _Request | None:
        """The next request of a stream; None at its end.

        Raises:
            Unavailable: the process stops. No request was taken from the stream, whatever is on its way.
        """
        if self._refusing:
            return None
        task = asyncio.current_task()
        assert task is not None
        self._waiting[task] = None
        try:
            return await anext(requests, None)
        except asyncio.CancelledError:
            if not self._refusing:
                raise
            raise Unavailable(
                ErrorReason.SHUTTING_DOWN,
                "this worker is stopping; another one takes new work",
                metadata={STARTED_KEY: NEVER_STARTED},
                retry_after_seconds=_RETRY_SECONDS,
            ) from None
        finally:
            del self._waiting[task]

    def refuse(self) -> None:
        """Ends the streams that wait now, and each other one when it would wait."""
        self._refusing = True
        for task in self._waiting:
            task.cancel()
