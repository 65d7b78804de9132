"""Authoritative calls of one session: in order-safe parallel, from the memo, a speculation, or the tool."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial

from forerun.core import limits
from forerun.core.contracts import is_barrier, staleness_seconds
from forerun.core.freshness import fresh
from forerun.core.ledger import EntryKind, LedgerEntry
from forerun.core.order import BatchCall, BatchOrder
from forerun.core.outcomes import CallStatus, Mode, Outcome, Served
from forerun.core.resources import conflicts
from forerun.core.session.call import Batch, Call, Closed, Stage
from forerun.core.session.context import Context
from forerun.core.session.effects import Answer, BumpShared, CancelExecution, Execute, ReadShared
from forerun.core.session.events import CallCancelled, CallFinished, CallIntent
from forerun.core.session.failures import (
    CANCELLED,
    CONFLICT,
    INTERRUPTED,
    NO_GENERATIONS,
    NO_JOURNAL,
    OURS,
    TIMED_OUT,
    UNCERTAIN_MERGE,
    asked_wait,
    refused,
    scoped,
)
from forerun.core.session.flights import Flights
from forerun.core.session.keys import CallKeys
from forerun.core.session.memo import Remembered
from forerun.core.session.model import AskedCall, CallAnswer, CallId, ExecutionResult, Failure, PreparedCall
from forerun.core.session.speculated import Committed, Uncertain
from forerun.core.session.speculation import Speculations


class Calls:
    """All authoritative calls of a session."""

    def __init__(self, context: Context, speculations: Speculations) -> None:
        self._c = context
        self._speculations = speculations
        self._open: dict[CallId, Call] = {}
        self._executions: dict[str, Call] = {}
        self._abandoned: dict[str, PreparedCall] = {}
        self._keys = CallKeys(context)
        self._flights: Flights[Call] = Flights()
        self._ending = False
        self.last_turn = 0

    @property
    def running(self) -> bool:
        """Some call is not answered yet."""
        return bool(self._open)

    # ------------------------------------------------------------ intake

    def ask(self, turn: int, asked: tuple[AskedCall, ...], timeout_seconds: float | None) -> None:
        """Takes the calls of one message; calls that were sent before are answered from what is known."""
        new = [one for one in asked if not self._sent_before(turn, one)]
        if turn > self.last_turn:
            self.last_turn = turn
            self._speculations.next_turn(turn)
            self._keys.forget(turn)
        if not new:
            return
        self._keys.write_down(turn, new)
        batch = Batch(BatchOrder())
        for position, one in enumerate(new):
            self._place(batch, position, turn, one, timeout_seconds)
        self._advance(batch)

    def _place(self, batch: Batch, position: int, turn: int, asked: AskedCall, timeout_seconds: float | None) -> None:
        ordered = BatchCall()
        if isinstance(asked.prepared, PreparedCall):
            prepared = asked.prepared
            self._c.purse.earn()
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
        journalled: Iterable[CallId],
    ) -> None:
        """Goes on where another owner stopped.

        Args:
            journalled: Calls that the journal knows.
            last_turn: Highest turn of the journal.
            closed: Calls that were answered.
            unknown: Calls that may not be repeated, were about to start, and of which no end is known.
        """
        self.last_turn = last_turn
        self._keys.restore(last_turn, closed, journalled)
        for key, asked in unknown.items():
            answer = CallAnswer(
                call=key,
                tool=asked.tool,
                status=CallStatus.OUTCOME_UNKNOWN,
                result=None,
                failure=INTERRUPTED,
                served=Served.DIRECT,
                provider_call_id=asked.provider_call_id,
            )
            self._keys.answered[key] = Closed(asked.tool, asked.arguments, answer, repeatable=False)
            self._c.append(CallFinished(answer))
            if isinstance(asked.prepared, PreparedCall):
                self._bump(asked.prepared)
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
            for position in ready:
                self._start(batch.calls[position])
        batch.advancing = False

    def _start(self, call: Call) -> None:
        if isinstance(call.asked.prepared, Failure):
            self._end(call, CallStatus.REJECTED, None, call.asked.prepared, Served.UNSPECIFIED)
            return
        if not call.own_deadline:
            call.deadline = self._c.now + call.prepared.contract.timeout_seconds
        self._look(call)

    def _look(self, call: Call) -> None:
        """Looks for a result that may answer the call; where there is none, it is executed."""
        if self._c.mode is not Mode.EXACT:
            self._direct(call)
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
            self._end(call, CallStatus.OK, entry.result, None, Served.MEMO)

    def _from_shared_memo(self, call: Call, entry: Remembered, answer: object) -> None:
        if call.stage is not Stage.LOOKING:
            return
        marks = self._c.marks(answer)
        if marks is not None and all(marks.get(mark, 0) == value for mark, value in entry.shared.items()):
            self._end(call, CallStatus.OK, entry.result, None, Served.MEMO)
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

    def _land(self, leader: Call, status: CallStatus) -> None:
        """Goes on with those that waited for a read of another message.

        Where it was only taken back, one of them runs in its place. Where it gave nothing that may answer them, each
        runs by itself, as it would have without waiting.
        """
        for call in self._flights.ended(leader.prepared.identity, leader):
            if call.stage is Stage.FOLLOWING:
                call.alone = status is not CallStatus.CANCELLED
                self._look(call)

    def _from_speculation(self, call: Call) -> None:
        call.started_at = self._c.now
        call.stage = Stage.JOINED
        remaining = max(0.0, call.deadline - self._c.now)
        if self._being_written(call.prepared) or not self._speculations.take(
            call.prepared, call.id, remaining, partial(self._taken, call)
        ):
            self._direct(call)

    def _being_written(self, prepared: PreparedCall) -> bool:
        """A write that runs may have changed what the call depends on: only a look at the tool tells.

        Generations count the start and the end of a write. What was read in between is no older than its start, and
        yet may be from before its effect.
        """
        writing = [one.prepared for one in self._executions.values()]
        return any(
            conflicts(prepared.private.depends, one.private.writes)
            for one in (*writing, *self._abandoned.values())
            if one.private.writes
        )

    def _taken(self, call: Call, committed: Committed | Uncertain | None) -> None:
        if call.stage is not Stage.JOINED:
            return
        if committed is None:
            self._direct(call)
            return
        if isinstance(committed, Uncertain):
            self._bump(call.prepared)
            self._end(call, CallStatus.OUTCOME_UNKNOWN, None, UNCERTAIN_MERGE, Served.DIRECT)
            return
        call.policy_version = self._c.policy.version
        call.private, call.shared, call.started_at = committed.private, committed.shared, committed.started_at
        self._bump(call.prepared)
        self._remember(call, committed.result)
        served = Served.READY if committed.outcome is Outcome.READY else Served.JOINED
        self._end(call, CallStatus.OK, committed.result, None, served)

    def _direct(self, call: Call) -> None:
        call.stage = Stage.PREPARING
        if call.prepared.repeatable:
            self._announce(call, True)
        else:
            self._c.append(CallIntent(call.id, call.prepared.digest), partial(self._announce, call))

    def _announce(self, call: Call, answer: object) -> None:
        """The intent is stored, or not needed; now the write is counted before it starts."""
        if call.stage is not Stage.PREPARING:
            return
        if answer is not True:
            self._end(call, CallStatus.UNAVAILABLE, None, NO_JOURNAL, Served.UNSPECIFIED)
            return
        prepared = call.prepared
        if prepared.shared.writes:
            self._c.emit(BumpShared(prepared.shared.writes, self._c.token(partial(self._look_at_shared, call))))
        else:
            self._look_at_shared(call, True)

    def _look_at_shared(self, call: Call, answer: object) -> None:
        if call.stage is not Stage.PREPARING:
            return
        if answer is not True:
            self._end(call, CallStatus.UNAVAILABLE, None, NO_GENERATIONS, Served.UNSPECIFIED)
            return
        self._execute(call)

    def _execute(self, call: Call) -> None:
        prepared = call.prepared
        if prepared.private.writes:
            self._c.generations.bump(prepared.private.writes)
            self._speculations.written()
        call.private = self._c.private_now(prepared)
        call.shared = self._c.shared_known(prepared)
        call.policy_version = self._c.policy.version
        call.stage = Stage.RUNNING
        call.attempts += 1
        call.started_at = self._c.now
        call.execution = self._c.execution_id()
        self._executions[call.execution] = call
        self._c.emit(
            Execute(
                execution=call.execution,
                prepared=prepared,
                speculative=False,
                timeout_seconds=max(0.001, call.deadline - self._c.now),
                # The same for every try of the call, so that a worker knows a merge that it has done already.
                fork=f"call-{call.id[0]}-{call.id[1]}" if prepared.forks else "",
                merge_on_success=prepared.forks,
                idempotency_key=f"{self._c.facts.session}/{call.id[0]}/{call.id[1]}",
            )
        )

    # ------------------------------------------------------------ the end of an execution

    def finished(self, execution: str, result: ExecutionResult) -> bool:
        """Takes the end of an execution; False where it is none of ours."""
        abandoned = self._abandoned.pop(execution, None)
        if abandoned is not None:
            self._bump(abandoned)
            return True
        call = self._executions.pop(execution, None)
        if call is None:
            return False
        if call.stage is not Stage.RUNNING:
            return True
        if result.status is CallStatus.OUTCOME_UNKNOWN and call.prepared.repeatable:
            # The way to the tool broke. For what may be repeated that is no more than a failed try.
            result = replace(result, status=CallStatus.UNAVAILABLE)
        if self._may_retry(call, result):
            call.stage = Stage.BACKING_OFF
            wait = limits.RETRY_BACKOFF_INITIAL_SECONDS * 2.0 ** (call.attempts - 1)
            call.retry_at = self._c.now + max(min(wait, limits.RETRY_BACKOFF_MAX_SECONDS), asked_wait(result))
            return True
        self._c.learn(call.prepared, result)
        if result.status is CallStatus.OK:
            self._c.timing.control_path(self._c.now - call.started_at - result.seconds)
        status = result.status
        # A refusal at the door has not started; one that came later (a result too large) may have had its effect.
        if status is not CallStatus.OK and not call.prepared.repeatable and not result.not_started:
            status = CallStatus.OUTCOME_UNKNOWN
        self._settle(call, status, result, result.failure)
        return True

    def _may_retry(self, call: Call, result: ExecutionResult) -> bool:
        """Whether to try again: never what may have taken effect, a tool that is away a few times.

        Where the platform itself is the obstacle (a worker restarts), it tries until the call's deadline.
        """
        if result.status is not CallStatus.UNAVAILABLE or not (call.prepared.repeatable or result.not_started):
            return False
        ours = result.failure is not None and result.failure.reason in OURS
        if not ours and call.attempts >= limits.CALL_ATTEMPTS:
            return False
        return self._c.now + max(limits.RETRY_BACKOFF_INITIAL_SECONDS, asked_wait(result)) < call.deadline

    def _settle(self, call: Call, status: CallStatus, result: ExecutionResult | None, failure: Failure | None) -> None:
        """Counts the end of a write, also of a failed one, and stores the outcome of what may not be repeated."""
        call.stage = Stage.SETTLING
        prepared = call.prepared
        self._bump_private(prepared)
        if status is CallStatus.OK and result is not None:
            self._remember(call, result)
        answer = self._answer(call, status, result, failure, Served.DIRECT)
        # Both at once, and before the answer: whoever hears of the write from this agent must not be served what was
        # before it, and who takes over must not find it open.
        call.settling = bool(prepared.shared.writes) + (not prepared.repeatable)
        if prepared.shared.writes:
            self._c.emit(BumpShared(prepared.shared.writes, self._c.token(partial(self._counted, call, answer))))
        if not prepared.repeatable:
            self._c.append(CallFinished(answer), partial(self._settled, call, answer))
        if not call.settling:
            self._close(call, answer, journal=True)

    def _counted(self, call: Call, answer: CallAnswer, counted: object) -> None:
        """The end of a write is counted, or owed: also when the session is somebody else's by now."""
        if counted is not True:
            self._c.emit(BumpShared(call.prepared.shared.writes))
        self._settled(call, answer, counted)

    def _settled(self, call: Call, answer: CallAnswer, _done: object) -> None:
        """One more thing is done, or owed: the tool has answered, so the agent gets the answer either way."""
        call.settling -= 1
        if call.stage is Stage.SETTLING and not call.settling:
            self._close(call, answer, journal=call.prepared.repeatable)

    def _bump_private(self, prepared: PreparedCall) -> None:
        if prepared.private.writes:
            self._c.generations.bump(prepared.private.writes)
            self._speculations.written()

    def _bump(self, prepared: PreparedCall) -> None:
        self._bump_private(prepared)
        if prepared.shared.writes:
            self._c.emit(BumpShared(prepared.shared.writes))

    def _remember(self, call: Call, result: ExecutionResult) -> None:
        if not call.prepared.rememberable or result.tool_error or call.shared is None:
            return
        if call.policy_version != self._c.policy.version or self._being_written(call.prepared):
            return
        entry = Remembered(result, call.private, call.shared, call.started_at)
        self._c.memo.put(call.prepared.identity, entry)

    def _end(
        self,
        call: Call,
        status: CallStatus,
        result: ExecutionResult | None,
        failure: Failure | None,
        served: Served,
    ) -> None:
        self._close(call, self._answer(call, status, result, failure, served), journal=True)

    def _answer(
        self,
        call: Call,
        status: CallStatus,
        result: ExecutionResult | None,
        failure: Failure | None,
        served: Served,
    ) -> CallAnswer:
        return CallAnswer(
            call=call.id,
            tool=call.asked.tool,
            status=status,
            result=result,
            failure=failure,
            served=served,
            provider_call_id=call.asked.provider_call_id,
            waited_seconds=self._c.now - call.asked_at,
        )

    def _close(self, call: Call, answer: CallAnswer, *, journal: bool) -> None:
        if call.stage is Stage.DONE:
            return
        handed_out = call.stage is not Stage.WAITING
        call.stage = Stage.DONE
        del self._open[call.id]
        repeatable = not isinstance(call.asked.prepared, PreparedCall) or call.asked.prepared.repeatable
        self._keys.answered[call.id] = Closed(call.asked.tool, call.asked.arguments, answer, repeatable)
        self._c.emit(Answer(answer))
        if journal:
            self._c.append(CallFinished(answer))
        self._c.record(self._entry(call, answer))
        if self._ending:
            return
        self._release(call, answer, handed_out)
        if isinstance(call.asked.prepared, PreparedCall):
            self._land(call, answer.status)

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

    def _entry(self, call: Call, answer: CallAnswer) -> LedgerEntry:
        prepared = call.asked.prepared if isinstance(call.asked.prepared, PreparedCall) else None
        return LedgerEntry(
            kind=EntryKind.CALL,
            tool=call.asked.tool,
            identity=prepared.digest if prepared else "",
            served=answer.served,
            status=answer.status,
            reason=answer.failure.reason if answer.failure else "",
            seconds=answer.result.seconds if answer.result else 0.0,
            cost_money=prepared.contract.cost_money * call.attempts if prepared else 0.0,
            call=call.id,
            digest=answer.result.digest if answer.result else "",
            speculable=prepared is not None and prepared.speculable,
            executions=call.attempts,
        )

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
        for call in list(self._open.values()):
            if call.stage is not Stage.DONE and not self._settles(call):
                self._abort(call, CallStatus.CANCELLED, failure)

    def _settles(self, call: Call) -> bool:
        """Its end is under way and has a bound of its own: it can neither be taken back nor be late any more."""
        return call.stage is Stage.SETTLING or (call.stage is Stage.JOINED and self._speculations.committing(call.id))

    def release_all(self) -> None:
        """Another owner goes on with the open calls: what it may repeat is stopped here, the rest is left alone."""
        for execution, call in self._executions.items():
            if call.prepared.repeatable:
                self._c.emit(CancelExecution(execution))
        for call in self._open.values():
            if call.stage is Stage.JOINED:
                self._speculations.leave(call.id)
            # What it still waits for (journal, generations, a merge) finds that nothing is left to do here.
            call.stage = Stage.DONE
        self._executions.clear()
        self._flights.clear()
        self._open.clear()

    def tick(self) -> None:
        """Ends calls whose deadline has passed and starts retries that are due."""
        for call in list(self._open.values()):
            if call.stage is Stage.DONE or self._settles(call):
                continue
            if self._c.now >= call.deadline:
                self._abort(call, CallStatus.TIMEOUT, TIMED_OUT)
            elif call.stage is Stage.BACKING_OFF and self._c.now >= call.retry_at:
                self._execute(call)

    def next_time(self) -> float | None:
        """When `tick` has something to do."""
        times = [
            min(call.deadline, call.retry_at) if call.stage is Stage.BACKING_OFF else call.deadline
            for call in self._open.values()
            if not self._settles(call)
        ]
        return min(times, default=None)

    def _abort(self, call: Call, status: CallStatus, failure: Failure) -> None:
        if call.stage is Stage.RUNNING:
            self._executions.pop(call.execution, None)
            # It may still change something until it has really stopped: its write is counted then, once more.
            self._abandoned[call.execution] = call.prepared
            self._c.emit(CancelExecution(call.execution))
            if not call.prepared.repeatable:
                self._settle(call, CallStatus.OUTCOME_UNKNOWN, None, failure)
                return
            self._bump(call.prepared)
        elif call.stage is Stage.JOINED:
            self._speculations.leave(call.id)
        self._end(call, status, None, failure, Served.UNSPECIFIED if not call.attempts else Served.DIRECT)
