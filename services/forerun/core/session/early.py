"""Early issue: reads of a message that still streams start as soon as their arguments are complete.

It is no guess: the model has written the call. What may still happen is that the message is cut off, or that it asks
for something else in the end. So an early read is an execution ahead of its call like a speculation (recorded
generations, certified, committed to an identical call only, dropped without a trace otherwise), but with the agent's
own priority and outside the budget. A read that follows a write of its own message on which it may depend waits for the
message. One whose resource is written by anybody before it is asked for is stale by its generations.
"""

from collections.abc import Sequence

from forerun.core import limits
from forerun.core.candidates import Candidate
from forerun.core.contracts import Reason, is_barrier, may_speculate
from forerun.core.governor import Estimate
from forerun.core.order import BatchCall, Plan
from forerun.core.outcomes import Mode
from forerun.core.session.admission import remembered, taint_of
from forerun.core.session.context import Context
from forerun.core.session.failures import scoped
from forerun.core.session.model import AskedCall, PreparedCall
from forerun.core.session.speculated import Speculation
from forerun.core.session.speculation import Speculations

_CERTAIN = Estimate(lower_bound=1.0, seconds=0.0, value=0.0, cost=0.0, threshold=0.0)


class EarlyIssue:
    """The message that streams now, as far as it is known."""

    def __init__(self, context: Context, speculations: Speculations) -> None:
        self._c = context
        self._speculations = speculations
        self._turn = 0
        self._plan = Plan()
        self._issued = 0

    def partial(self, turn: int, calls: Sequence[AskedCall]) -> None:
        """Takes calls whose arguments are complete, and starts the safe reads among them."""
        if turn > self._turn:
            self._speculations.message_ended(turn - 1)
            self._turn, self._plan, self._issued = turn, Plan(), 0
        for asked in sorted(calls, key=lambda one: one.index):
            # Without a gap: a call that is not known yet may be a write that the next one has to wait for.
            if turn == self._turn and asked.index == len(self._plan) < limits.CALLS_PER_MESSAGE:
                self._take(asked)

    def ended(self, turn: int, asked: Sequence[AskedCall] = ()) -> None:
        """The message of that turn is over; its calls are asked for, and take what was issued for them."""
        if turn >= self._turn:
            self._turn, self._plan, self._issued = turn + 1, Plan(), 0
        wanted = {one.prepared.identity for one in asked if isinstance(one.prepared, PreparedCall)}
        self._speculations.message_ended(turn, wanted)

    def _take(self, asked: AskedCall) -> None:
        prepared = asked.prepared
        if not isinstance(prepared, PreparedCall):
            self._plan.place(BatchCall())
            return
        placement = self._plan.place(
            BatchCall(
                reads=scoped(prepared.private.reads, prepared.shared.reads),
                writes=scoped(prepared.private.writes, prepared.shared.writes),
                barrier=is_barrier(prepared.contract),
                same=prepared.identity if prepared.shareable else None,
            )
        )
        free = not placement.predecessors and placement.same_as is None
        if free and self._issued < limits.CALLS_IN_FLIGHT_PER_MESSAGE and self._may_start(prepared):
            self._issued += 1
            self._issue(asked, prepared)

    def _may_start(self, prepared: PreparedCall) -> bool:
        """A read that the policy lets run ahead, at no price, and whose arguments may go where it connects."""
        decision = may_speculate(prepared.contract)
        return (
            self._c.mode is Mode.EXACT
            and decision.allowed
            and decision.reason is not Reason.METERED
            and prepared.rememberable
            and not prepared.in_client
            and not self._speculations.knows(prepared)
            and not remembered(self._c, prepared)
            and not self._c.lingering.touches(prepared.private.depends)
            and not taint_of(self._c, prepared)
        )

    def _issue(self, asked: AskedCall, prepared: PreparedCall) -> None:
        self._speculations.launch(
            Speculation(
                id=self._c.execution_id(),
                prepared=prepared,
                candidate=Candidate(
                    tool=asked.tool,
                    arguments=asked.arguments,
                    probability=1.0,
                    evidence=0.0,
                    rank=0,
                    site="",
                    explanation="in the message that still streams",
                ),
                estimate=_CERTAIN,
                policy_version=self._c.policy.version,
                tainted_paths=(),
                money=0.0,
                turn=self._turn,
                propensity=0.0,
                early=True,
            )
        )
