"""What is known already and may answer a call: a remembered read, one under way, or a speculation."""

from functools import partial

from forerun.core.contracts import staleness_seconds
from forerun.core.freshness import fresh
from forerun.core.outcomes import CallStatus, Mode, Outcome, Served
from forerun.core.session.answers import Close, call_answer
from forerun.core.session.call import Call, Stage
from forerun.core.session.context import Context
from forerun.core.session.direct import Direct
from forerun.core.session.effects import ReadShared
from forerun.core.session.failures import UNCERTAIN_MERGE
from forerun.core.session.flights import Flights
from forerun.core.session.memo import Remembered
from forerun.core.session.model import ExecutionResult, Failure
from forerun.core.session.speculated import Committed, Uncertain
from forerun.core.session.speculation import Speculations


class Lookup:
    """Looks for results that may answer calls; where there is none, the call goes to its tool."""

    def __init__(self, context: Context, speculations: Speculations, direct: Direct, close: Close) -> None:
        self._c = context
        self._speculations = speculations
        self._direct = direct
        self._close = close
        self._flights: Flights[Call] = Flights()
        self._over: Failure | None = None

    def end(self, failure: Failure) -> None:
        """The session has ended: what is known may still answer a call, and nothing is executed for one."""
        self._over = failure

    def look(self, call: Call) -> None:
        """Looks for a result that may answer the call; where there is none, it is executed."""
        # What is known is from before a write that is being stopped; and a merge might be seen by it.
        early = self._direct.being_written(call.prepared) or (call.prepared.writes and self._direct.comes_after(call))
        if self._c.mode is not Mode.EXACT or early:
            self._direct.start(call)
            return
        call.stage = Stage.LOOKING
        entry = self._c.memo.get(call.prepared.identity) if call.prepared.rememberable else None
        if entry is None:
            self._fly(call)
            return
        age = self._c.now - entry.started_at
        if not fresh(entry.private, self._c.generations, age, staleness_seconds(call.prepared.contract)).fresh:
            self._c.memo.drop(call.prepared.identity)
            self._fly(call)
        elif entry.shared:
            then = partial(self._from_shared_memo, call, entry)
            self._c.emit(ReadShared(tuple(entry.shared), self._c.token(then)))
        else:
            self._serve(call, entry.result, Served.MEMO)

    def _from_shared_memo(self, call: Call, entry: Remembered, answer: object) -> None:
        if call.stage is not Stage.LOOKING:
            return
        marks = self._c.marks(answer)
        if marks is not None and all(marks.get(mark, 0) == value for mark, value in entry.shared.items()):
            self._serve(call, entry.result, Served.MEMO)
        else:
            self._c.memo.drop(call.prepared.identity)
            self._fly(call)

    def _fly(self, call: Call) -> None:
        """Lets the call run, or wait for an identical read of another message that runs and may answer it too."""
        identity = call.prepared.identity
        if not call.prepared.rememberable or call.alone:
            self._from_speculation(call)
            return
        leader = self._flights.leader(identity)
        if leader is not None and self._may_answer(leader):
            call.stage = Stage.FOLLOWING
            self._flights.follow(identity, call)
        else:
            self._flights.lead(identity, call)
            self._from_speculation(call)

    def _may_answer(self, leader: Call) -> bool:
        """What the leader brings will be fresh, as far as one can tell now: waiting for less would only cost time."""
        limit = staleness_seconds(leader.prepared.contract)
        usual = self._c.timing.tools.get(leader.prepared.tool, 0.0)
        return fresh(leader.private, self._c.generations, usual, limit).fresh

    def land(self, leader: Call, status: CallStatus) -> None:
        """Goes on with those that waited for a read of another message.

        Where it was only taken back, one of them runs in its place. Where it gave nothing that may answer them, each
        runs by itself, as it would have without waiting.
        """
        for call in self._flights.ended(leader.prepared.identity, leader):
            if call.stage is Stage.FOLLOWING:
                call.alone = status is not CallStatus.CANCELLED
                self.look(call)

    def _from_speculation(self, call: Call) -> None:
        call.started_at = self._c.now
        call.stage = Stage.JOINED
        remaining = max(0.0, call.deadline - self._c.now)
        if self._direct.being_written(call.prepared) or not self._speculations.take(
            call.prepared, call.id, remaining, partial(self._taken, call)
        ):
            self._direct.start(call)

    def _taken(self, call: Call, committed: Committed | Uncertain | None) -> None:
        if call.stage is not Stage.JOINED:
            return
        if committed is None and self._over is not None:
            cancelled = call_answer(call, self._c.now, CallStatus.CANCELLED, None, self._over, Served.UNSPECIFIED)
            self._close(call, cancelled, journal=True)
            return
        if committed is None:
            self._direct.start(call)
            return
        if isinstance(committed, Uncertain):
            self._direct.linger(call)
            self._direct.bump(call.prepared, unsettled=True)
            unknown = CallStatus.OUTCOME_UNKNOWN
            answer = call_answer(call, self._c.now, unknown, None, UNCERTAIN_MERGE, Served.DIRECT)
            self._close(call, answer, journal=True)
            return
        call.policy_version = self._c.policy.version
        call.private, call.shared, call.started_at = committed.private, committed.shared, committed.started_at
        self._direct.bump(call.prepared)
        self._direct.remember(call, committed.result)
        served = Served.READY if committed.outcome is Outcome.READY else Served.JOINED
        if committed.early:
            served = Served.EARLY
        self._serve(call, committed.result, served)

    def _serve(self, call: Call, result: ExecutionResult, served: Served) -> None:
        self._close(call, call_answer(call, self._c.now, CallStatus.OK, result, None, served), journal=True)

    def clear(self) -> None:
        """Nobody waits for anybody any more."""
        self._flights.clear()
