"""Second guesses of live sessions: asked for where they pay, dropped when their reason is gone, judged by what came."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from forerun.core import limits
from forerun.core.canonical import canonical
from forerun.core.grammar.calls import call_text
from forerun.core.second_guess import Asking, Guessed, GuessPrices, SecondGuesses
from forerun.core.tokens import Usage
from forerun.predictor.engine.calibration import site_of
from forerun.predictor.engine.engine import Engine
from forerun.predictor.engine.history import (
    AssistantText,
    CallsAsked,
    Event,
    ModelStarted,
    SessionClosed,
    UserTurn,
)
from forerun.predictor.small_model.guess import Call, Ended, SmallModel
from forerun.predictor.small_model.transcript import Transcript, guess_request
from forerun.runtime import metrics_table as m
from forerun.runtime import subjects
from forerun.runtime.bus import Bus
from forerun.runtime.clock import Clock
from forerun.runtime.metrics import Metrics
from forerun.runtime.tasks import TaskScope
from forerun.v1 import common_pb2, prediction_pb2

_LOG: Final = logging.getLogger(__name__)
_SITE_MARK: Final = "\x1dsmall-model"
_EXPECTED: Final = 4

Key = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class GuessSettings:
    """What an operator chooses.

    Attributes:
        prices: See there.
        at_once: Guesses under way in this process, at most; a further one is not asked for.
        chars: Of the transcript in a prompt.
        tokens: Of a guessed call.
        tools: In a prompt.
    """

    prices: GuessPrices = field(default_factory=GuessPrices)
    at_once: int = 1
    chars: int = 900
    tokens: int = 96
    tools: int = 4


@dataclass(slots=True)
class _Guess:
    """One guess, from its start until it is judged."""

    tenant: str
    agent: str
    session: str
    owner: str
    based_on: int
    site: str
    asking: Asking
    others: frozenset[tuple[str, bytes]]
    task: asyncio.Task[None] | None = None
    ended: Ended | None = None
    ended_at: float = 0.0
    message_at: float | None = None


class Guesser:
    """The small model among the predictor's engines.

    Args:
        model: Is asked.
        engine: Knows how long tools take.
        bus: Where candidates go.
        tasks: Where guesses run.
        clock: Measures.
        metrics: Counts.
        settings: See there.
    """

    def __init__(
        self,
        model: SmallModel,
        engine: Engine,
        bus: Bus,
        tasks: TaskScope,
        *,
        clock: Clock,
        metrics: Metrics,
        settings: GuessSettings,
    ) -> None:
        self._model = model
        self._engine = engine
        self._bus = bus
        self._tasks = tasks
        self._clock = clock
        self._metrics = metrics
        self._settings = settings
        self._running = 0
        self._worth: OrderedDict[Key, SecondGuesses] = OrderedDict()
        self._transcripts: OrderedDict[Key, Transcript] = OrderedDict()
        self._guesses: dict[Key, _Guess] = {}

    async def close(self) -> None:
        """Closes the connections to the model."""
        await self._model.close()

    def status(self, tenant: str, agent: str) -> prediction_pb2.SecondGuesses:
        """What guesses for an agent have given."""
        worth = self._worth.get((tenant, agent)) or SecondGuesses(self._settings.prices)
        record = worth.record
        return prediction_pb2.SecondGuesses(
            asked=record.asked,
            hits=record.hits,
            seconds=record.seconds,
            gained=record.gained,
            sites_on=worth.sites_on,
            sites_off=worth.sites_off,
        )

    # --- the journal ------------------------------------------------------------------------------------------------

    def observe(self, tenant: str, agent: str, session: str, event: Event) -> None:
        """Takes in one event of a session, in order."""
        key = (tenant, session)
        guess = self._guesses.get(key)
        if guess is not None:
            self._happened(key, guess, event)
        if isinstance(event, SessionClosed):
            self._transcripts.pop(key, None)
            return
        transcript = self._transcripts.get(key)
        if transcript is None:
            transcript = self._transcripts[key] = Transcript()
            if len(self._transcripts) > limits.SESSIONS_PER_REPLICA:
                self._give_up(self._transcripts.popitem(last=False)[0])
        self._transcripts.move_to_end(key)
        transcript.take(event)

    def _happened(self, key: Key, guess: _Guess, event: Event) -> None:
        """The message is there: what is still being guessed is of no use, and what was guessed can be judged."""
        if isinstance(event, AssistantText | CallsAsked) and guess.message_at is None:
            guess.message_at = self._clock.monotonic()
        if isinstance(event, AssistantText | CallsAsked | UserTurn | SessionClosed | ModelStarted):
            if guess.task is not None:
                guess.task.cancel()
            if not isinstance(event, AssistantText):  # calls of the same message may follow its text
                del self._guesses[key]
                asked = event.calls if isinstance(event, CallsAsked) else ()
                self._judge(guess, frozenset((one.tool, canonical(one.arguments)) for one in asked))

    def _give_up(self, key: Key) -> None:
        """A session that is not followed any more judges no guess."""
        guess = self._guesses.pop(key, None)
        if guess is not None:
            if guess.task is not None:
                guess.task.cancel()
            self._judge(guess, frozenset())

    # --- asking -----------------------------------------------------------------------------------------------------

    def consider(self, agent: str, owner: str, batch: prediction_pb2.Candidates) -> Asking | None:
        """Statistics have spoken: asks the model, where that pays. Waits for nothing.

        Returns:
            What was decided; None where it was not the price that decided.
        """
        key = (batch.tenant, batch.session)
        transcript = self._transcripts.get(key)
        if transcript is None or not transcript.schemas:
            self._count("no_tools")
            return None
        best = batch.candidates[0].probability if batch.candidates else 0.0
        site = batch.candidates[0].site if batch.candidates else site_of(agent, "", "")
        seconds = batch.expected_model_seconds if batch.HasField("expected_model_seconds") else None
        asking = self._of(batch.tenant, agent).decide(site, best, seconds)
        if not asking.asks:
            self._count(asking.value)
            return asking
        if self._running >= self._settings.at_once or key in self._guesses:
            self._count("busy")
            return None
        tools = dict.fromkeys([*(one.action.tool for one in batch.candidates), *transcript.schemas])
        request = guess_request(
            transcript,
            list(tools)[: self._settings.tools],
            chars=self._settings.chars,
            tokens=self._settings.tokens,
            expected=[
                call_text(one.action.tool, one.action.arguments.decode()) for one in batch.candidates[:_EXPECTED]
            ],
        )
        if request is None:
            self._count("no_tools")
            return None
        others = frozenset((one.action.tool, one.action.arguments) for one in batch.candidates)
        guess = _Guess(batch.tenant, agent, batch.session, owner, batch.based_on, site, asking, others)
        self._guesses[key] = guess
        self._running += 1
        guess.task = self._tasks.spawn(
            self._model.guess(request, lambda ended: self._ended(guess, ended)), name="second-guess"
        )
        guess.task.add_done_callback(lambda _: self._never_began(guess))
        return asking

    def _never_began(self, guess: _Guess) -> None:
        """A task that is cancelled before its first step tells nobody that it has ended."""
        if guess.ended is None:
            self._ended(guess, Ended(None, 0.0, Usage()))

    def _ended(self, guess: _Guess, ended: Ended) -> None:
        self._running -= 1
        guess.ended, guess.ended_at = ended, self._clock.monotonic()
        call = ended.call
        late = guess.message_at is not None or self._guesses.get((guess.tenant, guess.session)) is not guess
        if late:
            result = "late"
        elif ended.failed:
            result = "failed"
        elif call is None:
            result = "invalid"
        else:
            result = "same" if (call.tool, call.arguments) in guess.others else "proposed"
        self._count(result)
        self._metrics.add(m.SECOND_GUESS_SECONDS, ended.seconds)
        if self._guesses.get((guess.tenant, guess.session)) is not guess:
            self._learn(guess, frozenset())  # it was given up and judged before it had ended: only its price is left
        if guess.owner and not self._tasks.closed:
            self._tasks.spawn(self._tell(guess, ended, result), name="second-guess-told")

    async def _tell(self, guess: _Guess, ended: Ended, result: str) -> None:
        batch = prediction_pb2.Candidates(
            tenant=guess.tenant,
            session=guess.session,
            based_on=guess.based_on,
            predictor_version=f"small-model/{self._model.name}",
            guess=_message(self._model.name, guess, ended.seconds, ended.usage, result),
        )
        if result == "proposed" and ended.call is not None:
            self._propose(batch, guess, ended.call, ended.seconds)
        await self._bus.notify(subjects.candidates(guess.owner), batch.SerializeToString())

    def _propose(self, batch: prediction_pb2.Candidates, guess: _Guess, call: Call, seconds: float) -> None:
        record = self._of(guess.tenant, guess.agent).record
        candidate = batch.candidates.add(
            action=common_pb2.Action(tool=call.tool, arguments=call.arguments),
            probability=record.probability,
            evidence=record.trials,
            rank=len(guess.others) + 1,
            site=site_of(guess.agent, guess.site, call.tool + _SITE_MARK),
            explanation=f"second guess of {self._model.name} in {seconds:.2f} s, asked because it "
            f"{_WHY[guess.asking]}; {record.right:.0f} of {record.trials:.0f} were right",
            prediction_seconds=seconds,
        )
        expected = self._engine.tool_seconds(guess.tenant, guess.agent, call.tool)
        if expected is not None:
            candidate.expected_seconds = expected

    # --- judging ----------------------------------------------------------------------------------------------------

    def _judge(self, guess: _Guess, asked: frozenset[tuple[str, bytes]]) -> None:
        if guess.ended is not None:  # else it is judged when it has ended: what it cost is not known before
            self._learn(guess, asked)

    def _learn(self, guess: _Guess, asked: frozenset[tuple[str, bytes]]) -> None:
        ended = guess.ended
        assert ended is not None, "the caller has looked"
        call = ended.call
        named = None if call is None else (call.tool, call.arguments)
        right = named is not None and named in asked
        hit = right and named not in guess.others
        message_at = guess.ended_at if guess.message_at is None else guess.message_at
        hidden = max(0.0, message_at - guess.ended_at)
        if hit and call is not None:
            seconds = self._engine.tool_seconds(guess.tenant, guess.agent, call.tool)
            hidden = min(hidden, seconds if seconds is not None else 0.0)
            self._metrics.add(m.SECOND_GUESS_HITS)
        worth = self._of(guess.tenant, guess.agent)
        before = worth.sites_on
        changed = worth.learn(
            guess.site,
            Guessed(seconds=ended.seconds, hit=hit, right=right, hidden_seconds=hidden, valid=call is not None),
        )
        self._metrics.change(m.SECOND_GUESS_SITES, float(worth.sites_on - before))
        if changed is not None:
            _LOG.info(
                "second guesses pay at a call site now" if changed else "second guesses do not pay at a call site",
                extra={"fields": {"forerun.site": guess.site}},
            )

    def _of(self, tenant: str, agent: str) -> SecondGuesses:
        worth = self._worth.get((tenant, agent))
        if worth is None:
            worth = self._worth[tenant, agent] = SecondGuesses(self._settings.prices)
            if len(self._worth) > limits.GUESS_AGENTS:
                _, forgotten = self._worth.popitem(last=False)
                self._metrics.change(m.SECOND_GUESS_SITES, -float(forgotten.sites_on))
        self._worth.move_to_end((tenant, agent))
        return worth

    def _count(self, result: str) -> None:
        self._metrics.add(m.SECOND_GUESSES, guess=result)


_WHY: Final = {Asking.PAYS: "pays here", Asking.PROBE: "was time to look whether it pays"}


def _message(model: str, guess: _Guess, seconds: float, usage: Usage, result: str) -> prediction_pb2.SecondGuess:
    return prediction_pb2.SecondGuess(
        model=model,
        result=result,
        asked_because=guess.asking.value,
        seconds=seconds,
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        tokens_estimated=usage.estimated,
        site=guess.site,
    )
