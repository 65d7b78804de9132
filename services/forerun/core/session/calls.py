"""Authoritative calls of one session: in order-safe parallel, from the memo, a speculation, or the tool."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial

from forerun.core import limits
from forerun.core.contracts import is_barrier
from forerun.core.ledger import EntryKind, LedgerEntry
from forerun.core.order import BatchCall, BatchOrder
from forerun.core.outcomes import CallStatus, Served
from forerun.core.session.answers import call_answer, call_entry
from forerun.core.session.call import Batch, Call, Closed, Stage
from forerun.core.session.context import Context
from forerun.core.session.direct import Direct
from forerun.core.session.effects import Answer
from forerun.core.session.events import CallCancelled, CallFinished
from forerun.core.session.failures import (
    CANCELLED,
    CONFLICT,
    INTERRUPTED,
    NOT_STORED,
    TIMED_OUT,
    refused,
    scoped,
)
from forerun.core.session.keys import CallKeys
from forerun.core.session.lookup import Lookup
from forerun.core.session.model import AskedCall, CallAnswer, CallId, ExecutionResult, Failure, PreparedCall
from forerun.core.session.speculation import Speculations
from forerun.core.session.unstored import Unstored


class Calls:
    """All authoritative calls of a session."""

    def __init__(self, context: Context, speculations: Speculations) -> None:
        self._c = context
        self._speculations = speculations
        self._open: dict[CallId, Call] = {}
        self._keys = CallKeys(context)
        self._unstored = Unstored(context)
        self._direct = Direct(context, speculations, self._unstored, self._close)
        self._lookup = Lookup(context, speculations, self._direct, self._close)
        self._ending = False
        self.last_turn = 0

    @property
    def unanswered(self) -> int:
        """Calls that are not answered yet."""
        return len(self._open)

    def answered(self, turn: int) -> tuple[int, ...]:
        """The answered calls of a message, in the order of their answers."""
        return self._keys.answered_of(turn)

    def of(self, turn: int) -> tuple[int, ...]:
        """The calls of a message that were asked for, answered or not."""
        return (*self.answered(turn), *(index for number, index in self._open if number == turn))

    def share(self, turn: int, asked: AskedCall, leader: int) -> None:
        """Writes down that a call has the outcome of another one, and is not to be executed any more."""
        key, lead = (turn, asked.index), self._keys.answered.get((turn, leader))
        if lead is None or key in self._keys.answered or key in self._open:
            return
        self._keys.write_down(turn, [asked])
        answer = replace(lead.answer, call=key, served=Served.SHARED, provider_call_id=asked.provider_call_id)
        self._keys.answered[key] = Closed(asked.tool, asked.arguments, answer, lead.repeatable)
        self._written(turn, asked, answer)

    # ------------------------------------------------------------ intake

    def ask(self, turn: int, asked: tuple[AskedCall, ...], timeout_seconds: float | None) -> None:
        """Takes the calls of one message; calls that were sent before are answered from what is known."""
        new = [one for one in asked if not self._sent_before(turn, one)]
        if turn > self.last_turn:
            self.last_turn = turn
            self._speculations.next_turn(turn)
            self._keys.forget(turn)
            self._unstored.next_message({number for number, _ in self._open})
        if not new:
            return
        for one in new:
            if isinstance(one.prepared, PreparedCall) and not self._keys.journalled((turn, one.index)):
                self._c.purse.earn()  # once for each call, however often its owner is lost
        self._keys.write_down(turn, new)
        batch = Batch(BatchOrder())
        for position, one in enumerate(new):
            self._place(batch, position, turn, one, timeout_seconds)
        self._advance(batch)

    def _place(self, batch: Batch, position: int, turn: int, asked: AskedCall, timeout_seconds: float | None) -> None:
        ordered = BatchCall()
        if isinstance(asked.prepared, PreparedCall):
            prepared = asked.prepared
            if prepared.contract.open_world:
                # The agent itself sends these out; what it gives to a closed tool may be somebody else's text.
                self._c.trusted.add_value(prepared.value)
            ordered = BatchCall(
                reads=scoped(prepared.private.reads, prepared.shared.reads),
                writes=scoped(prepared.private.writes, prepared.shared.writes),
                barrier=is_barrier(prepared.contract),
                same=prepared.identity if prepared.shareable else None,
            )
        # Without a limit of its own a call has its tool's, from its start: waiting in a long message is not its fault.
        seconds = limits.DEADLINE_MAX_SECONDS if timeout_seconds is None else timeout_seconds
        batch.order.add(ordered)
        call = Call(
            id=(turn, asked.index),
            asked=asked,
            batch=batch,
            position=position,
            follows=batch.order.same_as(position),
            asked_at=self._c.now,
            deadline=self._c.now + min(seconds, limits.DEADLINE_MAX_SECONDS),
            own_deadline=timeout_seconds is not None,
        )
        batch.calls.append(call)
        self._open[call.id] = call

    def _sent_before(self, turn: int, asked: AskedCall) -> bool:
        """Answers a call that is known already: from its stored answer, or as a conflict. True where it was known."""
        key = (turn, asked.index)
        known = self._keys.answered.get(key)
        running = self._open.get(key)
        if known is not None:
            same = (known.tool, known.arguments) == (asked.tool, asked.arguments)
        elif running is not None:
            same = (running.asked.tool, running.asked.arguments) == (asked.tool, asked.arguments)
        else:
            return False
        if not same:
            self._c.emit(Answer(refused(key, asked, CONFLICT), conflict=True))
        elif known is not None:
            self._c.emit(Answer(known.answer))
        return True

    def restore(
        self,
        last_turn: int,
        closed: Mapping[CallId, Closed],
        unknown: Mapping[CallId, AskedCall],
        lingering: Mapping[CallId, AskedCall],
        journalled: Iterable[CallId],
    ) -> None:
        """Goes on where another owner stopped.

        Args:
            journalled: Calls that the journal knows.
            last_turn: Highest turn of the journal.
            closed: Calls that were answered.
            unknown: Calls that may not be repeated, were about to start, and of which no end is known.
            lingering: Further calls that may have started and of whose effect no end is known.
        """
        self.last_turn = last_turn
        self._keys.restore(last_turn, closed, journalled)
        self._direct.restore({**lingering, **unknown}, closed)
        for key, asked in unknown.items():
            answer = CallAnswer(
                call=key,
                tool=asked.tool,
                status=CallStatus.OUTCOME_UNKNOWN,
                result=None,
                failure=INTERRUPTED,
                served=Served.DIRECT,
                provider_call_id=asked.provider_call_id,
                may_continue=True,
            )
            self._keys.answered[key] = Closed(asked.tool, asked.arguments, answer, repeatable=False)
            self._c.append(CallFinished(answer))
            self._c.record(
                LedgerEntry(
                    kind=EntryKind.CALL,
                    tool=asked.tool,
                    served=Served.DIRECT,
                    status=CallStatus.OUTCOME_UNKNOWN,
                    reason=INTERRUPTED.reason,
                    call=key,
                    executions=1,
                )
            )

    # ------------------------------------------------------------ the way of a call

    def _advance(self, batch: Batch) -> None:
        """Starts what may start. A loop, not a recursion: hundreds of calls may end at once, from the memo."""
        if batch.advancing:
            return
        batch.advancing = True
        while ready := batch.order.ready():
            # First those that wait for the journal: what answers the others is looked up meanwhile.
            for position in sorted(ready, key=lambda one: _repeatable(batch.calls[one])):
                self._start(batch.calls[position])
        batch.advancing = False

    def _start(self, call: Call) -> None:
        if isinstance(call.asked.prepared, Failure):
            self._end(call, CallStatus.REJECTED, None, call.asked.prepared, Served.UNSPECIFIED)
            return
        if not call.own_deadline:
            call.deadline = self._c.now + call.prepared.contract.timeout_seconds
        if self._unstored.before(call.id[0], call.prepared, partial(self._look, call)):
            call.stage = Stage.LOOKING
        else:
            self._lookup.look(call)

    def _look(self, call: Call, stored: object) -> None:
        """What the call could change is stored, and would be answered the same by another owner."""
        if call.stage is not Stage.LOOKING:
            return
        if stored is True:
            self._lookup.look(call)
        else:
            self._end(call, CallStatus.UNAVAILABLE, None, NOT_STORED, Served.UNSPECIFIED)

    # ------------------------------------------------------------ the end of a call

    def finished(self, execution: str, result: ExecutionResult) -> bool:
        """Takes the end of an execution; False where it is none of ours."""
        return self._direct.finished(execution, result)

    def _end(
        self,
        call: Call,
        status: CallStatus,
        result: ExecutionResult | None,
        failure: Failure | None,
        served: Served,
    ) -> None:
        self._close(call, call_answer(call, self._c.now, status, result, failure, served), journal=True)

    def _close(self, call: Call, answer: CallAnswer, *, journal: bool) -> None:
        if call.stage is Stage.DONE:
            return
        handed_out = call.stage is not Stage.WAITING
        call.stage = Stage.DONE
        del self._open[call.id]
        self._keys.answered[call.id] = Closed(call.asked.tool, call.asked.arguments, answer, _repeatable(call))
        self._c.emit(Answer(answer))
        if journal:
            self._written(call.id[0], call.asked, answer)
        self._c.record(call_entry(call, answer))
        if self._ending:
            return
        self._release(call, answer, handed_out)
        if isinstance(call.asked.prepared, PreparedCall):
            self._lookup.land(call, answer.status)

    def _written(self, turn: int, asked: AskedCall, answer: CallAnswer) -> None:
        self._c.append(CallFinished(answer))
        if isinstance(asked.prepared, PreparedCall):
            self._unstored.add(turn, asked.prepared)

    def _release(self, call: Call, answer: CallAnswer, handed_out: bool) -> None:
        """Goes on with the message: calls that share the outcome, and calls that waited for it."""
        batch = call.batch
        sharing = [one for one in batch.calls if one.follows == call.position and one.stage is Stage.WAITING]
        if sharing and answer.status is CallStatus.CANCELLED:
            # Only this call was taken back. One of those that shared its outcome runs in its place in the order.
            heir = sharing[0]
            batch.calls[call.position] = heir
            heir.position, heir.follows = call.position, None
            for one in sharing[1:]:
                one.follows = heir.position
            if handed_out:
                self._start(heir)
            return
        batch.order.finished(call.position)
        for other in sharing:
            served = Served.SHARED if answer.status is CallStatus.OK else answer.served
            self._end(other, answer.status, answer.result, answer.failure, served)
        self._advance(batch)

    # ------------------------------------------------------------ time and cancellation

    def cancel(self, key: CallId) -> None:
        """Takes a call back. A call that is done or unknown stays as it is."""
        call = self._open.get(key)
        if call is None or self._settles(call):
            return
        self._c.append(CallCancelled(key))
        self._abort(call, CallStatus.CANCELLED, CANCELLED)

    def cancel_all(self, failure: Failure) -> None:
        """Takes back everything that is open; nothing new starts."""
        self._ending = True
        self._lookup.end(failure)
        for call in list(self._open.values()):
            if call.stage is not Stage.DONE and not self._settles(call):
                self._abort(call, CallStatus.CANCELLED, failure)

    def _settles(self, call: Call) -> bool:
        """Its end is under way and has a bound of its own: it can neither be taken back nor be late any more."""
        return call.stage is Stage.SETTLING or (call.stage is Stage.JOINED and self._speculations.committing(call.id))

    def release_all(self) -> None:
        """Another owner goes on with the open calls: what it may repeat is stopped here, the rest is left alone."""
        self._direct.release_all(self._open.values())
        for call in self._open.values():
            if call.stage is Stage.JOINED:
                self._speculations.leave(call.id)
            # What it still waits for (journal, generations, a merge) finds that nothing is left to do here.
            call.stage = Stage.DONE
        self._lookup.clear()
        self._open.clear()

    def tick(self) -> None:
        """Ends calls whose deadline has passed and starts what is due."""
        self._direct.tick()
        for call in list(self._open.values()):
            if call.stage is Stage.DONE or self._settles(call):
                continue
            if self._c.now >= call.deadline:
                self._abort(call, CallStatus.TIMEOUT, TIMED_OUT)
            elif call.stage is Stage.BACKING_OFF and self._c.now >= call.retry_at:
                self._direct.execute(call)
            elif call.stage is Stage.RUNNING and self._c.now >= call.second_at:
                self._direct.race(call)

    def next_time(self) -> float | None:
        """When `tick` has something to do."""
        times = [_due(call) for call in self._open.values() if not self._settles(call)]
        waiting = self._direct.next_time()
        return min(times if waiting is None else (*times, waiting), default=None)

    def _abort(self, call: Call, status: CallStatus, failure: Failure) -> None:
        if call.stage in (Stage.RUNNING, Stage.BACKING_OFF):
            if self._direct.abort(call, status, failure):
                return
        elif call.stage is Stage.JOINED:
            self._speculations.leave(call.id)
        self._end(call, status, None, failure, Served.UNSPECIFIED if not call.attempts else Served.DIRECT)


def _repeatable(call: Call) -> bool:
    """It may run again; a call that was refused never ran."""
    return not isinstance(call.asked.prepared, PreparedCall) or call.asked.prepared.repeatable


def _due(call: Call) -> float:
    """When something is to be done about an open call."""
    if call.stage is Stage.BACKING_OFF:
        return min(call.deadline, call.retry_at)
    return min(call.deadline, call.second_at) if call.stage is Stage.RUNNING else call.deadline
