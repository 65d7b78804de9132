"""Everything that is learned about one agent, and how a step is predicted from it and learned."""

from __future__ import annotations

from dataclasses import dataclass

from forerun.core import limits
from forerun.core.canonical import JsonValue, canonical
from forerun.predictor.engine.calibration import Calibration, site_of
from forerun.predictor.engine.calls import Calls, Filled, split_symbol, symbol_of
from forerun.predictor.engine.durations import Durations
from forerun.predictor.engine.history import Asked
from forerun.predictor.engine.intent import Intent
from forerun.predictor.engine.repeats import Proposal, Repeats
from forerun.predictor.engine.sequence import NO_CALL, Contexts, Mixture, logarithms
from forerun.predictor.engine.session import Scored, Session, Step
from forerun.predictor.engine.state import State, number, table, text
from forerun.predictor.engine.tuning import Tuning
from forerun.predictor.engine.values import flatten, key_of, type_of

MADE_UP = "?"
_VIEWS = (0.0, 0.1, 0.2, 0.15, 0.1, 0.1, 0.1, 0.4)
_WITHIN_VIEWS = (0.0, 0.3, 0.4, 0.3)
_ROLLOUTS = 2
_ROLLOUT_LENGTH = 8
_ROLLOUT_MINIMUM = 0.05
_ROLLOUT_BREADTH = 3
_CERTAIN = 0.99
_NEGLIGIBLE = 0.01  # an outcome below this after every context is not looked at further


@dataclass(slots=True)
class _Sum:
    """A call that may be asked for at several positions of the message."""

    filled: Filled
    probability: float = 0.0


class Agent:
    """The models of one agent."""

    __slots__ = (
        "calibration",
        "calls",
        "calls_seen",
        "durations",
        "first",
        "intent",
        "mixture",
        "repeats",
        "sessions",
        "tuning",
        "within",
        "within_mixture",
        "year",
    )

    def __init__(self, tuning: Tuning) -> None:
        self.tuning = tuning
        self.first = Contexts(tuning)
        self.mixture = Mixture(_VIEWS)
        self.within = Contexts(tuning)
        self.within_mixture = Mixture(_WITHIN_VIEWS)
        self.intent = Intent()
        self.calls = Calls()
        self.calibration = Calibration(tuning)
        self.durations = Durations()
        self.repeats = Repeats()
        self.year: str | None = None  # of the latest date: what the user leaves out of one
        self.sessions = 0
        self.calls_seen = 0

    # --- predicting -------------------------------------------------------------------------------------------------

    def predict(self, name: str, session: Session) -> Step:
        """Predicts the next model step of a session."""
        left = self._left(session)
        chain, extra = self._contexts(session, left)
        outcomes = self.first.outcomes((*chain, *extra))
        levels = self.first.estimates(chain, outcomes)
        views = list(levels)
        for context in extra:
            node = self.first.nodes.get(context)
            lower = levels[1]
            views.append(node.probabilities(lower) if node is not None else lower)
        possible = [o for o in outcomes if o == NO_CALL or max([view[o] for view in views[1:]]) > _NEGLIGIBLE]
        views = [{o: view[o] for o in possible} for view in views]
        features = session.features(left)
        given = self.intent.probabilities(features, views[2])
        logs = logarithms((*views, given))
        situation = self._situation(session, chain)
        mixed = self.mixture.mix(situation, logs, possible)
        proposals = session.trail.proposals(session.tokens[-1])
        return Step(
            contexts=(*chain, *extra),
            given=given,
            logs=logs,
            situation=situation,
            features=features,
            mixed=mixed,
            proposals=proposals,
            scored=self._score(session, mixed, proposals),
            signature="|".join(session.tokens[-self.tuning.site_order :]),
            previous=session.tokens[-1],
        )

    def _contexts(self, session: Session, left: int) -> tuple[list[str], list[str]]:
        tokens = session.tokens
        chain = [""]
        for order in range(1, self.tuning.context_order + 1):
            chain.append(f"{order}|" + "|".join(tokens[-order:]))
        called = ",".join(sorted(session.called)[:12])
        return chain, [f"S|{tokens[-1]}|{called}", f"L|{tokens[-1]}|{left}"]

    def _situation(self, session: Session, chain: list[str]) -> str:
        kind = session.tokens[-1]
        known = self.first.total(chain[2])
        return f"{kind}{0 if known < 3 else 1 if known < 15 else 2}"

    def _left(self, session: Session) -> int:
        """Whether a list that the latest tool goes through has values that were not used yet: 0, 1 or 2 (more)."""
        argument = self.calls.arguments.get(session.lead)
        if argument is None:
            return 0
        for place in argument.ranking():
            if place[0] in "okxu" and place in session.memory.places:
                return min(session.memory.unused(place, session.lead), 2)
        return 0

    def _score(self, session: Session, mixed: dict[str, float], proposals: tuple[Proposal, ...]) -> tuple[Scored, ...]:
        sums: dict[tuple[str, bytes], _Sum] = {}
        chains: list[tuple[float, str, Filled]] = []
        likely = sorted((symbol for symbol in mixed if symbol != NO_CALL), key=lambda symbol: -mixed[symbol])
        previous = session.tokens[-1]
        for symbol in likely[: self.tuning.max_classes]:
            if mixed[symbol] < self.tuning.min_class_probability:
                break
            if split_symbol(symbol)[0] not in session.declared:
                continue
            worth = self.tuning.min_probability / mixed[symbol]
            for filled in self.calls.fill(symbol, session.memory, previous, self.tuning.max_candidates, worth):
                probability = mixed[symbol] * filled.probability
                _add(sums, filled, probability)
                chains.append((probability, symbol, filled))
        chains.sort(key=lambda entry: -entry[0])
        for probability, symbol, filled in chains[:_ROLLOUTS]:
            if probability >= _ROLLOUT_MINIMUM:
                self._roll_out(session, symbol, filled, probability, sums)
        for proposal in proposals:
            if proposal.made.tool in session.declared:
                made = Filled(proposal.made.tool, proposal.made.arguments, 1.0, {}, {})
                entry = sums.setdefault((made.tool, made.arguments), _Sum(made))
                entry.probability = max(entry.probability, self.repeats.rate(proposal))
        ranked = sorted(
            sums.values(), key=lambda entry: (-entry.probability, entry.filled.tool, entry.filled.arguments)
        )
        return tuple(
            Scored(s.filled.tool, s.filled.arguments, min(s.probability, _CERTAIN), s.filled.origins)
            for s in ranked[: self.tuning.max_candidates]
            if s.probability >= self.tuning.min_probability
        )

    def _roll_out(
        self,
        session: Session,
        symbol: str,
        filled: Filled,
        probability: float,
        sums: dict[tuple[str, bytes], _Sum],
    ) -> None:
        """Follows the most probable message that begins with a call, and credits the calls that come later in it."""
        memory = session.memory
        assumed = []
        message = {(filled.tool, filled.arguments)}
        try:
            for position in range(1, _ROLLOUT_LENGTH):
                assumed.append(memory.assume(filled.tool, filled.keys))
                mixed = self._within(session, symbol, position)[1]
                best = max((s for s in mixed if s != NO_CALL), key=lambda s: mixed[s], default=NO_CALL)
                if best == NO_CALL or probability * mixed[best] < _ROLLOUT_MINIMUM:
                    break
                if split_symbol(best)[0] not in session.declared:
                    break
                options = self.calls.fill(best, memory, f"+{_token(symbol)}", _ROLLOUT_BREADTH, _ROLLOUT_MINIMUM)
                options = [option for option in options if (option.tool, option.arguments) not in message]
                if not options:
                    break
                probability *= mixed[best]
                for option in options:
                    _add(sums, option, probability * option.probability)
                symbol, filled = best, options[0]
                message.add((filled.tool, filled.arguments))
                probability *= filled.probability
        finally:
            for assumption in reversed(assumed):
                memory.withdraw(assumption)

    def _within(
        self, session: Session, symbol: str, position: int
    ) -> tuple[list[str], dict[str, float], tuple[tuple[float, ...], ...]]:
        """What follows a call in the same message: contexts, probabilities, and the views' logarithms."""
        token = _token(symbol)
        lead = _lead(symbol)
        before, session.lead = session.lead, lead
        left = self._left(session)
        session.lead = before
        chain = ["", f"1|{token}", f"2|{token}|{min(position, 3)}", f"3|{token}|{min(position, 3)}|{left}"]
        outcomes = self.within.outcomes(chain)
        logs = logarithms(self.within.estimates(chain, outcomes))
        return chain, self.within_mixture.mix("", logs, outcomes), logs

    def tools(self, step: Step) -> tuple[tuple[str, float], ...]:
        """Probabilities of the tool of the first call, most probable first."""
        sums: dict[str, float] = {}
        for symbol, share in step.mixed.items():
            if symbol not in (NO_CALL, MADE_UP):
                tool = split_symbol(symbol)[0]
                sums[tool] = sums.get(tool, 0.0) + share
        return tuple(sorted(sums.items(), key=lambda entry: (-entry[1], entry[0])))

    def explain(self, step: Step, scored: Scored) -> str:
        """Why a call is predicted: the context with its evidence, and the derivation of each argument."""
        chance = sum(share for symbol, share in step.mixed.items() if split_symbol(symbol)[0] == scored.tool)
        seen = self.first.total(step.contexts[1])
        parts = [f"{scored.tool} {chance:.0%} after {step.previous} (seen {seen:.0f} times)"]
        for path, place in scored.origins.items():
            argument = self.calls.arguments.get(f"{scored.tool}:{path}")
            if place == "c" or argument is None:
                parts.append(f"{path}: constant")
            else:
                hits, trials = argument.success(place)
                parts.append(f"{path}: from {describe(place)} (right {hits:.0f} of {trials:.0f})")
        if not scored.origins and scored.arguments != b"{}":
            parts.append("the session made this very call before")
        return "; ".join(parts)[: limits.CANDIDATE_EXPLANATION_CHARS]

    # --- learning ---------------------------------------------------------------------------------------------------

    def learn_none(self, name: str, session: Session, step: Step) -> None:
        """The step ended without a call."""
        self._learn_outcome(session, step, NO_CALL)
        self._score_step(name, session, step, frozenset())

    def learn_calls(self, name: str, session: Session, step: Step, turn: int, calls: tuple[Asked, ...]) -> None:
        """The step asked for calls. The session's memory then knows them."""
        flats = [_typed(call.arguments) for call in calls]
        symbols = [
            symbol_of(call.tool, flat if flat is not None else {MADE_UP: None})
            if call.tool in session.declared
            else MADE_UP
            for call, flat in zip(calls, flats, strict=True)
        ]
        spelled = [canonical(call.arguments) for call in calls]
        self._score_step(name, session, step, frozenset(zip((call.tool for call in calls), spelled, strict=True)))
        self._learn_outcome(session, step, symbols[0])
        previous = step.previous
        for position, (call, flat, symbol) in enumerate(zip(calls, flats, symbols, strict=True)):
            if flat is not None and symbol != MADE_UP:
                self.calls.learn(call.tool, flat, session.memory, previous, session.name)
            session.memory.add_arguments(call.tool, {path: key for path, (key, _) in (flat or {}).items()})
            session.trail.add(call.tool, spelled[position])
            session.note_call(turn, call.index, call.tool)
            following = symbols[position + 1] if position + 1 < len(symbols) else NO_CALL
            chain, mixed, logs = self._within(session, symbol, position + 1)
            self.within_mixture.learn("", logs, mixed, following)
            self.within.add(chain, following)
            previous = f"+{_token(symbol)}"
        self.calls_seen += len(calls)
        self.year = session.memory.year or self.year
        session.lead = _lead(symbols[-1])
        session.push(_token(symbols[-1]) + ("*" if len(calls) > 1 else ""))

    def _learn_outcome(self, session: Session, step: Step, truth: str) -> None:
        self.mixture.learn(step.situation, step.logs, step.mixed, truth)
        given = step.given
        if truth not in given:
            given = {**given, truth: 0.0}
        self.intent.learn(step.features, given, truth)
        self.first.add(step.contexts, truth)

    def _score_step(self, name: str, session: Session, step: Step, asked: frozenset[tuple[str, bytes]]) -> None:
        self.repeats.learn(step.proposals, asked)
        session.trail.judge(step.proposals, asked)
        calibration = self.calibration
        calibration.add("0", step.mixed.get(NO_CALL, 0.0), not asked)
        calibration.judged = tuple(
            (calibration.correct(rank_class(rank), scored.raw), (scored.tool, scored.arguments) in asked)
            for rank, scored in enumerate(step.scored, start=1)
        )
        sites: dict[str, None] = {}
        for rank, scored in enumerate(step.scored, start=1):
            hit = (scored.tool, scored.arguments) in asked
            calibration.add(rank_class(rank), scored.raw, hit)
            sites[site_of(name, step.signature, scored.tool)] = None
            if rank == 1 and asked:
                calibration.exact += hit
        for site in sites:
            calibration.witness(site)
        calibration.scored += bool(asked)

    # --- persistence ------------------------------------------------------------------------------------------------

    def to_state(self) -> dict[str, State]:
        """Plain values for persistence. Holds derivations and digests, no observation and no text."""
        return {
            "first": self.first.to_state(),
            "mixture": self.mixture.to_state(),
            "within": self.within.to_state(),
            "within_mixture": self.within_mixture.to_state(),
            "intent": self.intent.to_state(),
            "calls": self.calls.to_state(),
            "calibration": self.calibration.to_state(),
            "durations": self.durations.to_state(),
            "repeats": self.repeats.to_state(),
            "year": self.year,
            "sessions": self.sessions,
            "calls_seen": self.calls_seen,
        }

    @classmethod
    def from_state(cls, state: State, tuning: Tuning) -> Agent:
        """The inverse of `to_state`.

        Raises:
            MalformedState: The state is not one that `to_state` gives.
        """
        agent = cls(tuning)
        fields = table(state)
        agent.first.load(fields["first"])
        agent.mixture.load(fields["mixture"])
        agent.within.load(fields["within"])
        agent.within_mixture.load(fields["within_mixture"])
        agent.intent = Intent.from_state(fields["intent"])
        agent.calls = Calls.from_state(fields["calls"])
        agent.calibration.load(fields["calibration"])
        agent.durations.load(fields["durations"])
        agent.year = None if fields["year"] is None else text(fields["year"])
        agent.repeats.load(fields["repeats"])
        agent.sessions, agent.calls_seen = int(number(fields["sessions"])), int(number(fields["calls_seen"]))
        return agent


def describe(place: str) -> str:
    """A place in words."""
    kind, _, rest = place.partition(":")
    words = {
        "o": "the observation of",
        "k": "a key in the observation of",
        "l": "a list in the observation of",
        "x": "the text of",
        "u": "the user's words, shape",
        "a": "the model's words, shape",
        "r": "the argument",
    }
    return f"{words[kind]} {rest}"


def rank_class(rank: int) -> str:
    """The group of ranks that share a calibration curve."""
    return str(min(rank, 3))


def _add(sums: dict[tuple[str, bytes], _Sum], filled: Filled, probability: float) -> None:
    entry = sums.setdefault((filled.tool, filled.arguments), _Sum(filled))
    entry.probability += probability


def _token(symbol: str) -> str:
    tool, paths = split_symbol(symbol)
    return f"{tool}({len(paths)})" if tool != MADE_UP else MADE_UP


def _lead(symbol: str) -> str:
    tool, paths = split_symbol(symbol)
    return f"{tool}:{paths[0]}" if paths else ""


def _typed(arguments: JsonValue) -> dict[str, tuple[str, str]] | None:
    flat = flatten(arguments)
    if flat is None:
        return None
    return {path: (key_of(value), type_of(value)) for path, value in flat.items()}
