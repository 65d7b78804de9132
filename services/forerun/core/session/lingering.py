"""Writes that ended without an answer of their tool: they may take effect at any later time of the session."""

from collections.abc import Iterable

from forerun.core import limits
from forerun.core.resources import conflicts
from forerun.core.session.model import CallId


class Lingering:
    """What such calls write, of the session's own resources. Above the bound it is everything, for good."""

    __slots__ = ("_everything", "_writes")

    def __init__(self) -> None:
        self._writes: dict[CallId, tuple[str, ...]] = {}
        self._everything = False

    def add(self, call: CallId, writes: Iterable[str]) -> None:
        """A call ended, and its write may not have."""
        keys = tuple(writes)
        if self._everything or not keys:
            return
        self._writes[call] = keys
        if len(self._writes) > limits.LINGERING_WRITES:
            self._everything = True
            self._writes.clear()

    def settled(self, call: CallId) -> None:
        """The same write was done again, and its end is certain: nothing of the earlier ones can follow."""
        self._writes.pop(call, None)

    def touches(self, keys: Iterable[str]) -> bool:
        """Whether what depends on these keys may still be changed by such a write."""
        found = tuple(keys)
        if self._everything:
            return bool(found)
        return any(conflicts(found, writes) for writes in self._writes.values())
