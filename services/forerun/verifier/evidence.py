"""What an audit proves. Pure.

Two executions with different results prove a wrong hit only if nothing was written in between. The journal says which
calls a session asked for and when each was answered: a call that can write, and that was not answered before the hit
was committed, may have changed what the hit had read. One that was answered before does not matter, because the commit
compared the generations after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from forerun.core.canonical import CanonicalError, parse_strict
from forerun.core.contracts import Contract, Effect, effective, staleness_seconds, write_templates
from forerun.core.shell import DEFAULT_RULES
from forerun.v1 import event_pb2

CallId = tuple[int, int]
"""Turn and index of a call."""

SHARED_PREFIX = "shared/"
"""What a mark of a ledger line begins with if its generation lives in the key-value store."""


class AuditResult(StrEnum):
    """What an audit found."""

    SAME = "same"
    DIFFERENT = "different"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, slots=True)
class Finding:
    """The end of an audit.

    Attributes:
        result: What was found.
        reason: Why it is inconclusive; else empty.
        digest: Digest of the second execution; empty where it gave none.
        seconds: Wall seconds of the second execution.
        executed: There was a second execution.
    """

    result: AuditResult
    reason: str = ""
    digest: str = ""
    seconds: float = 0.0
    executed: bool = False


def auditable(contract: Contract) -> bool:
    """Whether a call may be executed again to compare: what writes would find its own effect."""
    return contract.effect is not Effect.WRITE and not contract.consuming


def unprovable(contract: Contract) -> str:
    """Why a difference would prove nothing for this tool; empty where it would prove something."""
    if staleness_seconds(contract) is None:
        return ""
    return "another result is within the declared staleness: what it reads is also written elsewhere"


def shared_marks(generations: Mapping[str, int]) -> dict[str, int]:
    """The generations of a ledger line that live in the key-value store, by their mark there, sorted.

    A message keeps no order of them, and what is looked at first decides the reason that is given.
    """
    return {
        mark.removeprefix(SHARED_PREFIX): generation
        for mark, generation in sorted(generations.items())
        if mark.startswith(SHARED_PREFIX)
    }


class Contracts:
    """The contracts of a session's tools; `prefix*` covers what has none of its own.

    Args:
        contracts: As the policy says.
    """

    def __init__(self, contracts: Iterable[Contract]) -> None:
        self._exact: dict[str, Contract] = {}
        prefixes: dict[str, Contract] = {}
        for contract in contracts:
            if contract.tool.endswith("*"):
                prefixes[contract.tool[:-1]] = contract
            else:
                self._exact[contract.tool] = contract
        self._prefixes: Sequence[tuple[str, Contract]] = sorted(prefixes.items(), key=lambda item: -len(item[0]))

    def can_write(self, tool: str, arguments: bytes) -> bool:
        """Whether a call can write anything; a tool without a contract can."""
        contract = self._exact.get(tool)
        if contract is None:
            contract = next((contract for prefix, contract in self._prefixes if tool.startswith(prefix)), None)
        if contract is None:
            return True
        try:
            value = parse_strict(arguments or b"{}")
        except CanonicalError:
            return True
        return bool(write_templates(effective(contract, value, DEFAULT_RULES)))


@dataclass(slots=True)
class Journal:
    """Reads a session's journal from its beginning and tells what may have written since a hit.

    Attributes:
        audited: The call that the hit answered.
        hit_at_seconds: Epoch seconds of the commit.
        contracts: Of the session's tools.
        in_workspace: The audited call worked in the session's workspace, which ends with the session.
    """

    audited: CallId
    hit_at_seconds: float
    contracts: Contracts
    in_workspace: bool
    _open: dict[CallId, str] = field(default_factory=dict)
    _events: int = 0
    _ended: bool = False

    def take(self, event: event_pb2.SessionEvent) -> None:
        """Reads the next event."""
        self._events += 1
        kind = event.WhichOneof("event")
        if kind == "calls_asked":
            asked = event.calls_asked
            for call in asked.calls:
                key = (asked.turn, call.index)
                if key != self.audited and self.contracts.can_write(call.action.tool, call.action.arguments):
                    self._open[key] = call.action.tool
        elif kind == "call_finished" and event.at_seconds < self.hit_at_seconds:
            self._open.pop((event.call_finished.call.turn, event.call_finished.call.index), None)
        elif kind == "closed":
            self._ended = True

    @property
    def written(self) -> str:
        """What may have been written since the hit; empty where nothing was."""
        if not self._events:
            return "the session's journal is not there"
        if self._open:
            return "a call that can write was not answered before the hit"
        return "the session ended, and with it its workspace" if self._ended and self.in_workspace else ""
