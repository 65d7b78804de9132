"""How one argument gets its value: which places it is copied from, which constants it takes, and how sure that is.

Every value that a known place offers now is a candidate, described by features: the place, how new it is there, its
rank, whether it is the next one not yet used, whether the user has just said it. A log-linear model over the
candidates and "none of them" gives their probabilities. It is trained on every observed call: whatever explains the
value gains, whatever would have given another value loses. Features exist twice, once for this argument and once for
all arguments of the agent, so that a new tool profits from what is known of the others.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from forerun.predictor.engine.memory import Memory
from forerun.predictor.engine.ranking import most
from forerun.predictor.engine.state import State, items, number, number_pairs, numbers, table
from forerun.predictor.engine.tuning import MAX_CONSTANTS, MAX_PATH_SOURCES, MAX_WEIGHTS, NAMES_KEPT
from forerun.predictor.engine.values import STRING
from forerun.predictor.engine.weights import Weights

_PLACES_USED = 8
_VALUES_PER_PLACE = 12
_CONSTANTS_USED = 6
_MAX_CONSTANT_CHARS = 160
_FADE = 0.995
_FLAT = 0.002  # a slope below this is not worth a step
_ONLY, _LAST = 8, 9  # ranks of the only and of the last value of a group
NONE_KEY = "\x01"


@dataclass(slots=True)
class Part:
    """Features that several options have in common, with the sum of their weights."""

    own: tuple[str, ...]
    shared: tuple[str, ...]
    score: float


@dataclass(slots=True)
class Option:
    """A value that the argument may take now.

    Attributes:
        place: The place that explains it best; "c" for a constant.
        parts: Its features.
        calls: Earlier calls that had it as an argument; two arguments from one call belong together.
        events: Other events that showed it, the same way.
        base: Score without what other arguments of the call say.
    """

    place: str
    parts: list[Part] = field(default_factory=list)
    calls: set[int] = field(default_factory=set)
    events: set[int] = field(default_factory=set)
    base: float = 0.0

    def add(self, part: Part) -> None:
        """Gives the option more features."""
        self.parts.append(part)
        self.base += part.score


@dataclass(slots=True)
class Constant:
    """A value that was seen as this argument. Only one that is no secret of a session may be kept in state."""

    count: float = 0.0
    times: int = 0
    sessions: int = 0
    last_session: str = ""


class Argument:
    """The model of one argument of one tool."""

    __slots__ = ("_ranking", "constants", "kinds", "places", "weights")

    def __init__(self) -> None:
        self._ranking: list[str] | None = None  # None: what is known of the places has changed
        self.places: dict[str, list[float]] = {}
        self.constants: dict[str, Constant] = {}
        self.kinds: dict[str, float] = {}
        self.weights = Weights(MAX_WEIGHTS, 0.6)

    def kind(self) -> str:
        """The type that the argument usually has."""
        return max(self.kinds, key=lambda kind: self.kinds[kind], default=STRING)

    def ranking(self) -> list[str]:
        """The places that are known, the one that explained the value most often first."""
        if self._ranking is None:
            self._ranking = sorted(self.places, key=lambda place: self.places[place][0], reverse=True)
        return self._ranking

    def part(self, own: tuple[str, ...], common: tuple[str, ...], shared: Weights) -> Part:
        """Features with their present score."""
        return Part(own, common, self.weights.score(own) + shared.score(common))

    def options(self, name: str, memory: Memory, previous: str, shared: Weights) -> dict[str, Option]:
        """What the argument may be now, scored, with NONE_KEY for a value that nothing offers."""
        options: dict[str, Option] = {}
        uses = memory.used.get(name, {})
        for place in self.ranking()[:_PLACES_USED]:
            self._from_place(place, name, memory, uses, options, previous, shared)
        self._from_constants(options, previous, shared)
        self._in_context(options, memory, uses, shared)
        count = f"-{min(len(options), 4)}"
        none = options[NONE_KEY] = Option("")
        none.add(self.part(*_none_features(previous, count), shared))
        return options

    def _from_place(
        self,
        place: str,
        name: str,
        memory: Memory,
        uses: Mapping[str, int],
        options: dict[str, Option],
        previous: str,
        shared: Weights,
    ) -> None:
        groups = memory.places.get(place)
        if not groups:
            return
        kind = place_class(place, name)
        is_argument = place[0] == "r"
        known: dict[tuple[int, int, str, bool], Part] = {}
        taken = 0
        for age, group in enumerate(reversed(groups)):
            fresh = group.ordinal == memory.ordinal
            awaited = True
            last_index = len(group.keys) - 1
            old = min(age, 2)
            for index, key in enumerate(group.keys):
                if taken >= _VALUES_PER_PLACE:
                    return
                option = options.get(key)
                if option is None:
                    option = options[key] = Option(place)
                    taken += 1
                (option.calls if is_argument else option.events).add(group.ordinal)
                rank = _ONLY if last_index == 0 else _LAST if index == last_index else min(index, 3)
                state = "u" if key in uses else "n" if awaited else "w"
                if state == "n":
                    awaited = False
                case = (old, rank, state, fresh)
                part = known.get(case)
                if part is None:
                    part = known[case] = self.part(*_place_features(place, kind, previous, case), shared)
                option.parts.append(part)
                option.base += part.score

    def _from_constants(self, options: dict[str, Option], previous: str, shared: Weights) -> None:
        counts = {key: constant.count for key, constant in self.constants.items()}
        total = sum(counts.values()) + 1.0
        for rank, key in enumerate(most(_CONSTANTS_USED, counts, counts.__getitem__)):
            option = options.get(key)
            if option is None:
                option = options[key] = Option("c")
            mark = f"c{digest(key)}"
            common = _constant_features(rank, min(int(8 * counts[key] / total), 7))
            option.add(self.part((mark, f"{mark}|{previous}", common[0]), common, shared))

    def _in_context(self, options: dict[str, Option], memory: Memory, uses: Mapping[str, int], shared: Weights) -> None:
        last = max(uses, key=uses.__getitem__) if uses else None
        said, answered = memory.said, memory.answered
        known: dict[tuple[str, bool, bool], Part] = {}
        for key, option in options.items():
            used = "UL" if key == last else "U1" if key in uses else "U0"
            case = (used, key in said, key in answered)
            part = known.get(case)
            if part is None:
                marks = _context_features(*case)
                part = known[case] = self.part(marks, marks, shared)
            option.parts.append(part)
            option.base += part.score

    def learn(self, key: str, options: Mapping[str, Option], scores: Mapping[str, float], shared: Weights) -> None:
        """One step towards the value that was really asked for, among options scored by `normalise`."""
        truth = key if key in options else NONE_KEY
        slopes: dict[int, tuple[Part, list[float]]] = {}
        for name, option in options.items():
            gradient = scores[name] - (1.0 if name == truth else 0.0)
            for part in option.parts:
                entry = slopes.get(id(part))
                if entry is None:
                    slopes[id(part)] = part, [gradient]
                else:
                    entry[1].append(gradient)
        for part, gradients in slopes.values():
            slope = math.fsum(gradients)
            if abs(slope) > _FLAT:
                self.weights.step(part.own, slope)
                shared.step(part.shared, slope * 0.5)

    def credit(self, key: str, kind: str, memory: Memory, session: str) -> None:
        """Counts which places offered the value and which offered only others."""
        explained = memory.where.get(key, {})
        for place, record in self.places.items():
            if place in memory.places:
                record[0] = record[0] * _FADE + (1.0 if place in explained else 0.0)
                record[1] = record[1] * _FADE + 1.0
        for place in explained:
            if place not in self.places:
                self.places[place] = [1.0, 1.0]
        if len(self.places) > MAX_PATH_SOURCES:
            worst = sorted(self.places, key=lambda place: self.places[place][0])
            for place in worst[: len(self.places) - MAX_PATH_SOURCES]:
                del self.places[place]
        self._ranking = None
        self.kinds[kind] = self.kinds.get(kind, 0.0) * _FADE + 1.0
        self._credit_constant(key, session)

    def _credit_constant(self, key: str, session: str) -> None:
        rarest, least = "", math.inf
        for name, constant in self.constants.items():
            count = constant.count = constant.count * _FADE
            if count < least:
                rarest, least = name, count
        if len(key) > _MAX_CONSTANT_CHARS:
            return
        known = self.constants.get(key)
        if known is None:
            if len(self.constants) >= MAX_CONSTANTS:
                if least > 1.0:  # all others are worth more than what was seen once
                    return
                del self.constants[rarest]
            known = self.constants[key] = Constant()
        known.count += 1.0
        known.times += 1
        if known.last_session != session:
            known.sessions += 1
            known.last_session = session

    def success(self, place: str) -> tuple[float, float]:
        """Discounted times that a place offered the value, and times that it offered anything."""
        hits, trials = self.places.get(place, [0.0, 0.0])
        return hits, trials

    def to_state(self) -> dict[str, State]:
        """Plain values for persistence: derivations and weights, and of the values only those fit to be constants."""
        constants: dict[str, State] = {
            key: [constant.count, constant.times, constant.sessions]
            for key, constant in self.constants.items()
            if may_keep(key, constant)
        }
        return {
            "places": {place: list(record) for place, record in self.places.items()},
            "constants": constants,
            "kinds": dict(self.kinds),
            "weights": {name: list(entry) for name, entry in self.weights.table.items()},
        }

    @classmethod
    def from_state(cls, state: State) -> Argument:
        """The inverse of `to_state`.

        Raises:
            MalformedState: The state is not one that `to_state` gives.
        """
        argument = cls()
        fields = table(state)
        argument.places = number_pairs(fields["places"])
        argument.kinds = numbers(fields["kinds"])
        argument.weights.table = number_pairs(fields["weights"])
        for key, entry in table(fields["constants"]).items():
            count, times, sessions = (number(part) for part in items(entry))
            argument.constants[key] = Constant(count, int(times), int(sessions))
        return argument


def normalise(options: Mapping[str, Option], bonus: Mapping[str, float] | None = None) -> dict[str, float]:
    """Probabilities of the options from their scores."""
    if bonus:
        scores = {key: option.base + bonus.get(key, 0.0) for key, option in options.items()}
    else:
        scores = {key: option.base for key, option in options.items()}
    top = max(scores.values())
    raised = {key: math.exp(score - top) for key, score in scores.items()}
    total = sum(raised.values())
    return {key: value / total for key, value in raised.items()}


def place_class(place: str, name: str) -> str:
    """What kind of place it is, in the words shared by all arguments of an agent."""
    if place[0] != "r":
        return place[0]
    if place[2:] == name:
        return "R"
    return "P" if place.rsplit(":", 1)[-1] == name.rsplit(":", 1)[-1] else "r"


# The names of features come again with every value and every call: to spell them out and to hash them anew costs more
# than to look up their weights.


@lru_cache(NAMES_KEPT)
def _place_features(
    place: str, kind: str, previous: str, case: tuple[int, int, str, bool]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    old, rank, state, fresh = case
    new = "f" if fresh else "s"
    return (
        (place, f"{place}{old}{state}", f"{place}{old}{rank}", f"{place}{new}{previous}{state}"),
        (kind, f"{kind}{old}{state}", f"{kind}{old}{rank}{state}", f"{kind}{new}{state}"),
    )


@lru_cache(NAMES_KEPT)
def _constant_features(rank: int, share: int) -> tuple[str, str]:
    return f"c#{rank}", f"c%{share}"


@lru_cache(NAMES_KEPT)
def _none_features(previous: str, count: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return ("-", f"-|{previous}", count), ("-", count)


@lru_cache(NAMES_KEPT)
def _context_features(used: str, said: bool, answered: bool) -> tuple[str, ...]:
    return used, f"S{said:d}{used}", f"A{answered:d}{used}"


def digest(key: str) -> str:
    """A short digest of a value, for features that speak of one value without holding it."""
    return format(zlib.crc32(key.encode("utf-8", "surrogatepass")), "x")


def may_keep(key: str, constant: Constant) -> bool:
    """Whether a value may be kept in persisted state: seen often enough, and unlike a person's data or a secret."""
    if constant.sessions < 2 and constant.times < 3:
        return False
    digits = sum(character.isdigit() for character in key)
    mixed = digits >= 3 and any(character.isalpha() for character in key) and len(key) >= 16 and " " not in key
    return "@" not in key and digits < 9 and not mixed
