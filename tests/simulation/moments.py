"""Moments at which a fault does the most: somebody has begun to write, or has just written and told nobody yet."""

from __future__ import annotations

import asyncio
from collections import defaultdict


class Moments:
    """Lets faults wait for such moments. Each has a name: of a process that begins an append, or below."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[asyncio.Future[str]]] = defaultdict(list)

    async def next(self, name: str) -> str:
        """Returns at the next moment of that name: whose it is, or nothing where that is not known."""
        moment: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._waiting[name].append(moment)
        return await moment

    def tell(self, name: str, whose: str = "") -> None:
        """It is there."""
        for moment in self._waiting.pop(name, ()):
            if not moment.done():
                moment.set_result(whose)


MERGE = "merge"
"""A staged call has run and is about to take effect in its workspace."""
COMMIT = "commit"
"""What has run ahead of a staged call is about to take effect in its place."""
