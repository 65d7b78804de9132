"""Sources of drafts compete at the start of each pass, by what they are expected to give for what they cost.

Drafts that cost no model are simply made: they say themselves what they expect (`Draft.expected`, calibrated where
passes begin). A draft model is not asked before it has won, because asking it is what it costs: its acceptance is what
was seen of it, by position, and what the depth controller knows of its step times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from forerun.core.tokens.depth.acceptance import Acceptance
from forerun.core.tokens.drafts import Draft

FREE: Final = "recall"


class DraftModel(Protocol):
    """A small model that drafts. Its forward runs elsewhere, so the call is asynchronous and can be cancelled."""

    async def propose(self, context: Sequence[int], nodes: int) -> Draft:
        """A chain of at most `nodes` tokens, with the distribution each was drawn from where the rule wants it."""
        ...


class ExpectedCalls(Protocol):
    """The predictor's view of what the text will be: messages with calls, rendered as the model would write them.

    `RecallDrafter.expect` takes them: they vote like any other place where the context has stood before, with weights
    of their own that are learned, so a wrong expectation costs what it deserves.
    """

    def expected(self) -> Sequence[Sequence[int]]:
        """Tokens of what is expected next, likeliest first; empty where nothing is."""
        ...


@dataclass(frozen=True, slots=True)
class Offer:
    """What a source could give in this pass.

    Attributes:
        source: Its name.
        expected: Accepted drafted tokens that are expected, calibrated where passes begin.
        seconds: Drafting and the verifying pass together.
    """

    source: str
    expected: float
    seconds: float


def best(offers: Sequence[Offer], pass_seconds: float) -> Offer | None:
    """The offer with the most expected tokens a second; None where a pass without a draft gives more.

    Args:
        offers: Of all sources; of equal ones the first.
        pass_seconds: What a pass without a draft takes.
    """
    chosen, most = None, 1.0 / pass_seconds
    for offer in offers:
        goodput = (1.0 + offer.expected) / offer.seconds
        if goodput > most:
            chosen, most = offer, goodput
    return chosen


def offer_of_model(source: str, acceptance: Acceptance, seconds: Mapping[int, float], cap: int) -> Offer | None:
    """A draft model's best offer: its depth is what makes the most of its acceptance and step times.

    Args:
        source: Its name.
        acceptance: What was seen of it where passes began.
        seconds: Step times by depth (`StepCosts.seconds`).
        cap: Deepest draft that is allowed.
    """
    offers = [
        Offer(source, acceptance.tokens_per_pass(depth) - 1.0, taken)
        for depth, taken in sorted(seconds.items())
        if 0 < depth <= cap
    ]
    return max(offers, key=lambda offer: (1.0 + offer.expected) / offer.seconds, default=None)
