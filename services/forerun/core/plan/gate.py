"""Lets tasks start in call order, within the cap of the plan and the cap of each tool."""

from __future__ import annotations

import heapq
from collections import Counter


class Gate:
    """Tasks that may start as far as their inputs are concerned, and those that run.

    A tool whose cap is reached holds up nobody else, and costs nothing until one of its executions ends.
    """

    __slots__ = ("_heads", "_limit", "_queues", "_running", "_tool_limits", "in_flight")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._queues: dict[str, list[int]] = {}  # heaps of indexes, by tool
        self._heads: list[
            tuple[int, str]
        ] = []  # a heap: the first of each tool that is below its cap, and outdated ones
        self._running: Counter[str] = Counter()
        self._tool_limits: dict[str, int] = {}
        self.in_flight = 0

    def offer(self, index: int, tool: str, tool_limit: int) -> None:
        """A task may start."""
        self._tool_limits[tool] = tool_limit
        queue = self._queues.setdefault(tool, [])
        heapq.heappush(queue, index)
        if queue[0] == index:
            self._show(tool)

    def withdraw(self, index: int, tool: str) -> None:
        """A task that was offered will not start."""
        queue = self._queues[tool]
        queue.remove(index)
        heapq.heapify(queue)
        self._show(tool)

    def next(self) -> int | None:
        """The first task in call order that may start now, or None. It counts as in flight."""
        while self._heads and self.in_flight < self._limit:
            index, tool = heapq.heappop(self._heads)
            queue = self._queues[tool]
            if not queue or queue[0] != index or self._running[tool] >= self._tool_limits[tool]:
                continue
            heapq.heappop(queue)
            self._running[tool] += 1
            self.in_flight += 1
            self._show(tool)
            return index
        return None

    def enter(self, tool: str) -> None:
        """A task is in flight that was started before, by the same plan when it was told for the first time."""
        self._running[tool] += 1
        self.in_flight += 1

    def ended(self, tool: str) -> None:
        """A task that was in flight has ended."""
        self._running[tool] -= 1
        self.in_flight -= 1
        self._show(tool)

    def clear(self) -> None:
        """Nothing that was offered will start."""
        self._queues.clear()
        self._heads.clear()

    def _show(self, tool: str) -> None:
        queue = self._queues.get(tool)
        if queue and self._running[tool] < self._tool_limits[tool]:
            heapq.heappush(self._heads, (queue[0], tool))
