"""The memo: finished reads of a session that may answer identical later reads, under the same freshness rule."""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

from forerun.core import limits
from forerun.core.freshness import Recorded
from forerun.core.identity import Identity
from forerun.core.session.model import ExecutionResult


@dataclass(frozen=True, slots=True)
class Remembered:
    """One finished read.

    Attributes:
        result: What it gave.
        private: Generations of the session's resources before it started.
        shared: Generations of shared resources before it started.
        started_at: When it started; its age runs from here.
    """

    result: ExecutionResult
    private: Recorded
    shared: Mapping[str, int]
    started_at: float


class Memo:
    """Bounded in entries and bytes; the least recently used entry goes first."""

    __slots__ = ("_bytes", "_entries")

    def __init__(self) -> None:
        self._entries: OrderedDict[Identity, Remembered] = OrderedDict()
        self._bytes = 0

    def get(self, identity: Identity) -> Remembered | None:
        """The entry of an identity, whether fresh or not."""
        entry = self._entries.get(identity)
        if entry is not None:
            self._entries.move_to_end(identity)
        return entry

    def put(self, identity: Identity, entry: Remembered) -> None:
        """Remembers a read. One that is larger than the whole memo is not remembered."""
        self.drop(identity)
        size = len(entry.result.content)
        if size > limits.MEMO_BYTES_PER_SESSION:
            return
        self._entries[identity] = entry
        self._bytes += size
        while self._bytes > limits.MEMO_BYTES_PER_SESSION or len(self._entries) > limits.MEMO_ENTRIES_PER_SESSION:
            _, oldest = self._entries.popitem(last=False)
            self._bytes -= len(oldest.result.content)

    def drop(self, identity: Identity) -> None:
        """Forgets one read."""
        entry = self._entries.pop(identity, None)
        if entry is not None:
            self._bytes -= len(entry.result.content)

    def clear(self) -> None:
        """Forgets everything."""
        self._entries.clear()
        self._bytes = 0
