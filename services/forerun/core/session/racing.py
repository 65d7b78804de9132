"""Second attempts of slow reads at an equivalent provider: started, won or lost, and written to the ledger."""

import math
from dataclasses import dataclass

from forerun.core.ledger import FIRST_WON, SECOND_WON, EntryKind, LedgerEntry
from forerun.core.outcomes import CallStatus
from forerun.core.race import Pace
from forerun.core.session.call import Call
from forerun.core.session.context import Context
from forerun.core.session.model import ExecutionResult, PreparedCall


@dataclass(frozen=True, slots=True)
class _Lost:
    """An attempt that the other one has beaten; its end is still to come."""

    call: Call
    winner: ExecutionResult
    second_won: bool
    started_at: float


class Racing:
    """The races of one session."""

    def __init__(self, context: Context) -> None:
        self._c = context
        self._lost: dict[str, _Lost] = {}

    def started(self, call: Call) -> None:
        """A first attempt was started: says when a second one is due."""
        call.second, call.second_at = "", math.inf
        one, race = call.prepared, call.prepared.contract.race
        if race is None or one.in_client or one.uses_workspace or one.connection:
            return
        delay = self._pace(one).delay(race)
        if delay is not None:
            call.second_at = self._c.now + delay

    def may_start(self, call: Call) -> bool:
        """The second attempt is due; takes one of the extra calls where there is one left."""
        call.second_at = math.inf
        race, pace = call.prepared.contract.race, self._pace(call.prepared)
        if race is None or not pace.may_add(race):
            return False
        pace.extra += 1
        return True

    def ended(self, call: Call, execution: str, result: ExecutionResult) -> None:
        """An attempt has ended by itself. A first one that had begun is a call, which allows for second ones."""
        if execution != call.execution or result.not_started:
            return
        pace = self._pace(call.prepared)
        pace.calls += 1
        if result.status is CallStatus.OK:
            pace.observe(self._c.now - call.started_at)

    def won(self, call: Call, execution: str, result: ExecutionResult) -> str:
        """One attempt has answered while the other one runs: the one to stop."""
        second_won = execution == call.second
        loser = call.execution if second_won else call.second
        if second_won:
            pace = self._pace(call.prepared)
            pace.calls += 1
            pace.observe(self._c.now - call.started_at)
        self._lost[loser] = _Lost(call, result, second_won, self._c.now)
        return loser

    def finished(self, execution: str, result: ExecutionResult) -> bool:
        """Takes the end of a beaten attempt and writes the race to the ledger; False where it is none."""
        lost = self._lost.pop(execution, None)
        if lost is None:
            return False
        prepared = lost.call.prepared
        differs = result.status is CallStatus.OK and result.digest != lost.winner.digest
        self._c.record(
            LedgerEntry(
                kind=EntryKind.RACE,
                tool=prepared.tool,
                identity=prepared.digest,
                status=result.status,
                reason=SECOND_WON if lost.second_won else FIRST_WON,
                seconds=result.seconds,
                wasted_seconds=result.seconds,
                cost_money=prepared.contract.cost_money,
                call=lost.call.id,
                digest=lost.winner.digest,
                explanation=f"the other attempt answered {result.digest}" if differs else "",
            )
        )
        return True

    def _pace(self, prepared: PreparedCall) -> Pace:
        return self._c.replica.paces.of(self._c.tenant, prepared.tool)
