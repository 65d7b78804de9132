"""The predictor's two sides: the bus, where it listens and publishes, and PredictionService for people and training."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Coroutine
from typing import Any, Final

import grpc.aio

from forerun.core import limits
from forerun.predictor.engine.agent import rank_class
from forerun.predictor.engine.engine import VERSION, Engine, Prediction, UnknownSession
from forerun.predictor.follower import Follower, parse
from forerun.predictor.small_model.guesser import Guesser
from forerun.predictor.store import ModelStore
from forerun.runtime import metrics_table as m
from forerun.runtime import subjects
from forerun.runtime.auth import Role, current_caller, require_service
from forerun.runtime.bus import Bus, Message
from forerun.runtime.clock import Clock
from forerun.runtime.errors import (
    ErrorReason,
    ForerunError,
    InvalidArgument,
    NotFound,
    PermissionDenied,
)
from forerun.runtime.metrics import Metrics
from forerun.runtime.tasks import TaskScope
from forerun.v1 import common_pb2, event_pb2, prediction_pb2, prediction_pb2_grpc

_Context = grpc.aio.ServicerContext[Any, Any]
_OWNER_HEADER: Final = "Forerun-Owner"
_READ_PAGE: Final = 1_000
_YIELD_EVERY: Final = 64
# Events that only teach wait for each other, and for a prediction that needs them: to learn from one by one what comes
# within milliseconds costs half as much again, because the caches of the processor are cold each time.
_LEARN_WITHIN_SECONDS: Final = 0.2
_MOST_UNLEARNED: Final = 32


class Listener:
    """Hears the journal as it passes, learns, and publishes candidates when a model request starts.

    Args:
        engine: Learns and predicts.
        follower: Feeds it.
        store: Keeps the models.
        bus: Where it listens and publishes.
        clock: Measures predictions.
        tasks: Where it learns while nothing comes.
        metrics: Counts.
        candidates: Most candidates of one prediction.
        guesser: A small model that may be asked where statistics are unsure.
    """

    def __init__(
        self,
        engine: Engine,
        follower: Follower,
        store: ModelStore,
        bus: Bus,
        tasks: TaskScope,
        *,
        clock: Clock,
        metrics: Metrics,
        candidates: int,
        guesser: Guesser | None = None,
    ) -> None:
        self._guesser = guesser
        self._engine = engine
        self._follower = follower
        self._store = store
        self._bus = bus
        self._tasks = tasks
        self._clock = clock
        self._metrics = metrics
        self._candidates = candidates
        self._unlearned: deque[tuple[str, event_pb2.SessionEvent]] = deque()
        self._learning = asyncio.Lock()
        self._due = False
        # Where a session's owner listens: the header of its last event.
        self._agents: dict[tuple[str, str], str] = {}
        self._live: dict[tuple[str, str], None] = {}

    def agent_of(self, tenant: str, session: str) -> str | None:
        """The agent of a session that is followed."""
        return self._agents.get((tenant, session))

    def live(self, tenant: str, session: str) -> bool:
        """The session was heard on the bus."""
        return (tenant, session) in self._live

    def hear(self, message: Message) -> Coroutine[Any, Any, None] | None:
        """Takes one event: at once where a prediction is due, and soon where it only teaches."""
        event = parse(message.data)
        if event is None:
            return None
        self._live[(event.tenant, event.session)] = None
        if len(self._live) > limits.SESSIONS_PER_REPLICA * 2:
            self._live.pop(next(iter(self._live)))
        self._unlearned.append((message.subject, event))
        if event.WhichOneof("event") == "model_started":
            return self._learn_and_publish(event, message.headers.get(_OWNER_HEADER, ""))
        if len(self._unlearned) >= _MOST_UNLEARNED:
            return self.learn()
        if not self._due:
            self._due = True
            self._tasks.spawn(self._learn_soon(), name="learn")
        return None

    async def _learn_and_publish(self, event: event_pb2.SessionEvent, owner: str) -> None:
        await self.learn()
        await self._publish(event, owner)

    async def _learn_soon(self) -> None:
        await asyncio.sleep(_LEARN_WITHIN_SECONDS)
        self._due = False
        await self.learn()

    async def learn(self) -> None:
        """Learns from everything that was heard, in the order in which it came."""
        async with self._learning:
            while self._unlearned:
                subject, event = self._unlearned.popleft()
                await self._store.ready(event.tenant)
                if self._follower.missing(event):
                    await self._catch_up(subject)
                self.take(event)

    def take(self, event: event_pb2.SessionEvent) -> bool:
        """Learns from one event; False where it was known."""
        if not self._follower.take(event):
            return False
        key = (event.tenant, event.session)
        if event.WhichOneof("event") == "closed":
            self._agents.pop(key, None)
        else:
            self._agents[key] = event.agent
            if len(self._agents) > limits.SESSIONS_PER_REPLICA * 2:
                self._agents.pop(next(iter(self._agents)))
        self._store.changed(event.tenant, event.agent)
        for probability, came in self._engine.take_judged(event.tenant, event.agent):
            bucket = m.PROBABILITY.values[min(int(probability * 10.0), 9)]
            self._metrics.add(m.CALIBRATION, bucket=bucket, result="same" if came else "different")
        return True

    async def _catch_up(self, subject: str) -> None:
        """Reads what was missed of a session; without it the prediction is poorer, not wrong."""
        after = 0
        try:
            while True:
                page = await self._bus.read(subject, after_sequence=after, limit=_READ_PAGE)
                for message in page:
                    event = parse(message.data)
                    if event is not None:
                        self.take(event)
                if len(page) < _READ_PAGE:
                    return
                after = page[-1].sequence or 0
        except ForerunError:
            return

    async def _publish(self, event: event_pb2.SessionEvent, owner: str) -> None:
        if not owner:
            return
        batch = self.predict(event.tenant, event.agent, event.session, event.number)
        if batch is not None:
            await self._bus.notify(subjects.candidates(owner), batch.SerializeToString())
            for candidate in batch.candidates:
                self._metrics.add(m.CANDIDATES, rank=rank_class(candidate.rank))
            if self._guesser is not None:
                self._guesser.consider(event.agent, owner, batch)

    def predict(self, tenant: str, agent: str, session: str, based_on: int) -> prediction_pb2.Candidates | None:
        """Candidates for a session, or None where it is not known."""
        started_at = self._clock.monotonic()
        try:
            prediction = self._engine.predict(tenant, agent, session)
        except UnknownSession:
            return None
        self._metrics.observe(m.PREDICTION_SECONDS, max(0.0, self._clock.monotonic() - started_at))
        return _message(tenant, session, based_on, prediction, self._candidates)


def _message(tenant: str, session: str, based_on: int, prediction: Prediction, most: int) -> prediction_pb2.Candidates:
    batch = prediction_pb2.Candidates(
        tenant=tenant,
        session=session,
        based_on=based_on,
        no_call_probability=prediction.no_call_probability,
        predictor_version=VERSION,
    )
    if prediction.expected_model_seconds is not None:
        batch.expected_model_seconds = prediction.expected_model_seconds
    for rank, candidate in enumerate(prediction.candidates[:most], start=1):
        message = batch.candidates.add(
            action=common_pb2.Action(tool=candidate.tool, arguments=candidate.arguments),
            probability=candidate.probability,
            evidence=candidate.evidence,
            rank=rank,
            site=candidate.site,
            explanation=candidate.explanation,
        )
        if candidate.expected_seconds is not None:
            message.expected_seconds = candidate.expected_seconds
    return batch


class PredictionServicer(prediction_pb2_grpc.PredictionServiceServicer):
    """Serves PredictionService.

    Args:
        engine: The models.
        listener: Learns and predicts.
        store: Keeps the models.
        guesser: See `Listener`.
    """

    def __init__(self, engine: Engine, listener: Listener, store: ModelStore, guesser: Guesser | None = None) -> None:
        self._guesser = guesser
        self._engine = engine
        self._listener = listener
        self._store = store

    async def Predict(  # noqa: N802  (the contract's name)
        self, request: prediction_pb2.PredictRequest, context: _Context
    ) -> prediction_pb2.PredictResponse:
        """Candidates for the present state of a session."""
        # Candidates hold arguments that come from the session's content, so they are for services only.
        require_service()
        await self._listener.learn()
        agent = self._listener.agent_of(request.tenant, request.session)
        batch = None if agent is None else self._listener.predict(request.tenant, agent, request.session, 0)
        if batch is None:
            raise NotFound(
                ErrorReason.SESSION_NOT_FOUND, "the predictor has not heard of the session, or has forgotten it"
            )
        return prediction_pb2.PredictResponse(candidates=batch)

    async def Train(  # noqa: N802
        self, request_iterator: AsyncIterator[prediction_pb2.TrainRequest], context: _Context
    ) -> prediction_pb2.TrainResponse:
        """Learns from recorded events."""
        events = 0
        sessions: set[tuple[str, str]] = set()
        await self._listener.learn()
        async for request in request_iterator:
            event = parse(request.event)
            if event is None:
                raise InvalidArgument(
                    ErrorReason.ARGUMENT_INVALID, f"event {events + 1} of the recording is no SessionEvent"
                )
            _may_see(event.tenant)
            if self._listener.live(event.tenant, event.session):
                raise PermissionDenied(
                    ErrorReason.CALLER_NOT_ALLOWED, "the session is live: it is learned from its journal only"
                )
            await self._store.ready(event.tenant)
            if self._listener.take(event):
                events += 1
                sessions.add((event.tenant, event.session))
            if events % _YIELD_EVERY == 0:
                await asyncio.sleep(0)
        return prediction_pb2.TrainResponse(events=events, sessions=len(sessions))

    async def GetPredictorStatus(  # noqa: N802
        self, request: prediction_pb2.GetPredictorStatusRequest, context: _Context
    ) -> prediction_pb2.GetPredictorStatusResponse:
        """What is known of a tenant's agents."""
        _may_see(request.tenant)
        await self._store.ready(request.tenant)
        await self._listener.learn()
        guesser = self._guesser
        return prediction_pb2.GetPredictorStatusResponse(
            agents=[
                prediction_pb2.AgentModel(
                    agent=one.agent,
                    sessions=one.sessions,
                    calls=one.calls,
                    scored=one.scored,
                    exact=one.exact,
                    second_guesses=None if guesser is None else guesser.status(request.tenant, one.agent),
                )
                for one in self._engine.status(request.tenant)
            ]
        )


def _may_see(tenant: str) -> None:
    caller = current_caller()
    if caller.role is not Role.SERVICE and caller.tenant != tenant:
        raise PermissionDenied(ErrorReason.CALLER_NOT_ALLOWED, "a user may see its own tenant only")
