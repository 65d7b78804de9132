"""How much each place where the context has stood before says about the next token, learned where it matters.

The next token is modelled as a mixture: each place votes for what followed it, with a weight for its class (session,
the agent's history, the tenant's, an expected call) and for the length of equal context; one share stands for "none of
them". The weights are those that make the real tokens likeliest, found by multiplicative steps on what really came.

There are two sets of weights. Where a pass begins, the token before has just refuted the best guess, so equal context
is worth less there than in the middle of a draft: weights from all places would promise too much exactly where drafts
are chosen. How often one place was followed by its token says nothing (it is 1.0): only the class and the length do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

from forerun.core.errors import CoreError
from forerun.core.tokens.context import LONGEST_MATCH, Occurrence


class Evidence(IntEnum):
    """Class of a place: where the context was found again."""

    SESSION = 0
    OWN_HISTORY = 1
    TENANT_HISTORY = 2
    EXPECTED_CALL = 3


_BOUNDS: Final = (1, 2, 3, 4, 5, 6, 7, 9, 12, 16, 24)  # first length of each bin
_BINS: Final = len(_BOUNDS)
_MATCHES: Final = LONGEST_MATCH + 64  # a draft goes on from a place that matched, so matches grow by its length
_BIN_OF: Final = [max(0, sum(bound <= match for bound in _BOUNDS) - 1) for match in range(_MATCHES)]
_STEP_SAMPLES: Final = 128
_STEADY: Final = 4.0  # keeps weights steady that few samples speak about
_LEARN_EVERY: Final = 4
_PHASES: Final = 2
_LARGEST_LOG: Final = 8.0
_MISSING: Final = 1e-3  # likelihood of a token that no place voted for, so that it still counts

Weights = list[list[float]]
"""By class, then by length of equal context."""


@dataclass(slots=True)
class _Sums:
    gradient: list[float]
    scale: list[float]


class EvidenceWeights:
    """The weights of one agent (or of all): what they are, and how they are learned.

    Attributes:
        begin: For the first token of a draft.
        middle: For the others.
    """

    def __init__(self, logs: Sequence[Sequence[float]] | None = None) -> None:
        size = _BINS * len(Evidence)
        start = PRIOR if logs is None else logs
        if len(start) != _PHASES or any(len(row) != size or not all(map(math.isfinite, row)) for row in start):
            raise CoreError("invalid_weights", f"weights of evidence are {_PHASES} lists of {size} finite numbers")
        self._logs = [list(row) for row in start]
        self._sums = [_Sums([0.0] * size, [0.0] * size) for _ in range(_PHASES)]
        self._samples = 0
        self._drafts = 0
        self.begin: Weights = []
        self.middle: Weights = []
        self._expand()

    def as_json(self) -> dict[str, Any]:
        """For persistence."""
        return {"version": 1, "logs": [[round(one, 4) for one in row] for row in self._logs]}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> EvidenceWeights:
        """What `as_json` gave.

        Raises:
            CoreError: `invalid_weights`.
        """
        if stored.get("version") != 1 or not isinstance(stored.get("logs"), list):
            raise CoreError("invalid_weights", "these are no weights of evidence of version 1")
        return cls(stored["logs"])

    def wants_sample(self) -> bool:
        """Whether the next draft is to be learned from: a fixed share of them, because it costs as much as a draft."""
        self._drafts += 1
        return self._drafts % _LEARN_EVERY == 0

    def learn(self, places: Sequence[Occurrence], drafted: Sequence[int], came: Sequence[int]) -> None:
        """Learns from a pass: what voted, what was drafted first, and what really came."""
        for step, token in enumerate(came):
            if not places:
                return
            self._add(min(step, 1), places, token)
            if step >= len(drafted) or drafted[step] != token:
                return
            places = [
                (kind, match + 1, at + 1, tokens)
                for kind, match, at, tokens in places
                if at < len(tokens) and tokens[at] == token
            ]

    def _add(self, phase: int, places: Sequence[Occurrence], token: int) -> None:
        weights = self.middle if phase else self.begin
        votes: dict[int, float] = {}
        right: dict[int, float] = {}
        for kind, match, at, tokens in places:
            if at < len(tokens):
                slot, weight = kind * _BINS + _BIN_OF[match], weights[kind][match]
                votes[slot] = votes.get(slot, 0.0) + weight
                if tokens[at] == token:
                    right[slot] = right.get(slot, 0.0) + weight
        sums, total, hit = self._sums[phase], sum(votes.values()) + 1.0, sum(right.values()) + _MISSING
        for slot, weight in votes.items():
            share = weight / total
            answered = right.get(slot, 0.0) / hit
            sums.gradient[slot] += answered - share
            sums.scale[slot] += answered + share
        self._samples += 1
        if self._samples >= _STEP_SAMPLES:
            self._step()

    def _step(self) -> None:
        for phase, sums in enumerate(self._sums):
            logs = self._logs[phase]
            for slot, scale in enumerate(sums.scale):
                moved = logs[slot] + sums.gradient[slot] / (scale + _STEADY)
                logs[slot] = max(-_LARGEST_LOG, min(_LARGEST_LOG, moved))
                sums.gradient[slot] = sums.scale[slot] = 0.0
        self._samples = 0
        self._expand()

    def _expand(self) -> None:
        tables = [
            [[math.exp(logs[kind * _BINS + slot]) for slot in _BIN_OF] for kind in range(len(Evidence))]
            for logs in self._logs
        ]
        self.begin, self.middle = tables


UNTAUGHT: Final[tuple[tuple[float, ...], ...]] = tuple(
    tuple(
        0.35 * slot - (0.0 if kind in {Evidence.SESSION, Evidence.EXPECTED_CALL} else 2.5)
        for kind in Evidence
        for slot in range(_BINS)
    )
    for _ in range(_PHASES)
)
"""Logarithms of weights that nothing was learned for: longer equal context counts more, the own session most."""

_CALL_PRIOR: Final = (0.0, 0.4, 0.7, 1.1, 1.4, 1.8, 2.1, 2.5, 2.8, 3.2, 3.5)  # nothing was recorded to learn it from
# Where passes begin, then the middle of drafts; session, the agent's history, the tenant's, an expected call.
# Learned by `make bench-drafts` on six recorded sets (mean of their logarithms); the bench itself starts untaught.
PRIOR: Final[tuple[tuple[float, ...], ...]] = (
    (
        *(-2.0, -0.6, 0.8, 1.0, 1.1, 1.7, 2.2, 2.0, 2.7, 3.1, 3.4),
        *(-3.2, -2.0, -1.5, -1.2, -0.8, -0.5, -0.2, 0.0, 0.3, 0.7, 1.0),
        *(-3.3, -2.3, -1.9, -1.3, -1.0, -0.7, -0.4, -0.1, 0.3, 0.7, 1.0),
        *_CALL_PRIOR,
    ),
    (
        *(0.0, -0.7, 0.0, 0.6, 0.8, 1.2, 1.5, 1.7, 2.2, 2.6, 3.2),
        *(-2.5, -2.2, -1.6, -1.1, -1.0, -0.5, -0.4, -0.1, 0.5, 0.7, 1.0),
        *(-2.5, -2.3, -1.9, -1.4, -1.2, -0.7, -0.5, 0.0, 0.3, 0.6, 0.9),
        *_CALL_PRIOR,
    ),
)
"""Logarithms of the weights that every agent starts with."""
