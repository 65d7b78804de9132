"""Ends that were recorded before a plan was told again, in the order in which they were."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

End = TypeVar("End")


class RecordedEnds(Generic[End]):
    """Gives the ends of calls to a plan that is told again, in an order in which it decides the same again.

    What a failure stops depends on what had ended before it, and answers that are known come in any order: a small one
    at once, a large one from the store. So an end that was recorded waits for those that were recorded before it, and
    a new one waits for none.

    Args:
        order: The places of the tasks that have a recorded end, in the order of these.
    """

    def __init__(self, order: Iterable[int]) -> None:
        self._order = dict.fromkeys(order)
        self._known: dict[int, End] = {}
        self._new: deque[End] = deque()

    def add(self, place: int, end: End) -> None:
        """The end of the task at a place is there."""
        if place in self._order:
            self._known[place] = end
        else:
            self._new.append(end)

    def next(self, comes: Callable[[int], bool]) -> End | None:
        """The end that counts next; None while there is none, or an earlier one is to come.

        Args:
            comes: Whether the end of the task at a place may still come. One that was recorded and does not come (the
                plan has given its task up, or starts it later) holds up nobody.
        """
        for place in self._order:
            if place in self._known:
                del self._order[place]
                return self._known.pop(place)
            if comes(place):
                break
        return self._new.popleft() if self._new else None
