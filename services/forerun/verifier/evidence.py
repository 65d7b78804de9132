"""Whether something may have been written between a committed hit and its audit. Pure.

The journal says which calls a session asked for and when each was answered. A call that can write, and that was not
answered before the hit was committed, may have changed what the hit had read: then two different results prove nothing.
A call that was answered before does not matter, because the commit compared the generations after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from forerun.core.canonical import CanonicalError, parse_strict
from forerun.core.contracts import Contract, effective, write_templates
from forerun.core.shell import DEFAULT_RULES
from forerun.v1 import event_pb2

CallId = tuple[int, int]
"""Turn and index of a call."""

SHARED_PREFIX = "shared/"
"""What a mark begins with in a ledger line whose generation lives in the key-value store."""


@dataclass(slots=True)
class Journal:
    """Reads a session's journal from its begin and tells what may have written since a hit.

    Attributes:
        audited: The call that the hit answered.
        hit_at_seconds: Epoch seconds of the commit.
        contracts: Of the session's tools; a call of another one can write.
        in_workspace: The audited call worked in the session's workspace, which ends with the session.
    """

    audited: CallId
    hit_at_seconds: float
    contracts: Mapping[str, Contract]
    in_workspace: bool
    _open: dict[CallId, str] = field(default_factory=dict)
    _ended: bool = False

    def take(self, events: Iterable[event_pb2.SessionEvent]) -> None:
        """Reads the next events."""
        for event in events:
            kind = event.WhichOneof("event")
            if kind == "calls_asked":
                asked = event.calls_asked
                for call in asked.calls:
                    if (asked.turn, call.index) != self.audited and self._can_write(call):
                        self._open[asked.turn, call.index] = call.action.tool
            elif kind == "call_finished" and event.at_seconds < self.hit_at_seconds:
                self._open.pop((event.call_finished.call.turn, event.call_finished.call.index), None)
            elif kind == "closed":
                self._ended = True

    @property
    def written(self) -> str:
        """What may have written since the hit, for the ledger; empty where nothing did."""
        if self._open:
            return f"{next(iter(self._open.values()))} may have written since"
        return "the session ended, and with it its workspace" if self._ended and self.in_workspace else ""

    def _can_write(self, call: event_pb2.AskedCall) -> bool:
        contract = self.contracts.get(call.action.tool)
        if contract is None:
            return True
        try:
            arguments = parse_strict(call.action.arguments or b"{}")
        except CanonicalError:
            return True
        return bool(write_templates(effective(contract, arguments, DEFAULT_RULES)))


def shared_marks(generations: Mapping[str, int]) -> dict[str, int]:
    """The generations of a ledger line that live in the key-value store, by their mark there."""
    return {
        mark.removeprefix(SHARED_PREFIX): generation
        for mark, generation in generations.items()
        if mark.startswith(SHARED_PREFIX)
    }
