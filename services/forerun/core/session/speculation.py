"""Speculations of one session: admitted, executed, certified, and closed exactly once."""

from collections.abc import Collection
from functools import partial

from forerun.core.contracts import staleness_seconds
from forerun.core.freshness import UNSETTLED, fresh
from forerun.core.governor import Refusal
from forerun.core.identity import Identity
from forerun.core.outcomes import CallStatus, Outcome
from forerun.core.session.admission import refuse
from forerun.core.session.context import Context, shared_marks
from forerun.core.session.effects import (
    CancelExecution,
    Certificate,
    Certify,
    DropFork,
    Execute,
    MergeFork,
    Promote,
    ReadShared,
)
from forerun.core.session.failures import provider_failed
from forerun.core.session.model import CallId, ExecutionResult, PreparedCall, fork_of
from forerun.core.session.speculated import UNCERTAIN, Committed, Speculation, Stage, Taken, ledger_entry


class Speculations:
    """Everything that runs ahead of one session."""

    def __init__(self, context: Context) -> None:
        self._c = context
        self._open: dict[str, Speculation] = {}
        self._by_identity: dict[object, Speculation] = {}
        self.turn = 0

    def __len__(self) -> int:
        return len(self._open)

    def knows(self, prepared: PreparedCall) -> bool:
        """Something is under way, or ready, for this very action."""
        return prepared.identity in self._by_identity

    def make_room(self) -> bool:
        """Gives up the oldest result that was not asked for in the message after it."""
        for speculation in self._open.values():
            if speculation.stage is Stage.READY and speculation.turn < self.turn:
                self.close(speculation, Outcome.MISS, "made room")
                return True
        return False

    # ------------------------------------------------------------ execution

    def launch(self, speculation: Speculation) -> None:
        """Starts an execution ahead of its call, under the generations of now."""
        self._open[speculation.id] = speculation
        self._by_identity[speculation.prepared.identity] = speculation
        marks = shared_marks(speculation.prepared)
        if marks:
            self._c.emit(ReadShared(marks, self._c.token(partial(self._shared_read, speculation))))
        else:
            self._start(speculation)

    def _shared_read(self, speculation: Speculation, answer: object) -> None:
        marks = self._c.marks(answer)
        if speculation.stage is Stage.CLOSED:
            return
        if marks is None:
            self._never_started(speculation, Refusal.NO_SLOT)
            return
        if any(value >= UNSETTLED for value in marks.values()):
            self._never_started(speculation, Refusal.BEING_WRITTEN)
            return
        speculation.shared = marks
        self._start(speculation)

    def _start(self, speculation: Speculation) -> None:
        prepared = speculation.prepared
        speculation.private = self._c.private_now(prepared)
        speculation.started_at = self._c.now
        speculation.stage = Stage.RUNNING
        self._c.emit(
            Execute(
                execution=speculation.id,
                prepared=prepared,
                speculative=not speculation.early,
                ahead=True,
                timeout_seconds=prepared.contract.timeout_seconds,
                fork=speculation.fork,
                merge_on_success=False,
                idempotency_key=speculation.id,
            )
        )

    def _never_started(self, speculation: Speculation, reason: Refusal) -> None:
        """Nothing was executed, so it was no speculation: the reservation returns, the decision is recorded."""
        self._forget(speculation)
        self._not_launched(speculation, reason)

    def finished(self, execution: str, result: ExecutionResult) -> bool:
        """Takes the end of an execution; False where it is none of ours."""
        speculation = self._open.get(execution)
        if speculation is None:
            return False
        if speculation.stage is not Stage.RUNNING:
            return True
        if result.no_slot or (result.not_started and not result.preempted):
            self._never_started(speculation, Refusal.NO_SLOT)
            return True
        self._stopped(speculation)
        failed = provider_failed(result)
        if failed is not None:
            breaker = self._c.health(speculation.prepared).breaker(speculative=not speculation.early)
            breaker.record(not failed, self._c.now)
        speculation.result = result
        speculation.stage = Stage.CERTIFYING
        prepared = speculation.prepared
        if result.preempted:
            self.close(speculation, Outcome.PREEMPTED, "authoritative work needed the slot")
        elif result.status is not CallStatus.OK:
            self.close(speculation, Outcome.FAILED, result.failure.reason if result.failure else result.status)
        elif result.tool_error and not prepared.uses_workspace:
            # A command's exit code is its answer; an error of a remote tool may be gone when it is really asked.
            self.close(speculation, Outcome.FAILED, "the tool reported an error")
        else:
            self._c.learn(prepared, result)
            self._certify(speculation, result)
        return True

    def _certify(self, speculation: Speculation, result: ExecutionResult) -> None:
        if speculation.shared:
            then = partial(self._certify_with, speculation, result)
            self._c.emit(ReadShared(tuple(speculation.shared), self._c.token(then)))
        else:
            self._certify_with(speculation, result, {})

    def _certify_with(self, speculation: Speculation, result: ExecutionResult, answer: object) -> None:
        marks = self._c.marks(answer)
        if speculation.stage is not Stage.CERTIFYING:
            return
        if marks is None:
            self.close(speculation, Outcome.FAILED, "shared generations cannot be read")
            return
        recorded = dict(speculation.private.marks) | {
            f"shared/{mark}": value for mark, value in speculation.shared.items()
        }
        current = {mark: self._c.generations.get(mark, 0) for mark in speculation.private.marks}
        current |= {f"shared/{mark}": marks.get(mark, 0) for mark in speculation.shared}
        self._c.emit(
            Certify(
                speculation=speculation.id,
                prepared=speculation.prepared,
                result=result,
                policy_version=speculation.policy_version,
                recorded=tuple(sorted(recorded.items())),
                current=tuple(sorted(current.items())),
                age_seconds=self._c.now - speculation.started_at,
                tainted_paths=speculation.tainted_paths,
                token=self._c.token(partial(self._certified, speculation)),
            )
        )

    def _certified(self, speculation: Speculation, answer: object) -> None:
        if speculation.stage is not Stage.CERTIFYING:
            return
        if not isinstance(answer, Certificate) or not answer.reachable:
            self.close(speculation, Outcome.FAILED, "the verifier cannot be reached")
        elif not answer.certified:
            self.close(speculation, Outcome.STALE, answer.reason)
        elif speculation.joined is not None:
            self._commit(speculation, Outcome.JOINED)
        else:
            speculation.stage = Stage.READY

    # ------------------------------------------------------------ the real call

    def take(self, prepared: PreparedCall, call: CallId, remaining_seconds: float, then: Taken) -> bool:
        """Lets a real call have a speculation's result; False where there is none that it could wait for.

        `then` is called once: with the committed result, or with None where the call has to be executed.
        """
        speculation = self._by_identity.get(prepared.identity)
        if speculation is None or speculation.joined is not None or speculation.stage is Stage.COMMITTING:
            return False
        if speculation.prepared.contract != prepared.contract:
            # What may be assumed of the tool has changed since.
            self.close(speculation, Outcome.STALE, "the contract changed")
            return False
        if not self._still_fresh(speculation):
            self.close(speculation, Outcome.STALE, "written since, or too old")
            return False
        if speculation.stage is Stage.STARTING:
            # It has not begun: the call does not wait for a place in the speculative queue.
            self._never_started(speculation, Refusal.NO_SLOT)
            return False
        speculation.joined, speculation.joined_at, speculation.call = then, self._c.now, call
        if speculation.stage is Stage.READY:
            self._commit(speculation, Outcome.READY)
        elif speculation.stage is Stage.RUNNING and not speculation.early:
            self._c.emit(Promote(speculation.id, remaining_seconds))
        return True

    def committing(self, call: CallId) -> bool:
        """A fork is being merged for this call: what comes of it is known soon, and it cannot be taken back."""
        return any(one.call == call and one.stage is Stage.COMMITTING for one in self._open.values())

    def leave(self, call: CallId) -> None:
        """The real call went away (cancelled, or its deadline passed): what it had joined is stopped."""
        for speculation in list(self._open.values()):
            if speculation.call == call:
                speculation.joined = None
                self.close(speculation, Outcome.CANCELLED, "the call that had joined went away")

    def _still_fresh(self, speculation: Speculation) -> bool:
        if speculation.policy_version != self._c.policy.version:
            return False
        age = self._c.now - speculation.started_at
        limit = staleness_seconds(speculation.prepared.contract)
        return fresh(speculation.private, self._c.generations, age, limit).fresh

    def _commit(self, speculation: Speculation, outcome: Outcome) -> None:
        if speculation.shared:
            speculation.stage = Stage.COMMITTING
            then = partial(self._commit_shared, speculation, outcome)
            self._c.emit(ReadShared(tuple(speculation.shared), self._c.token(then)))
        else:
            self._commit_private(speculation, outcome)

    def _commit_shared(self, speculation: Speculation, outcome: Outcome, answer: object) -> None:
        marks = self._c.marks(answer)
        if speculation.stage is not Stage.COMMITTING:
            return
        if marks is None or any(marks.get(mark, 0) != value for mark, value in speculation.shared.items()):
            self.close(speculation, Outcome.STALE, "a shared resource was written since")
        else:
            self._commit_private(speculation, outcome)

    def _commit_private(self, speculation: Speculation, outcome: Outcome) -> None:
        if not self._still_fresh(speculation):
            self.close(speculation, Outcome.STALE, "written since, or too old")
        elif speculation.fork:
            speculation.stage = Stage.COMMITTING
            # The merge is a write: counted before it starts, and by the call when it has ended.
            self._c.generations.bump(speculation.prepared.private.writes)
            self.written()
            then = partial(self._merged, speculation, outcome)
            assert speculation.call is not None
            self._c.emit(MergeFork(speculation.fork, fork_of(speculation.call), self._c.token(then)))
        else:
            self.close(speculation, outcome, "")

    def _merged(self, speculation: Speculation, outcome: Outcome, answer: object) -> None:
        if speculation.stage is not Stage.COMMITTING:
            return
        if answer is True:
            self.close(speculation, outcome, "")
        elif answer is False:
            self.close(speculation, Outcome.STALE, "the workspace changed since the fork")
        else:
            then, speculation.joined = speculation.joined, None
            self.close(speculation, Outcome.FAILED, "it is not known whether the fork was merged")
            if then is not None:
                then(UNCERTAIN)

    # ------------------------------------------------------------ the end

    def written(self) -> None:
        """Closes what can never be committed any more because something it depends on was written."""
        for speculation in list(self._open.values()):
            # One that is being committed, or that a call waits for, is judged when it is done.
            judged_later = speculation.joined is not None or speculation.stage in (Stage.STARTING, Stage.COMMITTING)
            if not judged_later and not fresh(speculation.private, self._c.generations, 0.0, None).fresh:
                self.close(speculation, Outcome.STALE, "written since")

    def message_ended(self, turn: int, wanted: Collection[Identity] = ()) -> None:
        """The message is complete, or gave way to another one: early issues that it does not want are of no use."""
        for speculation in list(self._open.values()):
            of_message = speculation.early and speculation.turn <= turn
            if of_message and speculation.joined is None and speculation.prepared.identity not in wanted:
                self.close(speculation, Outcome.MISS, "the message does not ask for it")

    def next_turn(self, turn: int) -> None:
        """A new message came: what was not asked for in many messages is given up."""
        self.turn = turn
        for speculation in list(self._open.values()):
            if speculation.stage is Stage.READY and turn - speculation.turn > self._c.policy.turns_kept:
                self.close(speculation, Outcome.MISS, "not asked for")

    def expire(self) -> None:
        """Gives up results that nobody asked for in time."""
        for speculation in list(self._open.values()):
            if speculation.stage is Stage.READY and self._c.now >= self._expires_at(speculation):
                self.close(speculation, Outcome.EXPIRED, "not asked for in time")

    def next_expiry(self) -> float | None:
        """When the next result expires."""
        times = [self._expires_at(one) for one in self._open.values() if one.stage is Stage.READY]
        return min(times, default=None)

    def _expires_at(self, speculation: Speculation) -> float:
        limit = staleness_seconds(speculation.prepared.contract)
        lifetime = self._c.policy.expiry_seconds if limit is None else min(limit, self._c.policy.expiry_seconds)
        return speculation.started_at + lifetime

    def stop(self, reason: str, *, ended: bool) -> None:
        """Closes everything: finished results as misses when the session ended, the rest as cancelled.

        A speculation that a real call waits for goes on: the call's need outlives the reason to speculate.
        """
        for speculation in list(self._open.values()):
            if speculation.joined is None:
                done = ended and speculation.stage is Stage.READY
                self.close(speculation, Outcome.MISS if done else Outcome.CANCELLED, reason)

    def close(self, speculation: Speculation, outcome: Outcome, reason: str) -> None:
        """Ends a speculation: budget, site, ledger, fork, and the call that waits for it. Once."""
        if speculation.stage is Stage.CLOSED:
            return
        stage = speculation.stage
        self._forget(speculation)
        if stage is Stage.STARTING:
            self._not_launched(speculation, Refusal.OFF)
            return
        if stage is Stage.RUNNING:
            self._stopped(speculation)
            self._c.emit(CancelExecution(speculation.id))
        if outcome.hit:
            if not speculation.early:
                self._c.purse.give_back(0.0)
        elif speculation.fork:
            self._c.emit(DropFork(speculation.fork))
        self._settle(speculation, outcome, reason)
        self._hand_over(speculation, outcome if outcome.hit else None)

    def _stopped(self, speculation: Speculation) -> None:
        if not speculation.early:
            self._c.purse.stopped()

    def _not_launched(self, speculation: Speculation, reason: Refusal) -> None:
        """The tool was not reached: what was reserved returns, and a call that waits is executed."""
        self._stopped(speculation)
        if not speculation.early:
            self._c.purse.give_back(speculation.money)
            refuse(self._c, speculation.candidate, speculation.estimate, reason, reserved=True)
        self._hand_over(speculation, None)

    def _settle(self, speculation: Speculation, outcome: Outcome, reason: str) -> None:
        result = speculation.result
        seconds = result.seconds if result is not None else self._c.now - speculation.started_at
        saved = 0.0
        if outcome.hit:
            saved = min(seconds, max(0.0, speculation.joined_at - speculation.started_at))
        prices = self._c.policy.prices
        spent = prices.slot_second_cost * speculation.candidate.prediction_seconds
        if not outcome.hit:
            spent += prices.slot_second_cost * seconds + speculation.money
        if outcome not in (Outcome.CANCELLED, Outcome.PREEMPTED) and not speculation.early:
            self._c.sites.learn(
                speculation.candidate.site,
                prices.lambda_per_second * saved - spent,
                probability=speculation.estimate.lower_bound,
                hit=outcome.hit,
            )
        audit = outcome.hit and speculation.prepared.auditable and self._sampled(speculation)
        entry = ledger_entry(speculation, outcome, reason, seconds=seconds, saved_seconds=saved, audit=audit)
        self._c.record(entry, prepared=speculation.prepared if audit else None)

    def _sampled(self, speculation: Speculation) -> bool:
        """In the audit sample, by hash of the identity and the execution: repeatable without a draw."""
        share = self._c.policy.audit_share
        return int(speculation.prepared.digest[:8], 16) % 10_000 < share * 10_000

    def _forget(self, speculation: Speculation) -> None:
        speculation.stage = Stage.CLOSED
        self._open.pop(speculation.id, None)
        if self._by_identity.get(speculation.prepared.identity) is speculation:
            del self._by_identity[speculation.prepared.identity]

    @staticmethod
    def _hand_over(speculation: Speculation, outcome: Outcome | None) -> None:
        then, speculation.joined = speculation.joined, None
        if then is None:
            return
        if outcome is None or speculation.result is None:
            then(None)
            return
        one = speculation
        then(Committed(speculation.result, outcome, one.private, one.shared, one.started_at, one.early))
