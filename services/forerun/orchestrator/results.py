"""Large results of calls that were answered before, read from the object store when somebody asks again."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final

from forerun.core.outcomes import CallStatus
from forerun.core.session import CallAnswer, Failure
from forerun.runtime.bus import Bus
from forerun.runtime.errors import ForerunError, Unavailable

_ATTEMPTS: Final = 5
_RETRY_SECONDS: Final = 0.2


class Results:
    """What journals have put into the object store.

    Args:
        bus: Where it is.
    """

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def fill(self, tenant: str, answer: CallAnswer) -> CallAnswer:
        """The answer with its content. Where it cannot be read the answer is "unknown": the call had its effect."""
        result = answer.result
        assert result is not None
        reason = ""
        for attempt in range(_ATTEMPTS):
            try:
                content = await self._bus.objects("results").get(result.digest, tenant)
                return replace(answer, result=replace(result, content=content, stored_bytes=0))
            except Unavailable as error:
                reason = error.reason
                await asyncio.sleep(_RETRY_SECONDS * 2**attempt)
            except ForerunError as error:
                reason = error.reason
                break
        failure = Failure(
            reason, "the call was answered before, and its result cannot be read from the store; do not repeat a write"
        )
        return replace(answer, status=CallStatus.OUTCOME_UNKNOWN, result=None, failure=failure)
