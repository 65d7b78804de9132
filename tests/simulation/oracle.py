"""A predictor that knows the agents' plans and, on purpose, is not always right.

It stands where the learning engine stands, so its candidates take the production's way. It proposes what comes next,
what comes later, what will never be asked for, what a write of the same message makes stale, and what may not be
executed ahead at all.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

from forerun.core.candidates import Candidate
from forerun.predictor.engine.engine import Engine, Prediction
from forerun.predictor.engine.history import Event, ModelStarted, SessionOpened
from tests.simulation.calls import Planned, Taste, draw_call
from tests.simulation.plans import Message, Plan
from tests.simulation.world import SPECULABLE

_MOST = 10


class Oracle(Engine):
    """See the module.

    Args:
        plans: Session to plan; filled while sessions are opened.
        chance: Draws.
        taste: What the agents like, for candidates that are wrong.
        learns: Learns beside it like the engine, which costs time and decides nothing here.
    """

    def __init__(self, plans: Mapping[str, Plan], chance: random.Random, taste: Taste, *, learns: bool) -> None:
        super().__init__()
        self._learns = learns
        self._plans = plans
        self._chance = chance
        self._taste = taste
        self._started: dict[str, int] = {}

    def observe(self, tenant: str, agent: str, session: str, event: Event) -> None:
        """Counts model requests to know where the session stands."""
        if self._learns:
            super().observe(tenant, agent, session, event)
        if isinstance(event, SessionOpened):
            self._started[session] = 0
        elif isinstance(event, ModelStarted):
            self._started[session] = self._started.get(session, 0) + 1

    def predict(self, tenant: str, agent: str, session: str) -> Prediction:
        """Right, wrong and late candidates, mixed."""
        plan = self._plans.get(session)
        position = self._started.get(session, 0) - 1
        if plan is None or not 0 <= position < len(plan.messages):
            return super().predict(tenant, agent, session)
        calls = self._calls(plan.messages[position:])
        self._chance.shuffle(calls)
        candidates = tuple(self._candidate(rank, call) for rank, call in enumerate(calls[:_MOST], start=1))
        return Prediction(candidates, 0.01, (), self._chance.choice([None, 1.0, 4.0]))

    def _calls(self, messages: list[Message]) -> list[Planned]:
        chance, taste = self._chance, self._taste
        calls = [call for call in messages[0].calls if self._says(call, 0.9)]
        for later in messages[1:3]:
            calls += [call for call in later.calls if self._says(call, 0.4)]
        calls += [draw_call(chance, taste.reads, taste) for _ in range(chance.randrange(4))]
        calls += [draw_call(chance, taste.writes, taste) for _ in range(chance.randrange(2))]
        return [call.turned() if chance.random() < 0.5 else call for call in calls]

    def _says(self, call: Planned, share: float) -> bool:
        """Whether it proposes a call; seldom one that may not run ahead, never one whose arguments nobody knows yet."""
        if call.refers:
            return False
        return self._chance.random() < (share if call.tool in SPECULABLE else share / 4)

    def _candidate(self, rank: int, call: Planned) -> Candidate:
        probability = self._chance.choice([0.3, 0.95, 0.99, 0.99])
        site = f"{call.tool}/{self._chance.randrange(50)}"
        return Candidate(
            call.tool, call.data, probability, 1e6, rank, site, "the plan", self._chance.choice([None, 1.0])
        )
