"""One request over the replicas of its model: performs what `forerun.core.race_replicas` decides.

The only place that retries or races model requests. Every attempt is accounted for, whoever has won.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from forerun.core.race_replicas import Failed, Fault, GaveUp, ReplicaRace, StartAttempt, Step, StopAttempt
from forerun.core.tokens import Usage, estimated_tokens
from forerun.runtime.errors import INTERNAL_MESSAGE, Bug, ErrorReason, ForerunError, Unavailable
from forerun.runtime.models.endpoints import Endpoint
from forerun.runtime.models.errors import ModelError
from forerun.runtime.models.port import Deadlines, Finished, Gathered, ModelEvent, ModelRequest

_LOG: Final = logging.getLogger(__name__)
_AHEAD: Final = 64
_STOP_SECONDS: Final = 1.0
_STOPPED: Final = Failed(Fault.STOPPED)


@dataclass(slots=True)
class Attempt:
    """One request to one provider.

    Attributes:
        number: Its number.
        endpoint: Where it went.
        second: It was a second attempt beside another one.
        began_at: When it was sent, on the loop's clock.
        ended_at: When it had ended; None while it runs.
        message: What has come of it.
        error: Why it failed; None where it did not.
        stopped: It was stopped from here.
    """

    number: int
    endpoint: Endpoint
    second: bool
    began_at: float
    ended_at: float | None = None
    message: Gathered = field(default_factory=Gathered)
    error: ModelError | None = None
    stopped: bool = False

    @property
    def won(self) -> bool:
        """It has answered."""
        return self.message.finished is not None

    @property
    def seconds(self) -> float:
        """How long it took."""
        return 0.0 if self.ended_at is None else self.ended_at - self.began_at

    def usage(self, request: ModelRequest, known: Usage | None) -> Usage:
        """Its tokens. Of what was stopped or broke off they are estimated: its prompt was read, and what it had sent.

        Args:
            request: What was sent.
            known: Tokens of an attempt that has answered the same request.
        """
        if self.message.finished is not None:
            return self.message.finished.usage
        began = self.stopped or self.message.output_bytes or (self.error is not None and self.error.failed.began)
        if not began:
            return Usage()
        prompt = known.input_tokens if known is not None else estimated_tokens(request.size_bytes)
        most = self.endpoint.provider.most_output(request.max_output_tokens)
        return Usage(prompt, min(most, estimated_tokens(self.message.output_bytes)), True)


@dataclass(frozen=True, slots=True)
class Bill:
    """What one attempt has cost.

    Attributes:
        attempt: Which.
        usage: Its tokens.
        money: Their price.
    """

    attempt: Attempt
    usage: Usage
    money: float


class ModelCall:
    """One request. Its events are read once; afterwards it tells what it has cost.

    Attributes:
        request: What is asked for.
        attempts: What was sent so far.
        known: Tokens of another request with the same prompt; None where there is none.

    Args:
        request: What is asked for.
        endpoints: The replicas, as the race numbers them.
        race: Decides.
    """

    def __init__(self, request: ModelRequest, endpoints: Sequence[Endpoint], race: ReplicaRace) -> None:
        self.request = request
        self.attempts: list[Attempt] = []
        self.known: Usage | None = None
        self._endpoints = endpoints
        self._race = race
        self._queue: asyncio.Queue[tuple[Attempt, ModelEvent | ModelError]] = asyncio.Queue(_AHEAD)
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._now: Callable[[], float] = asyncio.get_running_loop().time

    async def events(self) -> AsyncGenerator[ModelEvent, None]:
        """The answer as it comes.

        Raises:
            ForerunError: no attempt has answered.
        """
        try:
            self._perform(self._race.begin(self._now()))
            while True:
                item = await self._next()
                if item is None:
                    self._perform(self._race.tick(self._now()))
                    continue
                attempt, what = item
                if isinstance(what, ModelError):
                    self._perform(self._race.failed(attempt.number, what.failed, self._now()))
                    continue
                self._perform(self._race.first_token(attempt.number, self._now()))
                if attempt.number != self._race.winner:
                    continue
                if isinstance(what, Finished):
                    self._perform(self._race.finished(attempt.number, self._now()))
                    yield what
                    return
                yield what
        finally:
            await self._stop()

    # ------------------------------------------------------------ afterwards

    @property
    def answered(self) -> Attempt | None:
        """The attempt that has answered."""
        return next((one for one in self.attempts if one.won and one.number == self._race.winner), None)

    @property
    def raced(self) -> bool:
        """A second attempt was sent."""
        return any(one.second for one in self.attempts)

    def bills(self) -> list[Bill]:
        """What each attempt has cost, in the order of their starts."""
        answered = self.answered
        known = self.known
        if answered is not None and answered.message.finished is not None:
            known = answered.message.finished.usage
        found = []
        for one in self.attempts:
            usage = one.usage(self.request, known)
            found.append(Bill(one, usage, one.endpoint.provider.prices.of(usage)))
        return found

    def differs(self) -> bool | None:
        """A beaten attempt had begun another answer; None where that means nothing.

        Sampled answers differ rightly. Only of greedy ones, equal replicas send equal text, as far as it was sent.
        """
        answered = self.answered
        if answered is None or not self.request.greedy:
            return None
        texts = [one.message.text for one in self.attempts if one is not answered and one.message.text]
        if not texts:
            return None
        whole = answered.message.text
        return any(not whole.startswith(text) and not text.startswith(whole) for text in texts)

    # ------------------------------------------------------------ inside

    def _perform(self, steps: Sequence[Step]) -> None:
        for step in steps:
            if isinstance(step, StartAttempt):
                self._start(step)
            elif isinstance(step, StopAttempt):
                self.attempts[step.attempt].stopped = True
                self._tasks[step.attempt].cancel()
            elif isinstance(step, GaveUp):
                raise self._failure(step.attempt)

    def _failure(self, attempt: int) -> ForerunError:
        error = self.attempts[attempt].error if attempt < len(self.attempts) else None
        if error is not None:
            if isinstance(error.error, Unavailable) and error.error.retry_after_seconds is None:
                error.error.retry_after_seconds = self._race.retry_after(self._now())
            return error.error
        return Unavailable(
            ErrorReason.MODEL_UNAVAILABLE,
            "extra requests to the model's providers keep failing, so none is sent for a while",
        )

    def _start(self, step: StartAttempt) -> None:
        attempt = Attempt(step.attempt, self._endpoints[step.replica], step.second, self._now())
        self.attempts.append(attempt)
        self._tasks[attempt.number] = asyncio.create_task(self._run(attempt), name=f"model-attempt-{attempt.number}")

    async def _run(self, attempt: Attempt) -> None:
        waits = not (attempt.second or self._race.terms.speculative)
        endpoint = attempt.endpoint
        try:
            async with (
                endpoint.place(waits=waits, until=self._race.terms.deadline),
                contextlib.aclosing(endpoint.port.generate(self.request, self._deadlines(endpoint))) as events,
            ):
                async for event in events:
                    attempt.message.add(event)
                    await self._queue.put((attempt, event))
        except ModelError as error:
            attempt.error = error
            await self._queue.put((attempt, error))
        except Exception as error:
            _LOG.exception("a model request failed in a way that nobody expected")
            attempt.error = ModelError(Bug(ErrorReason.INTERNAL, INTERNAL_MESSAGE), Fault.REFUSED)
            attempt.error.__cause__ = error
            await self._queue.put((attempt, attempt.error))
        finally:
            attempt.ended_at = self._now()

    def _deadlines(self, endpoint: Endpoint) -> Deadlines:
        given = endpoint.provider.deadlines
        left = self._race.terms.deadline - self._now()
        if left >= given.total:
            return given
        return Deadlines(first_token=given.first_token, between_tokens=given.between_tokens, total=max(0.001, left))

    async def _next(self) -> tuple[Attempt, ModelEvent | ModelError] | None:
        """What comes next from an attempt; None when the race has to be told the time."""
        due = self._race.next_time()
        try:
            async with asyncio.timeout_at(None if math.isinf(due) else due):
                return await self._queue.get()
        except TimeoutError:
            return None

    async def _stop(self) -> None:
        """Nothing runs on: whatever is still under way is stopped, and told apart from what failed."""
        running = [task for task in self._tasks.values() if not task.done()]
        for number, task in self._tasks.items():
            if not task.done() and not self.attempts[number].won:
                self.attempts[number].stopped = True
                task.cancel()
        if running:
            await asyncio.wait(running, timeout=_STOP_SECONDS)
        now = self._now()
        for attempt in self.attempts:
            self._race.failed(attempt.number, _STOPPED, now)
