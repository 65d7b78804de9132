"""Performs the search for the best of several candidates: what the machine decides, with requests and scorers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from forerun.core.answers import (
    Beam,
    BestOf,
    Decided,
    Generate,
    Limit,
    Price,
    Rules,
    Score,
    Step,
    Stop,
    judgement,
    vote,
)
from forerun.core.tokens import Usage
from forerun.orchestrator.answers.jobs import Job, Purpose
from forerun.orchestrator.answers.judging import judge_request
from forerun.orchestrator.answers.pricing import price_of
from forerun.orchestrator.answers.wanted import CandidatesWanted, ClientVerifier, Judge, Votes
from forerun.runtime.errors import ForerunError
from forerun.runtime.models.calling import ModelCall
from forerun.runtime.models.catalogue import Model
from forerun.runtime.models.models import CallTerms, Models
from forerun.runtime.models.port import FinishReason, Message, ModelRequest, ToolCall

_STOP_SECONDS: Final = 2.0
_LOOK_SECONDS: Final = 0.25
"""The kill switch is looked at so often: it has to be followed within a second."""

Happened = Callable[[], list[Step]]
"""Tells the machine what has come of a piece of work. Called in the search's own loop: one thing after another."""


class Verifier(Protocol):
    """The client's own verifier."""

    async def score(self, candidate: int, text: str, tool_calls: Sequence[ToolCall]) -> float | None:
        """Its score of a candidate; None where it has none."""
        ...


@dataclass(frozen=True, slots=True)
class Piece:
    """A candidate, or a beginning of one.

    Attributes:
        text: All of its text.
        tool_calls: The calls that it asks for.
        reason: Why its generation has ended.
        job: The request that gave its last piece.
        tokens: Generated tokens of all its pieces.
    """

    text: str
    tool_calls: tuple[ToolCall, ...]
    reason: FinishReason
    job: Job
    tokens: int

    @property
    def key(self) -> str:
        """Equal for candidates that say exactly the same."""
        return self.text + json.dumps([[one.name, one.arguments] for one in self.tool_calls])


@dataclass(slots=True)
class Search:
    """One search.

    Attributes:
        models: Sends requests.
        model: The model that answers.
        judge: The model that judges, where one does.
        wanted: How candidates are generated and compared.
        request: The request.
        terms: What holds for the first candidate's request.
        machine: Decides.
        verifier: The client's own.
        deadline: When what is there is taken, on the loop's clock.
        allowed: More than one answer is still allowed.
        jobs: All requests so far.
        pieces: All candidates that are there.
    """

    models: Models
    model: Model
    judge: Model
    wanted: CandidatesWanted
    request: ModelRequest
    terms: CallTerms
    machine: BestOf | Beam
    verifier: Verifier
    deadline: float
    allowed: Callable[[], bool]
    jobs: list[Job] = field(default_factory=list)
    pieces: dict[int, Piece] = field(default_factory=dict)
    errors: dict[int, ForerunError] = field(default_factory=dict)
    _decided: Decided | None = None
    _open: dict[int, Job] = field(default_factory=dict)
    _prompt: Usage | None = None
    _tasks: dict[int, asyncio.Task[Happened]] = field(default_factory=dict)
    _ended: asyncio.Queue[tuple[int, asyncio.Task[Happened]]] = field(default_factory=asyncio.Queue)
    _now: Callable[[], float] = field(default_factory=lambda: asyncio.get_running_loop().time)

    async def run(self) -> Decided:
        """Searches to the end. Whatever ends it, nothing of it runs on."""
        try:
            self._perform(self.machine.begin(self._now()))
            while self._decided is None:
                await self._step()
            return self._decided
        finally:
            await self._stop_all()

    async def _step(self) -> None:
        """Waits for the next thing that happens and performs what follows from it."""
        if not self.allowed():
            self._perform(self.machine.forbid(Limit.SWITCHED_OFF))
        if self._decided is not None:
            return
        try:
            async with asyncio.timeout_at(min(self.machine.next_time(), self.deadline, self._now() + _LOOK_SECONDS)):
                candidate, task = await self._ended.get()
        except TimeoutError:
            now = self._now()
            if now >= self.deadline:
                self.deadline = math.inf
                self._perform(self.machine.expire())
            self._perform(self.machine.tick(now))
            return
        if self._tasks.get(candidate) is task:
            del self._tasks[candidate]
        if task.cancelled():
            self._perform(self.machine.stopped(candidate, self._unbooked(candidate)))
        else:
            self._perform(task.result()())

    def _perform(self, steps: Sequence[Step]) -> None:
        for step in steps:
            match step:
                case Generate():
                    self._spawn(step.candidate, self._generate(step))
                case Score(candidate):
                    self._spawn(candidate, self._score(candidate))
                case Stop(candidate):
                    self._tasks[candidate].cancel()
                case Decided():
                    self._decided = step

    def _spawn(self, candidate: int, work: Coroutine[None, None, Happened]) -> None:
        task = asyncio.create_task(work, name=f"candidate-{candidate}")
        self._tasks[candidate] = task
        task.add_done_callback(lambda done: self._ended.put_nowait((candidate, done)))

    async def _stop_all(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_STOP_SECONDS)

    # ------------------------------------------------------------ money

    def _job(self, call: ModelCall, model: Model, purpose: Purpose, candidate: int, cut: str = "") -> Job:
        job = Job(call, model.name, purpose, candidate, cut)
        self.jobs.append(job)
        self._open[candidate] = job
        return job

    def _unbooked(self, candidate: int) -> float:
        """The money of the request that is under way for a candidate, or has just ended; told once."""
        job = self._open.pop(candidate, None)
        if job is None:
            return 0.0
        if job.purpose is Purpose.CANDIDATE and job.call.request.messages == self.request.messages:
            if job.message.finished is not None:
                self._prompt = job.message.finished.usage
            job.call.known = self._prompt
        return job.cost

    # ------------------------------------------------------------ generation

    async def _generate(self, step: Generate) -> Happened:
        candidate = step.candidate
        parent = self.pieces.get(step.parent) if step.parent is not None else None
        request = self._request_of(step, parent)
        shape = self.wanted.beam
        cut = shape.delimiter if shape is not None and not step.whole else ""
        call = self.models.call(self.model, request, self._terms_of(step))
        job = self._job(call, self.model, Purpose.CANDIDATE, candidate, cut)
        try:
            await job.run()
        except ForerunError as error:
            self.errors[candidate], reason = error, error.reason
            return lambda: self.machine.failed(candidate, reason, self._unbooked(candidate), self._now())
        finished = job.message.finished
        said, tokens = ("", 0) if parent is None else (parent.text, parent.tokens)
        piece = self.pieces[candidate] = Piece(
            said + job.text, job.message.tool_calls,
            finished.reason if finished is not None else FinishReason.LENGTH, job, tokens + job.output_tokens,
        )  # fmt: skip
        full = self.request.max_output_tokens is not None and piece.tokens >= self.request.max_output_tokens
        return lambda: self._generated(candidate, piece, ended=job.ended or step.whole or full)

    def _generated(self, candidate: int, piece: Piece, *, ended: bool) -> list[Step]:
        cost, score = self._unbooked(candidate), self._price_of_score(piece)
        if isinstance(self.machine, Beam):
            return self.machine.generated(candidate, piece.key, cost, self._now(), ended=ended, score=score)
        return self.machine.generated(candidate, self._key(piece), cost, self._now(), score=score)

    def _price_of_score(self, piece: Piece) -> Price | None:
        scorer = self.wanted.scorer
        if not isinstance(scorer, Judge):
            return None
        return price_of(self.judge, judge_request(self.request, piece.text, scorer.criterion))

    def _terms_of(self, step: Generate) -> CallTerms:
        """Somebody waits for the first candidate and for the end of a beam; all others are extra."""
        if not step.candidate or (self.wanted.beam is not None and step.whole):
            return replace(self.terms, affords=lambda: self.machine.again(step.candidate))
        return replace(self.terms, speculative=True)

    def _request_of(self, step: Generate, parent: Piece | None) -> ModelRequest:
        request, shape = self.request, self.wanted.beam
        if step.candidate:
            seed = None if request.seed is None else request.seed + step.candidate
            request = replace(request, temperature=self.wanted.temperature, seed=seed)
        most = request.max_output_tokens
        if most is not None and parent is not None:
            most = max(1, most - parent.tokens)  # it is meant of the whole answer
        if shape is not None and not step.whole:
            most = min(shape.step_tokens, most or shape.step_tokens)
        request = replace(request, max_output_tokens=most)
        if parent is not None:
            begun = (*request.messages, Message("assistant", parent.text))
            request = replace(request, messages=begun, continues=True)
        return request

    def _key(self, piece: Piece) -> str:
        scorer = self.wanted.scorer
        if isinstance(scorer, Votes) and not piece.tool_calls:
            return vote(piece.text, scorer.behind)
        return piece.key

    # ------------------------------------------------------------ scores

    async def _score(self, candidate: int) -> Happened:
        score = await self._judged(candidate, self.pieces[candidate])
        return lambda: self.machine.scored(candidate, score, self._unbooked(candidate), self._now())

    async def _judged(self, candidate: int, piece: Piece) -> float | None:
        match self.wanted.scorer:
            case Rules() as rules:
                return rules.score(piece.text)
            case Judge(criterion=criterion):
                request = judge_request(self.request, piece.text, criterion)
                terms = replace(self.terms, speculative=True)
                call = self.models.call(self.judge, request, terms)
                job = self._job(call, self.judge, Purpose.JUDGE, candidate)
                with contextlib.suppress(ForerunError):
                    await job.run()
                    return judgement(job.text)
                return None
            case ClientVerifier(seconds):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(seconds):
                        return await self.verifier.score(candidate, piece.text, piece.tool_calls)
                return None
            case Votes():
                return None
