"""The engine: follows sessions, learns per tenant and agent, and predicts. Pure: no I/O, no clock, no randomness.

Tenants never share anything. Everything is bounded; what was silent for longest is forgotten first.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass

from forerun.core.candidates import Candidate
from forerun.predictor.engine.agent import Agent, rank_class
from forerun.predictor.engine.calibration import site_of
from forerun.predictor.engine.history import (
    AssistantText,
    CallFinished,
    CallsAsked,
    Event,
    ModelStarted,
    SessionOpened,
    UserTurn,
)
from forerun.predictor.engine.sequence import NO_CALL
from forerun.predictor.engine.session import Session, Step
from forerun.predictor.engine.state import MalformedState, number, table
from forerun.predictor.engine.tuning import Tuning

VERSION = "forerun-patterns-1"
_STATE_VERSION = 1
_MODEL = "\x00model"
_ALL_AGENTS = "*"


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the next model step may bring.

    Attributes:
        candidates: Calls that may be asked for, most probable first.
        no_call_probability: Calibrated probability that the message asks for no call.
        tools: Probabilities of the first call's tool, most probable first.
        expected_model_seconds: Expected time until the message is complete; None where unknown.
    """

    candidates: tuple[Candidate, ...]
    no_call_probability: float
    tools: tuple[tuple[str, float], ...]
    expected_model_seconds: float | None


@dataclass(frozen=True, slots=True)
class AgentStatus:
    """Counts of one agent's model."""

    agent: str
    sessions: int
    calls: int
    scored: int
    exact: int


class UnknownSession(LookupError):
    """The engine has not heard of the session, or has forgotten it."""


class Engine:
    """Predictors of all agents of all tenants that this process is responsible for."""

    def __init__(self, tuning: Tuning | None = None) -> None:
        self._tuning = tuning or Tuning()
        self._agents: dict[tuple[str, str], Agent] = {}
        self._sessions: dict[tuple[str, str, str], Session] = {}

    def observe(self, tenant: str, agent: str, session: str, event: Event) -> None:
        """Takes in one event of a session, in order, and learns from it."""
        model = self._agent(tenant, agent)
        state = self._session(tenant, agent, session)
        if isinstance(event, SessionOpened):
            state.declared = frozenset(event.tools)
            model.sessions += 1
            state.memory.year = state.memory.year or model.year
            state.step = None
        elif isinstance(event, UserTurn):
            self._end_step(model, agent, state)
            state.hear_user(event.text)
            state.open, state.step = True, None
        elif isinstance(event, ModelStarted):
            self._end_step(model, agent, state)
            state.open = True
        elif isinstance(event, AssistantText):
            self._heard_text(model, state, event)
        elif isinstance(event, CallsAsked):
            self._calls_asked(model, agent, state, event)
        elif isinstance(event, CallFinished):
            self._call_finished(model, state, event)
        else:
            self._close(model, agent, tenant, state)

    def predict(self, tenant: str, agent: str, session: str) -> Prediction:
        """Predicts the next model step of a session.

        Raises:
            UnknownSession: No event of the session was observed, or it ended.
        """
        state = self._sessions.get((tenant, agent, session))
        if state is None:
            raise UnknownSession(session)
        model = self._agent(tenant, agent)
        step = self._step(model, agent, state)
        return self._calibrated(model, agent, step)

    def tool_seconds(self, tenant: str, agent: str, tool: str) -> float | None:
        """What a tool usually takes; None where that is not known."""
        model = self._agents.get((tenant, self._model_name(agent)))
        return None if model is None else model.durations.quantile(tool, 0.5)

    def knows(self, tenant: str, agent: str, session: str) -> bool:
        """Whether the session is being followed."""
        return (tenant, agent, session) in self._sessions

    def status(self, tenant: str) -> tuple[AgentStatus, ...]:
        """Counts of the models of one tenant, by agent."""
        return tuple(
            AgentStatus(name, a.sessions, a.calls_seen, a.calibration.scored, a.calibration.exact)
            for (owner, name), a in sorted(self._agents.items())
            if owner == tenant
        )

    def take_judged(self, tenant: str, agent: str) -> tuple[tuple[float, bool], ...]:
        """The candidates of the step that ended last: what was claimed for each, and whether it came. Once."""
        model = self._agents.get((tenant, self._model_name(agent)))
        if model is None:
            return ()
        judged, model.calibration.judged = model.calibration.judged, ()
        return judged

    def agents(self) -> tuple[tuple[str, str], ...]:
        """Tenant and agent of every model."""
        return tuple(sorted(self._agents))

    def forget(self, tenant: str) -> None:
        """Erases a tenant."""
        for key in [key for key in self._agents if key[0] == tenant]:
            del self._agents[key]
        for session in [key for key in self._sessions if key[0] == tenant]:
            del self._sessions[session]

    def dump(self, tenant: str, agent: str) -> bytes:
        """The model of an agent, to be kept. Holds derivations and digests, no observation and no text.

        Raises:
            KeyError: There is no such model.
        """
        model = self._agents[tenant, self._model_name(agent)]
        state = {"version": _STATE_VERSION, "agent": model.to_state()}
        return zlib.compress(json.dumps(state, separators=(",", ":")).encode(), 6)

    def load(self, tenant: str, agent: str, data: bytes) -> None:
        """Replaces the model of an agent by a kept one.

        Raises:
            MalformedState: The data is damaged or of a version that this engine does not read.
        """
        try:
            state = table(json.loads(zlib.decompress(data)))
            version = number(state["version"])
            if version != _STATE_VERSION:
                raise MalformedState(f"state version {version} is not readable by this engine")
            model = Agent.from_state(state["agent"], self._tuning)
        except (zlib.error, KeyError, TypeError, ValueError) as error:
            raise MalformedState(f"the predictor's state cannot be read: {error}") from error
        self._agents[tenant, self._model_name(agent)] = model

    # --- events -----------------------------------------------------------------------------------------------------

    def _heard_text(self, model: Agent, state: Session, event: AssistantText) -> None:
        if event.seconds is not None:
            model.durations.add(_MODEL, event.seconds)
        if state.open:
            state.text = event.text if state.text is None else f"{state.text}\n{event.text}"
        else:
            state.hear_assistant(event.text)

    def _calls_asked(self, model: Agent, agent: str, state: Session, event: CallsAsked) -> None:
        if event.seconds is not None:
            model.durations.add(_MODEL, event.seconds)
        if not event.calls:
            return
        step = self._step(model, agent, state)
        model.learn_calls(agent, state, step, event.turn, event.calls)
        if state.text is not None:
            state.hear_assistant(state.text)
        state.open, state.text, state.step = False, None, None

    def _call_finished(self, model: Agent, state: Session, event: CallFinished) -> None:
        tool = state.asked.pop((event.turn, event.index), None)
        if tool is None:
            return
        state.waiting = max(0, state.waiting - 1)
        if event.seconds is not None:
            model.durations.add(tool, event.seconds)
        if not event.ok:
            state.fail()
        state.memory.add_observation(tool, event.observation, ok=event.ok)
        state.step = None
        if not state.asked:
            state.open = True

    def _end_step(self, model: Agent, agent: str, state: Session) -> None:
        """A message without calls: the step that was open ends so."""
        if state.open and state.text is not None:
            model.learn_none(agent, state, self._step(model, agent, state))
            state.hear_assistant(state.text)
            state.step = None
        state.text = None

    def _close(self, model: Agent, agent: str, tenant: str, state: Session) -> None:
        if state.open:
            model.learn_none(agent, state, self._step(model, agent, state))
        del self._sessions[tenant, agent, state.name]

    # --- predictions ------------------------------------------------------------------------------------------------

    def _step(self, model: Agent, agent: str, state: Session) -> Step:
        if state.step is None:
            state.step = model.predict(agent, state)
        return state.step

    def _calibrated(self, model: Agent, agent: str, step: Step) -> Prediction:
        calibration = model.calibration
        ranked = sorted(
            (
                (calibration.correct(rank_class(rank), scored.raw), scored)
                for rank, scored in enumerate(step.scored, start=1)
            ),
            key=lambda entry: -entry[0],
        )
        candidates = []
        for rank, (probability, scored) in enumerate(ranked):
            site = site_of(agent, step.signature, scored.tool)
            candidates.append(
                Candidate(
                    tool=scored.tool,
                    arguments=scored.arguments,
                    probability=probability,
                    evidence=calibration.evidence(site),
                    rank=rank,
                    site=site,
                    explanation=model.explain(step, scored),
                    expected_seconds=model.durations.quantile(scored.tool, 0.5),
                )
            )
        return Prediction(
            candidates=tuple(candidates),
            no_call_probability=calibration.correct("0", step.mixed.get(NO_CALL, 0.0)),
            tools=model.tools(step),
            expected_model_seconds=model.durations.quantile(_MODEL, 0.5),
        )

    # --- tables -----------------------------------------------------------------------------------------------------

    def _model_name(self, agent: str) -> str:
        return _ALL_AGENTS if self._tuning.share_across_agents else agent

    def _agent(self, tenant: str, agent: str) -> Agent:
        key = (tenant, self._model_name(agent))
        model = self._agents.pop(key, None)
        if model is None:
            model = Agent(self._tuning)
            if len(self._agents) >= self._tuning.max_agents:
                del self._agents[next(iter(self._agents))]
        self._agents[key] = model
        return model

    def _session(self, tenant: str, agent: str, session: str) -> Session:
        key = (tenant, agent, session)
        state = self._sessions.pop(key, None)
        if state is None:
            state = Session(session)
            if len(self._sessions) >= self._tuning.max_sessions:
                del self._sessions[next(iter(self._sessions))]
        self._sessions[key] = state
        return state
