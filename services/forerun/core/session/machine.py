"""The session machine: inputs in, effects out. See the package's docstring."""

from collections.abc import Iterable, Mapping, Sequence

from forerun.core.ledger import LedgerEntry, Totals
from forerun.core.outcomes import Mode
from forerun.core.resources import ROOT
from forerun.core.session.call import Closed
from forerun.core.session.calls import Calls
from forerun.core.session.context import Context, Replica
from forerun.core.session.early import EarlyIssue
from forerun.core.session.effects import Append, Effect
from forerun.core.session.events import (
    AssistantMessage,
    ModelStarted,
    SessionClosed,
    SessionOpened,
    TaskOutcome,
    UserTurn,
)
from forerun.core.session.model import (
    AskedCall,
    CallId,
    ExecutionResult,
    Failure,
    Proposal,
    SessionFacts,
    SessionPolicy,
)
from forerun.core.session.proposals import Proposals
from forerun.core.session.speculation import Speculations
from forerun.core.sites import Sites

_AROUND: CallId = (0, 0)
"""Stands for calls that ran around the platform: turns of real ones begin at 1."""


class SessionMachine:
    """One session under one owner. Every method gives the effects to perform, in order.

    Times are monotonic seconds of whoever runs it. The machine never waits: `next_time` says when `tick` is due.
    """

    def __init__(
        self, facts: SessionFacts, policy: SessionPolicy, sites: Sites | None = None, replica: Replica | None = None
    ) -> None:
        self._c = Context(facts, policy, facts.mode, sites or Sites(), replica or Replica())
        self._speculations = Speculations(self._c)
        self._proposals = Proposals(self._c, self._speculations)
        self._early = EarlyIssue(self._c, self._speculations)
        self._calls = Calls(self._c, self._speculations)
        self._model_started_at: float | None = None
        self._asked_number = 0
        self._closed = False

    @property
    def totals(self) -> Totals:
        """Counts of this session under this owner."""
        return self._c.totals

    @property
    def mode(self) -> Mode:
        """The mode in force."""
        return self._c.mode

    @property
    def number(self) -> int:
        """Number of the last journal event."""
        return self._c.number

    @property
    def last_turn(self) -> int:
        """Highest turn so far."""
        return self._calls.last_turn

    @property
    def running(self) -> bool:
        """Some authoritative call is not answered yet."""
        return self._calls.unanswered > 0

    @property
    def unanswered(self) -> int:
        """Authoritative calls that are not answered yet."""
        return self._calls.unanswered

    def answered(self, turn: int) -> tuple[int, ...]:
        """The answered calls of a message by index, in the order of their answers, also those of earlier owners."""
        return self._calls.answered(turn)

    def calls_of(self, turn: int) -> tuple[int, ...]:
        """The calls of a message that were asked for, by index, also those of earlier owners."""
        return self._calls.of(turn)

    @property
    def credits_earned(self) -> float:
        """Waste credits that this session's calls have earned so far."""
        return self._c.purse.earned

    # ------------------------------------------------------------ inputs of the agent

    def open(self, event: SessionOpened, now: float) -> list[Effect]:
        """The session begins."""
        self._c.now = now
        self._c.append(event)
        return self._drain()

    def restore(
        self,
        event: SessionOpened,
        *,
        number: int,
        last_turn: int,
        closed: Mapping[CallId, Closed],
        unknown: Mapping[CallId, AskedCall],
        lingering: Mapping[CallId, AskedCall],
        journalled: Iterable[CallId],
        user_texts: Iterable[str],
        now: float,
    ) -> list[Effect]:
        """The session goes on under a new owner, from what the journal says.

        Args:
            event: The take-over, for the journal.
            number: Number of the journal's last event.
            last_turn: See `Calls.restore`.
            closed: See `Calls.restore`.
            unknown: See `Calls.restore`.
            lingering: See `Calls.restore`.
            journalled: See `Calls.restore`.
            user_texts: What the user said so far.
            now: The time.
        """
        self._c.now = now
        self._c.number = number
        for text in user_texts:
            self._c.trusted.add(text)
        self._c.purse.empty()
        self._c.append(event)
        self._calls.restore(last_turn, closed, unknown, lingering, journalled)
        return self._drain()

    def user_turn(self, text: str, now: float, *, event_id: str = "") -> list[Effect]:
        """The user said something."""
        self._c.now = now
        self._c.trusted.add(text)
        self._c.append(UserTurn(text), event_id=event_id)
        return self._drain()

    def model_started(self, turn: int, now: float, *, event_id: str = "") -> list[Effect]:
        """A model request was started: until its message is complete there is time to hide something."""
        self._c.now = now
        self._model_started_at = now
        self._early.ended(turn - 1)
        self._c.append(ModelStarted(turn), event_id=event_id)
        return self._drain()

    def assistant_message(self, turn: int, text: str, now: float, *, event_id: str = "") -> list[Effect]:
        """The model's message is complete, without its calls."""
        self._c.now = now
        self._model_ended()
        self._c.append(AssistantMessage(turn, text), event_id=event_id)
        return self._drain()

    def task_outcome(self, reward: float, label: str, now: float, *, event_id: str = "") -> list[Effect]:
        """The agent reports how its task ended."""
        self._c.now = now
        self._c.append(TaskOutcome(reward, label), event_id=event_id)
        return self._drain()

    def asked(
        self, turn: int, calls: Sequence[AskedCall], now: float, *, timeout_seconds: float | None = None
    ) -> list[Effect]:
        """The agent asks for the calls of one message."""
        self._c.now = now
        self._model_ended()
        self._asked_number = self._c.number + 1
        self._calls.ask(turn, tuple(calls), timeout_seconds)
        self._early.ended(turn, calls)
        return self._drain()

    def shared(self, turn: int, asked: AskedCall, leader: int, now: float) -> list[Effect]:
        """A call of a message has the outcome of another one, by its index, and is not to be executed."""
        self._c.now = now
        self._calls.share(turn, asked, leader)
        return self._drain()

    def partial(self, turn: int, calls: Sequence[AskedCall], now: float) -> list[Effect]:
        """The model's message still streams: these of its calls have their arguments complete."""
        self._c.now = now
        if turn > self._calls.last_turn and not self._closed:
            self._early.partial(turn, calls)
        return self._drain()

    def cancel(self, call: CallId, now: float) -> list[Effect]:
        """The agent takes a call back."""
        self._c.now = now
        self._calls.cancel(call)
        return self._drain()

    # ------------------------------------------------------------ inputs of the platform

    def candidates(
        self, proposals: Iterable[Proposal], *, based_on: int, expected_model_seconds: float | None, now: float
    ) -> list[Effect]:
        """The predictor's candidates for the next message. Ones that are based on an older message are too late."""
        self._c.now = now
        if self._c.mode is Mode.OFF or self._closed or based_on < self._asked_number:
            return self._drain()
        expected = self._c.timing.model if expected_model_seconds is None else expected_model_seconds
        hidden = None
        if expected is not None:
            elapsed = 0.0 if self._model_started_at is None else now - self._model_started_at
            hidden = max(0.0, expected - elapsed)
        self._proposals.propose(proposals, hidden)
        return self._drain()

    def guessed(self, entry: LedgerEntry, now: float) -> list[Effect]:
        """The predictor asked a small model about this session; what that cost is booked, whatever came of it."""
        self._c.now = now
        self._c.record(entry)
        return self._drain()

    def execution_finished(self, execution: str, result: ExecutionResult, now: float) -> list[Effect]:
        """An execution has ended. Ends of executions that nobody waits for any more are ignored."""
        self._c.now = now
        if not self._calls.finished(execution, result):
            self._speculations.finished(execution, result)
        return self._drain()

    def resume(self, token: int, answer: object, now: float) -> list[Effect]:
        """Gives the answer to an effect with a token. Each token is answered once; others are ignored."""
        self._c.now = now
        then = self._c.waiting.pop(token, None)
        if then is not None:
            then(answer)
        return self._drain()

    def tick(self, now: float) -> list[Effect]:
        """Time has passed."""
        self._c.now = now
        self._calls.tick()
        self._speculations.expire()
        return self._drain()

    def next_time(self) -> float | None:
        """When `tick` has something to do, or None."""
        times = [time for time in (self._calls.next_time(), self._speculations.next_expiry()) if time is not None]
        return min(times, default=None)

    def set_mode(self, mode: Mode, reason: str, now: float) -> list[Effect]:
        """Lowers or restores the mode, for example by the kill switch."""
        self._c.now = now
        if mode is not self._c.mode:
            self._c.mode = mode
            if mode is not Mode.EXACT:
                self._speculations.stop(reason, ended=False)
                self._c.memo.clear()
        return self._drain()

    def wrote_directly(self, now: float, *, unsettled: bool) -> list[Effect]:
        """The agent ran calls around the platform, and they may have written anything: nothing read before counts.

        What other sessions share has to be counted before the agent is heard again, by whoever runs the machine.

        Args:
            now: The time.
            unsettled: Some may still take effect: nothing of this session is answered from what is known any more.
        """
        self._c.now = now
        if unsettled:
            self._c.lingering.add(_AROUND, (ROOT,))
        self._c.generations.bump((ROOT,))
        self._speculations.written()
        return self._drain()

    def set_policy(self, policy: SessionPolicy, now: float) -> list[Effect]:
        """Another version of the policy is in force: nothing of the old one is committed any more."""
        self._c.now = now
        if policy.version != self._c.policy.version:
            self._speculations.stop("the policy changed", ended=False)
            self._c.memo.clear()
            self._c.policy = policy
            self._c.purse.adopt(policy.limits)
        return self._drain()

    def close(self, reason: str, now: float) -> list[Effect]:
        """The session ends: open calls are cancelled, speculations are closed. May be repeated."""
        self._c.now = now
        if not self._closed:
            self._closed = True
            self._calls.cancel_all(Failure("SESSION_ENDED", "the session has ended"))
            self._speculations.stop(reason, ended=True)
            self._c.append(SessionClosed(reason))
        return self._drain()

    def lose(self, reason: str, now: float) -> list[Effect]:
        """Another owner took over: speculations are lost, calls are the new owner's, nothing is written any more."""
        self._c.now = now
        self._closed = True
        self._calls.release_all()
        self._speculations.stop(reason, ended=False)
        return [effect for effect in self._drain() if not isinstance(effect, Append)]

    def _model_ended(self) -> None:
        if self._model_started_at is not None:
            self._c.timing.model_step(self._c.now - self._model_started_at)
            self._model_started_at = None

    def _drain(self) -> list[Effect]:
        effects, self._c.effects = self._c.effects, []
        return effects
