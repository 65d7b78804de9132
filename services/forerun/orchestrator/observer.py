"""What a replica counts: totals for people, metrics for machines. All derived from ledger entries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from forerun.core.ledger import SECOND_WON, EntryKind, LedgerEntry, Totals
from forerun.core.outcomes import CallStatus, Served
from forerun.core.session import CallAnswer, Execute
from forerun.runtime import metrics_table as m
from forerun.runtime.metrics import Metrics
from forerun.runtime.tracing import Span, SpanName, Tracing, current_trace, use_trace


class Step:
    """One step of an agent as a span: from the start of its model request, or its calls, to the last answer.

    Args:
        metrics: Where its time goes.
        tracing: Where its span goes.
        session: The session.
        agent: Its agent.
    """

    def __init__(self, metrics: Metrics, tracing: Tracing, *, session: str, agent: str) -> None:
        self._metrics = metrics
        self._tracing = tracing
        self._attributes = {"gen_ai.conversation.id": session, "gen_ai.agent.name": agent}
        self._span: Span | None = None
        self._began_at = 0.0
        self._asked = False

    @property
    def context(self) -> str | None:
        """The trace context of what belongs to the step."""
        return self._span.context if self._span is not None else current_trace()

    def begin(self, now: float) -> None:
        """A model request starts."""
        self._close()
        self._span = self._tracing.start(SpanName.STEP, parent=current_trace(), attributes=self._attributes)
        self._began_at = now
        self._asked = False

    def ask(self, now: float) -> None:
        """The step's calls come."""
        if self._span is None:
            self.begin(now)
        self._asked = True

    def answered(self, now: float) -> None:
        """Nothing is open any more: a step that has asked is over."""
        if self._asked:
            self._metrics.observe(m.STEP_SECONDS, max(0.0, now - self._began_at))
            self._close()

    def _close(self) -> None:
        if self._span is not None:
            self._span.end()
        self._span, self._asked = None, False


class Observer:
    """Counts for all sessions of a replica.

    Args:
        metrics: Where metrics go.
        tracing: Where spans go.
        also: Called with each ledger entry.
    """

    def __init__(
        self, metrics: Metrics, tracing: Tracing, also: Callable[[LedgerEntry], None] = lambda _: None
    ) -> None:
        self._metrics = metrics
        self._tracing = tracing
        self._also = also
        self._totals: dict[str, Totals] = {}
        self._speculations: dict[str, Span] = {}

    def step(self, session: str, agent: str) -> Step:
        """The steps of one session."""
        return Step(self._metrics, self._tracing, session=session, agent=agent)

    def totals(self, tenant: str) -> Totals:
        """Counts of one tenant since start."""
        return self._totals.get(tenant) or Totals()

    def placed(self, waited_seconds: float) -> None:
        """An authoritative call was given a place."""
        self._metrics.observe(m.QUEUE_WAIT_SECONDS, waited_seconds, priority="authoritative")

    @contextmanager
    def execution(self, effect: Execute, step: str | None) -> Iterator[None]:
        """Counts and traces one execution, as the current task's trace.

        The span of a speculation is linked to the step that it was made for; it ends with its ledger line, when it is
        known whether it was of use.
        """
        mode = "speculative" if effect.speculative else "authoritative"
        self._metrics.add(m.TOOL_EXECUTIONS, mode=mode)
        if effect.speculative:
            self._metrics.add(m.SPECULATIONS_LAUNCHED, kind="tool")
            self._metrics.change(m.SPECULATIONS_OPEN, 1.0)
        span = self._tracing.start(
            SpanName.SPECULATION if effect.speculative else SpanName.CALL,
            parent=step,
            links=(step,) if effect.speculative else (),
            attributes={"gen_ai.tool.name": effect.prepared.tool, "forerun.speculative": effect.speculative},
        )
        if effect.speculative:
            self._speculations[effect.execution] = span
        use_trace(span.context)
        try:
            yield
        finally:
            if effect.speculative:
                self._metrics.change(m.SPECULATIONS_OPEN, -1.0)
            else:
                span.end()

    def refused(self, execution: str) -> None:
        """It never started: there was no speculation."""
        span = self._speculations.pop(execution, None)
        if span is not None:
            span.end()

    def answered(self, answer: CallAnswer) -> None:
        """A call was answered."""
        if answer.served is Served.UNSPECIFIED:
            return
        waited = max(0.0, answer.waited_seconds)
        self._metrics.observe(m.CALL_SECONDS, waited, served=answer.served)
        if answer.served is Served.DIRECT and answer.result is not None:
            self._metrics.observe(m.OVERHEAD_SECONDS, max(0.0, waited - answer.result.seconds), served=answer.served)
        elif answer.served in (Served.READY, Served.MEMO):
            self._metrics.observe(m.OVERHEAD_SECONDS, waited, served=answer.served)

    def recorded(self, tenant: str, entry: LedgerEntry) -> None:
        """An entry was written."""
        self._totals.setdefault(tenant, Totals()).add(entry)
        self._also(entry)
        if entry.kind is EntryKind.SPECULATION and entry.outcome is not None:
            span = self._speculations.pop(entry.speculation, None)
            if span is not None:
                span.set("forerun.outcome", entry.outcome.value)
                span.set("forerun.committed", entry.outcome.hit)
                span.end()
            self._metrics.add(m.SPECULATIONS, kind="tool", tool=entry.tool, outcome=entry.outcome)
            self._metrics.add(m.WASTED_SECONDS, entry.wasted_seconds, kind="tool")
            self._metrics.add(m.SAVED_ESTIMATED_SECONDS, entry.saved_seconds, kind="tool")
            self._metrics.add(m.GOVERNOR_DECISIONS, reason="launched", kind="tool")
            if not entry.outcome.hit:
                self._metrics.add(m.WASTE_CREDITS_SPENT)
                self._metrics.add(m.WASTED_COST, entry.cost_money, currency="usd")
        elif entry.kind is EntryKind.EARLY and entry.outcome is not None:
            self._metrics.add(m.EARLY_READS, outcome=entry.outcome)
        elif entry.kind is EntryKind.RACE:
            self._count_race(entry)
        elif entry.kind in (EntryKind.MODEL, EntryKind.CANDIDATE):
            # A request that belongs to no answer is a guess of the predictor: nobody asked for it either.
            self._count_request(entry, extra=entry.kind is EntryKind.CANDIDATE or not entry.answer)
        elif entry.kind is EntryKind.DECISION:
            self._metrics.add(m.GOVERNOR_DECISIONS, reason=entry.reason, kind="tool")
        elif entry.kind is EntryKind.CALL and entry.served is not None:
            self._count_call(entry)

    def _count_race(self, entry: LedgerEntry) -> None:
        winner = "second" if entry.reason == SECOND_WON else "first"
        self._metrics.add(m.RACES, tool=entry.tool, winner=winner)
        self._metrics.add(m.WASTED_SECONDS, entry.wasted_seconds, kind="race")
        if entry.explanation:
            self._metrics.add(m.RACES_DIFFERENT, tool=entry.tool)
        if entry.model:
            self._count_request(entry, extra=True)

    def _count_request(self, entry: LedgerEntry, *, extra: bool) -> None:
        mode = "extra" if extra else "authoritative"
        self._metrics.add(m.MODEL_REQUESTS, model=entry.model, mode=mode)
        self._metrics.add(m.MODEL_TOKENS, entry.input_tokens, model=entry.model, direction="input", mode=mode)
        self._metrics.add(m.MODEL_TOKENS, entry.output_tokens, model=entry.model, direction="output", mode=mode)
        self._metrics.add(m.MODEL_COST, entry.cost_money, currency="usd", mode=mode)
        if entry.kind is EntryKind.CANDIDATE:
            self._metrics.add(m.WASTED_SECONDS, entry.wasted_seconds, kind="candidate")

    def first_token(self, model: str, seconds: float) -> None:
        """The first token of a single answer is there."""
        self._metrics.observe(m.MODEL_FIRST_TOKEN_SECONDS, seconds, model=model)

    def answer(self, strategy: str) -> None:
        """An answer was given."""
        self._metrics.add(m.ANSWERS, strategy=strategy)

    def _count_call(self, entry: LedgerEntry) -> None:
        if entry.served is not None and entry.served is not Served.UNSPECIFIED:
            self._metrics.add(m.AUTHORITATIVE_CALLS, tool=entry.tool, served=entry.served)
        if entry.speculable:
            self._metrics.add(m.SPECULABLE_CALLS, tool=entry.tool)
        if entry.served is Served.MEMO:
            self._metrics.add(m.MEMO_HITS, tool=entry.tool)
        if entry.status is CallStatus.OUTCOME_UNKNOWN:
            self._metrics.add(m.OUTCOME_UNKNOWN)

    def earned(self, credits: float) -> None:
        """Calls have earned waste credits."""
        self._metrics.add(m.WASTE_CREDITS_EARNED, credits)

    def sessions(self, count: int) -> None:
        """How many sessions are open."""
        self._metrics.set(m.SESSIONS_OPEN, float(count))

    def ended(self, result: m.SessionResult) -> None:
        """A session has ended here."""
        self._metrics.add(m.SESSIONS, result=result)

    def sites(self, on: int, off: int) -> None:
        """How many call sites speculate, and how many were turned off."""
        self._metrics.set(m.CALL_SITES, float(on), state="on")
        self._metrics.set(m.CALL_SITES, float(off), state="off")

    def enabled(self, on: bool) -> None:
        """Speculation is switched on or off for all."""
        self._metrics.set(m.SPECULATION_ENABLED, 1.0 if on else 0.0)
