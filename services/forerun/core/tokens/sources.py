"""Sources of drafts compete at the start of each pass, by what they are expected to give for what they cost.

Drafts that cost no model are simply made: they say themselves what they expect (`Draft.expected`, calibrated where
passes begin). A draft model is not asked before it has won, because asking it is what it costs: what is expected of it
is `Acceptance.tokens_per_pass` at the depth that the controller decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


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
