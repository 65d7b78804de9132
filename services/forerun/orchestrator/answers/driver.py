"""Answers of models for agents: what the policy allows is decided, requests are sent, and the ledger gets its lines."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from forerun.core.answers import (
    Beam,
    BestOf,
    Decided,
    End,
    Gain,
    Gains,
    Limit,
    Report,
    Spending,
    Terms,
    Worth,
    better,
    verdict,
)
from forerun.core.ledger import LedgerEntry
from forerun.core.outcomes import Mode
from forerun.core.tokens import Usage
from forerun.orchestrator.answers.books import entries
from forerun.orchestrator.answers.jobs import Job, Purpose, Sink
from forerun.orchestrator.answers.judging import judge_request, verdict_request
from forerun.orchestrator.answers.pricing import price_of, price_of_text
from forerun.orchestrator.answers.search import Search, Verifier
from forerun.orchestrator.answers.wanted import CandidatesWanted, Judge, Votes, Wanted
from forerun.orchestrator.ledger import Outbox
from forerun.orchestrator.observer import Observer
from forerun.orchestrator.policies import PolicySource
from forerun.orchestrator.records import EventContext, ledger_line
from forerun.runtime import subjects
from forerun.runtime.auth import Caller
from forerun.runtime.clock import Clock
from forerun.runtime.errors import ErrorReason, ForerunError, InvalidArgument, ResourceExhausted, Unavailable
from forerun.runtime.ids import Ids
from forerun.runtime.models.catalogue import Model
from forerun.runtime.models.models import CallTerms, Models
from forerun.runtime.models.port import FinishReason, ModelRequest, ToolCall
from forerun.runtime.policy import Policy
from forerun.runtime.switch import Switch

_BYTES_A_TOKEN: Final = 4
"""For the price of reading an answer that is not there yet."""


class Listener(Verifier, Protocol):
    """Who waits for the answer."""

    async def delta(self, text: str) -> None:
        """A piece of a single answer."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An answer, what it cost and why it is this one.

    Attributes:
        id: Its id in the ledger.
        text: Its text.
        tool_calls: The calls that it asks for.
        reason: Why its generation has ended.
        provider: Who has generated it.
        usage: Tokens of all requests.
        cost: Money of all requests.
        cost_of_one: Of this, what one answer alone would have cost.
        why: Why this one.
        reports: How the candidates fared; empty for a single answer.
        races: Requests that had a second attempt.
        limited_by: Why fewer candidates than asked for.
        approximate: Another model has answered, and the one that was asked for agreed.
    """

    id: str
    text: str
    tool_calls: tuple[ToolCall, ...]
    reason: FinishReason
    provider: str
    usage: Usage
    cost: float
    cost_of_one: float
    why: str
    reports: tuple[Report, ...] = ()
    races: int = 0
    limited_by: Limit = Limit.NONE
    approximate: bool = False


@dataclass(slots=True)
class _Books:
    """The requests of one answer, until they are in the ledger."""

    id: str
    caller: Caller
    wanted: Wanted
    policy: Policy
    jobs: list[Job] = field(default_factory=list)
    reports: Mapping[int, Report] = field(default_factory=dict)
    strategy: str = "single"
    answered: bool = False


@dataclass(slots=True, kw_only=True)
class Answering:
    """Gives answers.

    Attributes:
        models: The models.
        policies: What is allowed.
        switch: The kill switch.
        observer: Counts.
        outbox: Takes ledger lines.
        clock: For the record.
        ids: Makes ids.
    """

    models: Models
    policies: PolicySource
    switch: Switch
    observer: Observer
    outbox: Outbox
    clock: Clock
    ids: Ids
    _gains: Gains = field(default_factory=Gains)

    async def answer(self, caller: Caller, wanted: Wanted, listener: Listener) -> Answer:
        """An answer. Cancelling this stops all of its requests, which are in the ledger all the same.

        Raises:
            NotFound: no model of this name is there for the tenant.
            ResourceExhausted: the price cap does not allow even one candidate, or a provider limits its rate.
            ForerunError: no provider has answered.
        """
        policy = self.policies.current.choose(caller.tenant, wanted.agent)
        model = self.models.find(caller.tenant, wanted.model)
        books = _Books(self.ids.uuid7(), caller, wanted, policy)
        limit = self._limit(caller, policy, wanted)
        loop = asyncio.get_running_loop()
        terms = CallTerms(
            repeatable=not wanted.once,
            races=limit is not Limit.SWITCHED_OFF,
            deadline=math.inf if wanted.timeout_seconds is None else loop.time() + wanted.timeout_seconds,
            second_worth=policy.session.prices.lambda_per_second,
            alpha=policy.session.prices.alpha,
        )
        try:
            small = self._drafting(books, model, limit)
            if small is not None:
                answer = await self._approximate(books, small, model, terms, listener)
            elif wanted.candidates is None or limit is not Limit.NONE:
                asked = wanted.candidates is not None
                terms = (
                    terms if wanted.candidates is None else _capped(terms, model, wanted, wanted.candidates.max_cost)
                )
                answer = await self._single(books, model, terms, listener.delta, limit if asked else Limit.NONE)
            else:
                answer = await self._search(books, wanted.candidates, model, terms, listener)
            books.answered = True
            return answer
        finally:
            self._close(books)

    def _limit(self, caller: Caller, policy: Policy, wanted: Wanted) -> Limit:
        if self.switch.off(caller.tenant) is not None or policy.mode is Mode.OFF:
            return Limit.SWITCHED_OFF
        if wanted.once:
            return Limit.ONCE
        return Limit.NONE if policy.answers.on else Limit.OFF

    # ------------------------------------------------------------ one answer

    async def _single(self, books: _Books, model: Model, terms: CallTerms, sink: Sink, limit: Limit) -> Answer:
        job = Job(self.models.call(model, books.wanted.request, terms), model.name, Purpose.SINGLE)
        books.jobs.append(job)
        began = asyncio.get_running_loop().time()
        first = True

        async def told(text: str) -> None:
            nonlocal first
            if first:
                self.observer.first_token(model.name, asyncio.get_running_loop().time() - began)
                first = False
            await sink(text)

        await job.run(told)
        finished = job.message.finished
        return Answer(
            id=books.id, text=job.text, tool_calls=job.message.tool_calls,
            reason=FinishReason.OTHER if finished is None else finished.reason, provider=job.provider,
            usage=_usage(books.jobs), cost=job.cost, cost_of_one=_cost_of_one(job),
            why="the only one", races=int(job.call.raced), limited_by=limit,
        )  # fmt: skip

    # ------------------------------------------------------------ approximate answers

    def _drafting(self, books: _Books, model: Model, limit: Limit) -> Model | None:
        """The model that answers in place of the one that was asked for; None where answers are exact."""
        wanted, policy = books.wanted, books.policy.answers
        if not policy.drafted_by or policy.drafted_by == model.name or wanted.candidates is not None:
            return None
        if limit in (Limit.SWITCHED_OFF, Limit.ONCE):
            return None
        small = self.models.find(books.caller.tenant, policy.drafted_by)
        spending = Spending(policy.max_cost, Worth())
        longest = " " * _BYTES_A_TOKEN * small.providers[0].most_output(wanted.request.max_output_tokens)
        prices = (
            price_of(small, wanted.request),
            price_of(model, verdict_request(wanted.request, longest, ())),
            price_of(model, wanted.request),
        )
        fits = all(spending.reserve("answer", number, price) for number, price in enumerate(prices))
        return small if fits else None

    async def _approximate(
        self, books: _Books, small: Model, model: Model, terms: CallTerms, listener: Listener
    ) -> Answer:
        """The small model decides, the one that was asked for checks; without its yes it answers itself."""
        books.strategy = "approximate"
        extra = replace(terms, speculative=True, races=False)
        draft = self._job(books, small, books.wanted.request, extra, Purpose.DRAFT)
        agreed = False
        with contextlib.suppress(ForerunError):
            await draft.run()
            asked = verdict_request(books.wanted.request, draft.text, draft.message.tool_calls)
            judge = self._job(books, model, asked, extra, Purpose.JUDGE)
            await judge.run()
            agreed = draft.ended and verdict(judge.text)
        end = End.CHOSEN if agreed else End.BEATEN if draft.ended else End.FAILED
        books.reports = {0: Report(0, end, None, draft.cost)}
        if not agreed:
            answer = await self._single(books, model, terms, listener.delta, Limit.NONE)
            why = f"{model.name} itself: it did not agree with {small.name}"
            return replace(answer, cost=_cost(books.jobs), why=why)
        finished = draft.message.finished
        if draft.text:
            await listener.delta(draft.text)
        return Answer(
            id=books.id, text=draft.text, tool_calls=draft.message.tool_calls,
            reason=FinishReason.OTHER if finished is None else finished.reason, provider=draft.provider,
            usage=_usage(books.jobs), cost=_cost(books.jobs),
            cost_of_one=price_of_text(model.providers[0], books.wanted.request, draft.text),
            why=f"{small.name} answered, {model.name} agreed", approximate=True,
        )  # fmt: skip

    def _job(self, books: _Books, model: Model, request: ModelRequest, terms: CallTerms, purpose: Purpose) -> Job:
        job = Job(self.models.call(model, request, terms), model.name, purpose)
        books.jobs.append(job)
        return job

    # ------------------------------------------------------------ several candidates

    async def _search(
        self, books: _Books, candidates: CandidatesWanted, model: Model, terms: CallTerms, listener: Listener
    ) -> Answer:
        wanted, policy = books.wanted, books.policy
        judge = model
        if isinstance(candidates.scorer, Judge) and candidates.scorer.model:
            judge = self.models.find(books.caller.tenant, candidates.scorer.model)
        gain = self._gains.of(books.caller.tenant, wanted.agent, model.name, policy.answers.expected_gain)
        count = min(candidates.count, policy.answers.max_candidates)
        books.strategy = "best_of" if candidates.beam is None else "beam"
        search = Search(
            models=self.models, model=model, judge=judge, wanted=candidates, request=wanted.request,
            # What other candidates hedge already needs no second attempt.
            terms=replace(terms, races=False),
            machine=_machine(candidates, count, policy, model, judge, wanted, gain),
            verifier=listener, deadline=terms.deadline, jobs=books.jobs,
            allowed=lambda: self.switch.off(books.caller.tenant) is None,
        )  # fmt: skip
        decided = await search.run()
        books.reports = {one.candidate: one for one in decided.reports}
        _learn(gain, search, decided)
        if decided.chosen is None:
            raise _no_candidate(search, decided)
        piece = search.pieces[decided.chosen]
        limited = decided.limited_by
        if limited is Limit.NONE and count < candidates.count:
            limited = Limit.COUNT
        return Answer(
            id=books.id, text=piece.text, tool_calls=piece.tool_calls, reason=piece.reason,
            provider=piece.job.provider, usage=_usage(books.jobs), cost=decided.cost,
            cost_of_one=_cost_alone(search, piece.text), why=decided.why, reports=decided.reports,
            races=sum(job.call.raced for job in books.jobs), limited_by=limited,
        )  # fmt: skip

    # ------------------------------------------------------------ the ledger

    def _close(self, books: _Books) -> None:
        """Writes the lines, also of an answer that failed or was cancelled. All of its requests have ended."""
        for entry in entries(books.id, books.jobs, books.reports):
            self.observer.recorded(books.caller.tenant, entry)
            self._publish(books, entry)
        if books.answered:
            self.observer.answer(books.strategy)

    def _publish(self, books: _Books, entry: LedgerEntry) -> None:
        caller, wanted = books.caller, books.wanted
        context = EventContext(
            tenant=caller.tenant, principal=caller.principal, credential_scope=caller.credential_scope,
            agent=wanted.agent, session=wanted.session, epoch=0, clock=self.clock, ids=self.ids,
        )  # fmt: skip
        line = ledger_line(context, books.policy.label, books.policy.mode, entry)
        subject = subjects.ledger(caller.tenant, wanted.session or books.id)
        self.outbox.put(subject, line.SerializeToString(deterministic=True), line.id)


def _machine(
    candidates: CandidatesWanted, count: int, policy: Policy, model: Model, judge: Model, wanted: Wanted, gain: Gain
) -> BestOf | Beam:
    request = wanted.request
    known = gain.output_tokens or None
    terms = Terms(
        count=count,
        at_once=candidates.at_once,
        stop_at=candidates.stop_at,
        max_cost=min(candidates.max_cost, policy.answers.max_cost),
        worth=Worth(policy.answers.worth, gain, policy.session.prices.alpha),
        generate=price_of(model, request, known_output=known),
    )
    if isinstance(candidates.scorer, Judge):
        # Of an answer that is not there yet; what is reserved is the price with it.
        terms = replace(terms, score=price_of(judge, judge_request(request, "", candidates.scorer.criterion)))
    if candidates.beam is None:
        return BestOf(terms, votes=isinstance(candidates.scorer, Votes))
    shape = candidates.beam
    if not any(one.continues for one in model.providers):
        raise InvalidArgument(
            ErrorReason.ARGUMENT_INVALID,
            f"beam search needs a provider of {model.name} that `continues`; see its providers in the policy file",
            metadata={"field": "candidates.beam", "model": model.name},
        )
    grown = shape.steps * shape.step_tokens
    piece = replace(request, max_output_tokens=min(shape.step_tokens, request.max_output_tokens or shape.step_tokens))
    terms = replace(terms, generate=price_of(model, piece, known_output=known, grows_by=grown))
    return Beam(terms, shape.expand, shape.steps, price_of(model, request, known_output=known, grows_by=grown))


def _learn(gain: Gain, search: Search, decided: Decided) -> None:
    if not isinstance(search.machine, Beam):
        gain.observe(*better(decided.reports))
    finished = [job.message.finished for job in search.jobs if job.purpose is Purpose.CANDIDATE]
    for one in finished:
        if one is not None:
            gain.length(one.usage.output_tokens)


def _capped(terms: CallTerms, model: Model, wanted: Wanted, max_cost: float) -> CallTerms:
    """Where several candidates were asked for and only one answer is allowed, it keeps to their cap.

    Raises:
        ResourceExhausted: it may cost more.
    """
    if math.isinf(max_cost):
        return terms
    spending, price = Spending(max_cost, Worth()), price_of(model, wanted.request)
    if not spending.reserve("answer", 0, price):
        raise _too_dear()
    return replace(terms, races=False, affords=lambda: spending.reserve("answer", 0, price))


def _too_dear() -> ResourceExhausted:
    return ResourceExhausted(
        ErrorReason.BUDGET_EXHAUSTED,
        "the price cap (max_cost) does not allow even one candidate at the price that it may have at most; raise "
        "it, or lower max_output_tokens",
        metadata={"limit": "max_cost"},
    )


def _no_candidate(search: Search, decided: Decided) -> ForerunError:
    """Why there is no answer."""
    if search.errors:
        return search.errors[min(search.errors)]
    if decided.limited_by is Limit.PRICE:
        return _too_dear()
    return Unavailable(ErrorReason.MODEL_UNAVAILABLE, "no candidate was there before the time was over")


def _cost(jobs: Sequence[Job]) -> float:
    return sum(job.cost for job in jobs)


def _usage(jobs: Sequence[Job]) -> Usage:
    total = Usage()
    for job in jobs:
        for bill in job.bills():
            total += bill.usage
    return total


def _cost_of_one(job: Job) -> float:
    return next((bill.money for bill in job.bills() if bill.attempt is job.call.answered), 0.0)


def _cost_alone(search: Search, text: str) -> float:
    """What the first candidate has cost; of a beam search, about what this text would have cost in one piece."""
    first = search.jobs[0]
    if isinstance(search.machine, Beam):
        return price_of_text(search.model.providers[0], search.request, text)
    return _cost_of_one(first) or price_of_text(search.model.providers[0], search.request, text)
