"""Whole calls: the arguments of one tool together.

Arguments from one event (the same earlier call, the same observation) belong together, so they are chosen by a beam
search and not one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from forerun.core.canonical import CanonicalError, JsonValue, canonical
from forerun.predictor.engine.derivations import NONE_KEY, Argument, Option, normalise
from forerun.predictor.engine.memory import Memory
from forerun.predictor.engine.ranking import most
from forerun.predictor.engine.state import State, number_pairs, table
from forerun.predictor.engine.tuning import MAX_PATHS, NAMES_KEPT
from forerun.predictor.engine.values import unflatten, value_of
from forerun.predictor.engine.weights import Weights

_BEAM = 6
_BRANCH = 4
_SEPARATOR = "\x1f"
_SAME_CALL, _OTHER_CALL, _SAME_EVENT, _OTHER_EVENT, _EQUAL = _MARKS = ("&r", "&!r", "&e", "&!e", "&=")
_Partners = tuple[frozenset[int], frozenset[int], frozenset[str]]


def symbol_of(tool: str, paths: Mapping[str, object]) -> str:
    """The outcome that the sequence model predicts: a tool and the set of its arguments."""
    return _SEPARATOR.join((tool, *sorted(paths)))


@lru_cache(NAMES_KEPT)
def split_symbol(symbol: str) -> tuple[str, tuple[str, ...]]:
    """Tool and argument paths of a symbol."""
    tool, *paths = symbol.split(_SEPARATOR)
    return tool, tuple(paths)


@dataclass(frozen=True, slots=True)
class Filled:
    """A call with all its arguments.

    Attributes:
        tool: The tool.
        arguments: Canonical JSON.
        probability: That these are the arguments, given the tool and its argument names.
        keys: The value chosen for each path.
        origins: The place that each value came from, by path.
    """

    tool: str
    arguments: bytes
    probability: float
    keys: Mapping[str, str]
    origins: Mapping[str, str]


@dataclass(slots=True)
class _Partial:
    probability: float
    keys: dict[str, str]
    origins: dict[str, str]
    calls: frozenset[int]
    events: frozenset[int]


class Calls:
    """Argument models of one agent."""

    __slots__ = ("arguments", "shared")

    def __init__(self) -> None:
        self.arguments: dict[str, Argument] = {}
        self.shared = Weights(400, 0.3)

    def fill(self, symbol: str, memory: Memory, previous: str, limit: int, worth: float) -> list[Filled]:
        """The most probable ways to fill in a call, best first.

        Args:
            symbol: The tool and its argument names.
            memory: What the session has shown.
            previous: The token before the call.
            limit: How many at most.
            worth: The least probability, given the tool, that is of any use; less likely ones are given up early.
        """
        tool, paths = split_symbol(symbol)
        beam = [_Partial(1.0, {}, {}, frozenset(), frozenset())]
        for path in paths:
            name = f"{tool}:{path}"
            argument = self.arguments.get(name)
            if argument is None:
                return []
            options = argument.options(name, memory, previous, self.shared)
            beam = self._extend(beam, path, argument, options, worth)
            if not beam:
                return []
        filled = (self._finish(tool, paths, partial) for partial in beam[:limit])
        return [call for call in filled if call is not None]

    def _extend(
        self, beam: list[_Partial], path: str, argument: Argument, options: dict[str, Option], worth: float
    ) -> list[_Partial]:
        grown: list[_Partial] = []
        known: dict[_Partners, list[tuple[str, float]]] = {}
        for partial in beam:
            partners = (partial.calls, partial.events, frozenset(partial.keys.values()))
            best = known.get(partners)
            if best is None:
                scores = normalise(options, self._bonus(argument, options, *partners))
                del scores[NONE_KEY]
                best = known[partners] = most(_BRANCH, scores.items(), lambda entry: entry[1])
            for key, share in best:
                probability = partial.probability * share
                if probability < worth:
                    break
                option = options[key]
                grown.append(
                    _Partial(
                        probability,
                        {**partial.keys, path: key},
                        {**partial.origins, path: option.place},
                        partial.calls | option.calls,
                        partial.events | option.events,
                    )
                )
        grown.sort(key=lambda partial: -partial.probability)
        return grown[:_BEAM]

    def _bonus(
        self,
        argument: Argument,
        options: dict[str, Option],
        calls: frozenset[int],
        events: frozenset[int],
        chosen: frozenset[str],
    ) -> dict[str, float]:
        if not chosen:
            return {}
        weight = {mark: argument.weights.score((mark,)) + self.shared.score((mark,)) for mark in _MARKS}
        bonus: dict[str, float] = {}
        for key, option in options.items():
            value = 0.0
            if calls:
                value += weight[_OTHER_CALL if calls.isdisjoint(option.calls) else _SAME_CALL]
            if events:
                value += weight[_OTHER_EVENT if events.isdisjoint(option.events) else _SAME_EVENT]
            if key in chosen:
                value += weight[_EQUAL]
            bonus[key] = value
        return bonus

    def _finish(self, tool: str, paths: Sequence[str], partial: _Partial) -> Filled | None:
        flat: dict[str, JsonValue] = {}
        for path in paths:
            kind = self.arguments[f"{tool}:{path}"].kind()
            try:
                flat[path] = value_of(partial.keys[path], kind)
            except ValueError:
                return None
        try:
            arguments = canonical(unflatten(flat))
        except (CanonicalError, ValueError):
            return None
        return Filled(tool, arguments, partial.probability, partial.keys, partial.origins)

    def learn(
        self, tool: str, flat: Mapping[str, tuple[str, str]], memory: Memory, previous: str, session: str
    ) -> None:
        """Learns from a call that was asked for, before the memory knows of it.

        Args:
            tool: The tool.
            flat: Key and type of each argument by path.
            memory: What the session had shown when the call was asked for.
            previous: The token before the call.
            session: Where the constants were seen.
        """
        calls: frozenset[int] = frozenset()
        events: frozenset[int] = frozenset()
        chosen: set[str] = set()
        for path in sorted(flat):
            key, kind = flat[path]
            name = f"{tool}:{path}"
            argument = self.arguments.get(name)
            if argument is None:
                if len(self.arguments) >= MAX_PATHS:
                    del self.arguments[next(iter(self.arguments))]
                argument = self.arguments[name] = Argument()
            options = argument.options(name, memory, previous, self.shared)
            for value, option in options.items():
                marks = partner_marks(option, calls, events)
                if value in chosen:
                    marks = (*marks, _EQUAL)
                if marks:
                    option.add(argument.part(marks, marks, self.shared))
            argument.learn(key, options, normalise(options), self.shared)
            argument.credit(key, kind, memory, session)
            chosen.add(key)
            truth = options.get(key)
            if truth is not None:
                calls |= truth.calls
                events |= truth.events

    def to_state(self) -> dict[str, State]:
        """Plain values for persistence."""
        return {
            "arguments": {name: argument.to_state() for name, argument in self.arguments.items()},
            "shared": {name: list(entry) for name, entry in self.shared.table.items()},
        }

    @classmethod
    def from_state(cls, state: State) -> Calls:
        """The inverse of `to_state`.

        Raises:
            MalformedState: The state is not one that `to_state` gives.
        """
        calls = cls()
        fields = table(state)
        calls.arguments = {name: Argument.from_state(entry) for name, entry in table(fields["arguments"]).items()}
        calls.shared.table = number_pairs(fields["shared"])
        return calls


def partner_marks(option: Option, calls: frozenset[int], events: frozenset[int]) -> tuple[str, ...]:
    """Features of a value that does or does not share an event with the arguments chosen before it."""
    marks: tuple[str, ...] = ()
    if calls:
        marks = (_OTHER_CALL if calls.isdisjoint(option.calls) else _SAME_CALL,)
    if events:
        marks = (*marks, _OTHER_EVENT if events.isdisjoint(option.events) else _SAME_EVENT)
    return marks
