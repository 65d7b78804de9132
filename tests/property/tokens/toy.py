"""A deterministic toy model with equal top scores in places, and texts decoded with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from forerun.core.tokens.distribution import Dense
from forerun.core.tokens.drafts import Draft
from forerun.core.tokens.noise import fraction, mixed
from forerun.core.tokens.sampling import SamplingOptions, TokenCounts, process
from forerun.core.tokens.stopping import Answer, StopRules, TokenEvent
from forerun.core.tokens.verify import Rule, of_rows, verify

VOCABULARY = 12
# Pieces that cut stop strings and characters in two.
PIECES = [b"a", b"b", b"ab", b"c", b" ", b"\xc3", b"\xa9", b"END", b"E", b"ND", b"x", b"\n"]


def logits(context: Sequence[int]) -> list[float]:
    """Scores that depend on the last two tokens; few levels, so that ties are common."""
    state = mixed((context[-1] * 31 + context[-2] + 1) * 7919)
    return [float(int(fraction(state, token) * 5)) for token in range(VOCABULARY)]


DraftFor = Callable[[Sequence[int]], Draft]


@dataclass
class Decoding:
    """One text, decoded in passes."""

    prompt: list[int]
    options: SamplingOptions
    rule: Rule
    stops: StopRules
    events: list[TokenEvent] = field(default_factory=list)
    passes: int = 0
    accepted: int = 0

    def run(self, draft_for: DraftFor) -> list[TokenEvent]:
        """Its events."""
        counts, answer, context = TokenCounts(self.prompt), Answer(self.stops, PIECES.__getitem__), list(self.prompt)
        while answer.finish is None:
            draft = draft_for(context)
            rows = [logits(context)] + [logits(context + path(draft, node)) for node in range(len(draft))]
            found = verify(draft, of_rows(rows, self.process), counts, self.rule, len(context))
            context += found.tokens
            self.events += answer.take(found.tokens)
            self.passes += 1
            self.accepted += found.accepted
        return self.events

    def process(self, row: Sequence[float], counts: TokenCounts) -> Dense:
        return process(row, counts, self.options)


def path(draft: Draft, node: int) -> list[int]:
    """Tokens from the root to a node."""
    found = []
    while node >= 0:
        found.append(draft.tokens[node])
        node = draft.parents[node]
    return found[::-1]
