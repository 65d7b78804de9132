"""Calls that come again as they were: the last one once more, or the one that followed the last time.

Sequences of tools do not show it when an agent goes round in a circle of exact calls. Here the session's own calls are
matched, arguments included, and how often such a match was right is counted for each situation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from forerun.predictor.engine.state import State, number_pairs
from forerun.predictor.engine.tuning import MAX_ARGUMENT_BYTES_REPEATED, MAX_CALLS_REMEMBERED, MAX_SITUATIONS

_FADE = 0.99
_PRIOR_TRIALS, _PRIOR_RATE = 6.0, 0.05
_LONGEST_MATCH = 3


class Made(NamedTuple):
    """A call that the session made: a tuple, because each prediction compares dozens of them."""

    tool: str
    arguments: bytes


@dataclass(frozen=True, slots=True)
class Proposal:
    """A call that may come again.

    Attributes:
        made: The call.
        situation: What the match looks like.
        place: The same with the tool before it, which is more exact where it is known well.
    """

    made: Made
    situation: str
    place: str


@dataclass(slots=True)
class Trail:
    """The latest calls of a session."""

    calls: list[Made] = field(default_factory=list)
    streak: int = 0

    def add(self, tool: str, arguments: bytes) -> None:
        """Remembers a call. One with very long arguments breaks the trail."""
        if len(arguments) > MAX_ARGUMENT_BYTES_REPEATED:
            arguments = b""
        self.calls.append(Made(tool, arguments))
        if len(self.calls) > MAX_CALLS_REMEMBERED:
            del self.calls[0]

    def proposals(self, previous: str) -> tuple[Proposal, ...]:
        """The calls that may come again now, `previous` being the token before the step."""
        if not self.calls:
            return ()
        last = self.calls[-1]
        run = 1
        while run < len(self.calls) and run < _LONGEST_MATCH and self.calls[-1 - run] == last:
            run += 1
        found = [(last, f"same|{run}|{previous[-1] in '!U'}")]
        follower, length = self._follower()
        if follower is not None and follower != last:
            found.append((follower, f"next|{length}|{min(self.streak, 3)}|{previous[-1] in '!U'}"))
        return tuple(
            Proposal(made, situation, f"{situation}|{previous}") for made, situation in found if made.arguments
        )

    def _follower(self) -> tuple[Made | None, int]:
        """What followed the latest, longest match of the last calls."""
        calls, end = self.calls, len(self.calls) - 1
        best: Made | None = None
        longest = 0
        for index in range(end - 1, -1, -1):
            if calls[index] != calls[end]:
                continue
            length = 1
            while length < _LONGEST_MATCH and index >= length and calls[index - length] == calls[end - length]:
                length += 1
            if length > longest:
                best, longest = calls[index + 1], length
                if length == _LONGEST_MATCH:
                    break
        return best, longest

    def judge(self, proposals: tuple[Proposal, ...], asked: frozenset[tuple[str, bytes]]) -> None:
        """Counts how often in a row the session went on as it had before."""
        followers = [proposal for proposal in proposals if proposal.situation.startswith("next")]
        if followers:
            right = followers[0].made in asked
            self.streak = self.streak + 1 if right else 0


class Repeats:
    """How often calls come again, by situation."""

    __slots__ = ("rates",)

    def __init__(self) -> None:
        self.rates: dict[str, list[float]] = {}

    def rate(self, proposal: Proposal) -> float:
        """Probability that a proposal is right."""
        hits, trials = self.rates.get(proposal.situation, (0.0, 0.0))
        general = (hits + _PRIOR_TRIALS * _PRIOR_RATE) / (trials + _PRIOR_TRIALS)
        hits, trials = self.rates.get(proposal.place, (0.0, 0.0))
        return (hits + _PRIOR_TRIALS * general) / (trials + _PRIOR_TRIALS)

    def learn(self, proposals: tuple[Proposal, ...], asked: frozenset[tuple[str, bytes]]) -> None:
        """Scores the proposals of one step."""
        for proposal in proposals:
            hit = proposal.made in asked
            for name in (proposal.situation, proposal.place):
                if name not in self.rates and len(self.rates) >= MAX_SITUATIONS:
                    del self.rates[next(iter(self.rates))]
                entry = self.rates.setdefault(name, [0.0, 0.0])
                entry[0], entry[1] = entry[0] * _FADE + hit, entry[1] * _FADE + 1.0

    def to_state(self) -> Mapping[str, State]:
        """Plain values for persistence."""
        return {name: list(entry) for name, entry in self.rates.items()}

    def load(self, state: State) -> None:
        """The inverse of `to_state`.

        Raises:
            MalformedState: The state is not one that `to_state` gives.
        """
        self.rates = number_pairs(state)
