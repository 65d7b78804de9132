"""The way of a call to its tool: intent, count of a write before and after it, execution, retries, settling."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from forerun.core import limits
from forerun.core.freshness import UNSETTLED
from forerun.core.outcomes import CallStatus, Served
from forerun.core.providers import BreakerState
from forerun.core.resources import ROOT, conflicts
from forerun.core.session.answers import Close, call_answer
from forerun.core.session.call import Call, Closed, Stage
from forerun.core.session.context import Context
from forerun.core.session.effects import BeginShared, BumpShared, CancelExecution, Execute, ReadShared
from forerun.core.session.events import CallFinished, CallIntent
from forerun.core.session.failures import NO_GENERATIONS, NO_JOURNAL, OURS, STOPPED, asked_wait, provider_failed
from forerun.core.session.memo import Remembered
from forerun.core.session.model import AskedCall, CallAnswer, CallId, ExecutionResult, Failure, PreparedCall, fork_of
from forerun.core.session.racing import Racing
from forerun.core.session.speculation import Speculations
from forerun.core.session.stopping import EarlierStops, in_order
from forerun.core.session.unstored import Unstored

_ANYTHING = ((ROOT,), (ROOT,))

# More doublings than any longest wait has: a call with an hour's deadline is tried thousands of times.
_DOUBLINGS = 10


class Direct:
    """Executions of authoritative calls."""

    def __init__(self, context: Context, speculations: Speculations, unstored: Unstored, close: Close) -> None:
        self._c = context
        self._speculations = speculations
        self._unstored = unstored
        self._close = close
        self._executions: dict[str, Call] = {}
        self._abandoned: dict[str, _Abandoned] = {}
        self._earlier = EarlierStops(context)
        self._behind: list[Call] = []
        self._racing = Racing(context)

    def start(self, call: Call) -> None:
        """Executes a call; nothing that is known may answer it.

        A write of its message that is being stopped is waited for, in bounded time: until then it may take effect.
        """
        call.stage = Stage.PREPARING
        if self.comes_after(call):
            if not call.own_deadline:
                call.deadline += limits.CANCEL_SETTLE_SECONDS  # waiting for another one is not its fault
            self._behind.append(call)
        else:
            self._prepare(call)

    def comes_after(self, call: Call) -> bool:
        """A write of its message that is being stopped must not run beside it."""
        return self._earlier.hold(call.id[0], call.prepared) or any(
            one.call.id[0] == call.id[0] and in_order(one.call.prepared, call.prepared)
            for one in self._abandoned.values()
        )

    def tick(self) -> None:
        """Goes on where what an earlier owner was stopping was waited for long enough."""
        if self._earlier.over():
            self._go_on()

    def next_time(self) -> float | None:
        """When `tick` has something to do."""
        return self._earlier.until if self._behind else None

    def _go_on(self) -> None:
        """One more write has stopped."""
        behind, self._behind = self._behind, []
        for call in behind:
            if call.stage is Stage.PREPARING:
                if not call.own_deadline:
                    call.deadline = self._c.now + call.prepared.contract.timeout_seconds
                self.start(call)

    def _prepare(self, call: Call) -> None:
        if call.prepared.repeatable:
            self._announce(call, True)
        else:
            since = self._unstored.since(call.id[0], call.prepared)
            self._c.append(CallIntent(call.id, call.prepared.digest), partial(self._announce, call), since=since)

    def _announce(self, call: Call, answer: object) -> None:
        """The intent is stored, or not needed; now all sessions are told of the write, before it starts."""
        if call.stage is not Stage.PREPARING:
            return
        if answer is not True:
            self._refuse(call, NO_JOURNAL)
            return
        prepared = call.prepared
        if not prepared.shared.writes:
            self.execute(call)
            return
        call.write = self._c.execution_id()
        longest = max(0.0, call.deadline - self._c.now)
        begun = self._c.token(partial(self._begun, call))
        self._c.emit(BeginShared(call.write, prepared.shared.writes, longest, begun))

    def _begun(self, call: Call, answer: object) -> None:
        """All sessions know of the write; or it is taken back, where it was not stored or the call is gone."""
        if call.stage is Stage.PREPARING and answer is True:
            self.execute(call)
            return
        self._c.emit(BumpShared(call.prepared.shared.writes, write=call.write))
        if call.stage is Stage.PREPARING:
            self._refuse(call, NO_GENERATIONS)

    def execute(self, call: Call) -> None:
        """Starts the tool: what had to be stored and counted before it is."""
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
        self._racing.started(call)
        if call.attempts == 1:
            self._c.health(prepared).retries.earn()
        self._run(call, call.execution)

    def race(self, call: Call) -> None:
        """The call takes longer than most: a second attempt, at the next provider."""
        if self._racing.may_start(call):
            call.second = self._c.execution_id()
            call.raced += 1
            self._run(call, call.second, provider=1)

    def _run(self, call: Call, execution: str, *, provider: int = 0) -> None:
        prepared = call.prepared
        self._executions[execution] = call
        self._c.emit(
            Execute(
                execution=execution,
                prepared=prepared,
                speculative=False,
                timeout_seconds=max(0.001, call.deadline - self._c.now),
                fork=fork_of(call.id) if prepared.forks else "",
                merge_on_success=prepared.forks,
                idempotency_key=f"{self._c.facts.session}/{call.id[0]}/{call.id[1]}",
                provider=provider,
            )
        )

    def finished(self, execution: str, result: ExecutionResult) -> bool:
        """Takes the end of an execution; False where it is none of ours."""
        abandoned = self._abandoned.pop(execution, None)
        if abandoned is not None:
            self._stopped(abandoned.call, result, unsettled=abandoned.may_continue or result.may_continue)
            self._go_on()
            return True
        if self._racing.finished(execution, result):
            return True
        call = self._executions.pop(execution, None)
        if call is None:
            return False
        if call.stage is not Stage.RUNNING:
            return True
        self._racing.ended(call, execution, result)
        if call.second and self._other(call, execution) in self._executions:
            if result.status is not CallStatus.OK:
                return True  # the other attempt decides
            loser = self._racing.won(call, execution, result)
            del self._executions[loser]
            self._c.emit(CancelExecution(loser))
        if result.status is CallStatus.OUTCOME_UNKNOWN and call.prepared.repeatable:
            # The way to the tool broke. For what may be repeated that is no more than a failed try.
            result = replace(result, status=CallStatus.UNAVAILABLE)
        self._note_end(call, result)
        self._judge(call.prepared, result)
        if result.state_lost:
            self._c.memo.clear()  # what was read through that connection is true no more
        if self._may_retry(call, result):
            self._bump_private(call.prepared)
            call.stage = Stage.BACKING_OFF
            wait = limits.RETRY_BACKOFF_INITIAL_SECONDS * 2.0 ** min(call.attempts - 1, _DOUBLINGS)
            call.retry_at = self._c.now + max(min(wait, limits.RETRY_BACKOFF_MAX_SECONDS), asked_wait(result))
            return True
        self._c.learn(call.prepared, result)
        if result.status is CallStatus.OK:
            self._c.timing.control_path(self._c.now - call.started_at - result.seconds)
        status = result.status
        # A refusal at the door has not started; one that came later (a result too large) may have had its effect.
        if status is not CallStatus.OK and not call.prepared.repeatable and not result.not_started:
            status = CallStatus.OUTCOME_UNKNOWN
        if result.state_lost and call.may_continue:
            status = CallStatus.OUTCOME_UNKNOWN  # the connection was lost under an earlier try
        self._settle(call, status, result, result.failure)
        return True

    def _stopped(self, call: Call, result: ExecutionResult, *, unsettled: bool) -> None:
        """An execution has ended that was told to stop, long after its call was answered."""
        if result.may_continue:
            self._c.lingering.add(call.id, call.prepared.private.writes)
        self._bump_private(call.prepared)
        if call.write:
            self._c.emit(_end_of(call, unsettled=unsettled))

    def _note_end(self, call: Call, result: ExecutionResult) -> None:
        """Notes whether a write may go on after this try of it. What other tries left is over with a staged one."""
        if result.may_continue and call.prepared.writes:
            self.linger(call)
        elif call.prepared.forks and not result.not_started:
            # Tries of a staged call share its fork and take turns in the workspace: the last one ends them all.
            call.may_continue = False
            self._c.lingering.settled(call.id)

    def linger(self, call: Call) -> None:
        """The call's write may take effect after its end."""
        call.may_continue = True
        self._c.lingering.add(call.id, call.prepared.private.writes)

    @staticmethod
    def _other(call: Call, execution: str) -> str:
        return call.execution if execution == call.second else call.second

    def _judge(self, prepared: PreparedCall, result: ExecutionResult) -> None:
        """The provider's health, where the end says something of it."""
        failed = provider_failed(result)
        if failed is not None:
            self._c.health(prepared).breaker(speculative=False).record(not failed, self._c.now)

    def _may_retry(self, call: Call, result: ExecutionResult) -> bool:
        """Whether to try again: never what may have taken effect, a tool that is away a few times.

        Where the platform itself is the obstacle (a worker restarts), it tries until the call's deadline.
        """
        if result.status is not CallStatus.UNAVAILABLE or not (call.prepared.repeatable or result.not_started):
            return False
        if self._c.now + max(limits.RETRY_BACKOFF_INITIAL_SECONDS, asked_wait(result)) >= call.deadline:
            return False
        if result.failure is not None and result.failure.reason in OURS:
            return True
        health = self._c.health(call.prepared)
        calm = health.breaker(speculative=False).state(self._c.now) is BreakerState.CLOSED
        return call.attempts < limits.CALL_ATTEMPTS and calm and health.retries.spend()

    def _settle(self, call: Call, status: CallStatus, result: ExecutionResult | None, failure: Failure | None) -> None:
        """Counts the end of a write, also of a failed one, and stores the outcome of what may not be repeated."""
        call.stage = Stage.SETTLING
        prepared = call.prepared
        self._bump_private(prepared)
        if status is CallStatus.OK and result is not None:
            self.remember(call, result)
        answer = call_answer(call, self._c.now, status, result, failure, Served.DIRECT)
        # Both at once, and before the answer: whoever hears of the write from this agent must not be served what was
        # before it, and who takes over must not find it open.
        call.settling = bool(prepared.shared.writes) + (not prepared.repeatable)
        if prepared.shared.writes:
            # What was only told to stop runs until it has: it is taken off when its end is known.
            runs = call.execution in self._abandoned
            end = BumpShared(prepared.shared.writes) if runs else _end_of(call, unsettled=call.may_continue)
            self._c.emit(replace(end, token=self._c.token(partial(self._counted, call, answer, end))))
        if not prepared.repeatable:
            self._c.append(CallFinished(answer), partial(self._settled, call, answer))
        elif call.settling:
            self._c.append(CallFinished(answer))
            self._unstored.add(call.id[0], prepared)
        if not call.settling:
            self._close(call, answer, journal=True)

    def _counted(self, call: Call, answer: CallAnswer, end: BumpShared, counted: object) -> None:
        """The end of a write is counted, or owed: also when the session is somebody else's by now."""
        if counted is not True:
            self._c.emit(end)
        self._settled(call, answer, counted)

    def _settled(self, call: Call, answer: CallAnswer, _done: object) -> None:
        """One more thing is done, or owed: the tool has answered, so the agent gets the answer either way."""
        call.settling -= 1
        if call.stage is Stage.SETTLING and not call.settling:
            self._close(call, answer, journal=False)

    def _bump_private(self, prepared: PreparedCall) -> None:
        if prepared.private.writes:
            self._c.generations.bump(prepared.private.writes)
            self._speculations.written()

    def bump(self, prepared: PreparedCall, *, unsettled: bool = False) -> None:
        """Counts a write whose end nobody waits for."""
        self._bump_private(prepared)
        if prepared.shared.writes:
            self._c.emit(BumpShared(prepared.shared.writes, unsettled=unsettled))

    def remember(self, call: Call, result: ExecutionResult) -> None:
        """Keeps a read for later calls, where nothing speaks against it."""
        if not call.prepared.rememberable or result.tool_error or call.shared is None:
            return
        if call.policy_version != self._c.policy.version or self.being_written(call.prepared):
            return
        if any(value >= UNSETTLED for value in call.shared.values()):
            # Looked at anew, so that the next read is kept under what holds when it starts.
            self._c.emit(ReadShared(tuple(call.shared), self._c.token(self._look_again)))
            return
        entry = Remembered(result, call.private, call.shared, call.started_at)
        self._c.memo.put(call.prepared.identity, entry)

    def _look_again(self, answer: object) -> None:
        self._c.marks(answer)

    def being_written(self, prepared: PreparedCall) -> bool:
        """A write that runs, or may go on, may have changed what the call depends on: only a look at the tool tells.

        Generations count the start and the end of a write. What was read in between is no older than its start, and
        yet may be from before its effect.
        """
        depends = prepared.private.depends
        return self._c.lingering.touches(depends) or any(
            conflicts(depends, one.prepared.private.writes)
            for one in (*self._executions.values(), *(one.call for one in self._abandoned.values()))
            if one.prepared.private.writes
        )

    def _refuse(self, call: Call, failure: Failure) -> None:
        """It has not started, because something of the platform's own is away."""
        answer = call_answer(call, self._c.now, CallStatus.UNAVAILABLE, None, failure, Served.UNSPECIFIED)
        self._close(call, answer, journal=True)

    def abort(self, call: Call, status: CallStatus, failure: Failure) -> bool:
        """Stops the execution of a call. True where its end is under way by that, and not for others to tell."""
        writes = call.prepared.writes
        if self._executions.pop(call.second, None) is not None:
            self._c.emit(CancelExecution(call.second))
        if self._executions.pop(call.execution, None) is not None:
            self._c.emit(CancelExecution(call.execution, settle=writes))
            if writes:
                # It may still change something until it has really stopped: its write is counted then, once more.
                self._abandoned[call.execution] = _Abandoned(call, call.may_continue)
                call.may_continue = True
            if not call.prepared.repeatable:
                status = CallStatus.OUTCOME_UNKNOWN
        if not writes and call.prepared.repeatable:
            return False
        self._settle(call, status, None, failure)
        return True

    def restore(self, lingering: Mapping[CallId, AskedCall], closed: Mapping[CallId, Closed]) -> None:
        """Takes over writes of an earlier owner that may still take effect; `closed` has those that were answered."""
        self._earlier.add((key, one) for key, one in lingering.items() if key in closed and _was_stopped(closed[key]))
        shared: dict[str, None] = {}
        for key, asked in lingering.items():
            call = asked.prepared
            # What cannot be prepared any more did run once, and nobody knows what it wrote.
            private, public = (call.private.writes, call.shared.writes) if isinstance(call, PreparedCall) else _ANYTHING
            self._c.lingering.add(key, private)
            shared |= dict.fromkeys(public)
        if shared:
            self._c.emit(BumpShared(tuple(shared), unsettled=True))

    def release_all(self, calls: Iterable[Call]) -> None:
        """Another owner goes on with these calls: what it may repeat is stopped here, the rest is left alone."""
        for execution, call in self._executions.items():
            if call.prepared.repeatable:
                self._c.emit(CancelExecution(execution))
        for call in calls:
            if call.write and call.stage in (Stage.RUNNING, Stage.BACKING_OFF):
                # Said here, too: perhaps nobody comes to go on with the session.
                self._c.emit(_end_of(call, unsettled=True))
        self._executions.clear()


@dataclass(frozen=True, slots=True)
class _Abandoned:
    """A call whose execution was told to stop, and whether an earlier try of it may still take effect."""

    call: Call
    may_continue: bool


def _was_stopped(one: Closed) -> bool:
    return one.answer.failure is not None and one.answer.failure.reason in STOPPED


def _end_of(call: Call, *, unsettled: bool) -> BumpShared:
    """Counts the end of a call's shared write, and takes it off."""
    return BumpShared(call.prepared.shared.writes, unsettled=unsettled, write=call.write)
