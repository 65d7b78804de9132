"""Clean-ups that a cancellation must not cut in half."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

_T = TypeVar("_T")


async def to_the_end(work: Awaitable[_T]) -> _T:
    """Awaits work to its end even while this task is being cancelled; the cancellation then goes on."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            if task.done():
                break
            cancelled = error
        except Exception:
            break
    result = task.result()
    if cancelled is not None:
        raise cancelled
    return result
