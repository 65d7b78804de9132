"""Everything that drafts for one text: what costs no model and a draft model compete before each pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from forerun.core.tokens.depth import DepthController, DepthDecision, DepthReason, Load
from forerun.core.tokens.drafts import NOTHING, Draft
from forerun.core.tokens.recall import RecallDrafter
from forerun.core.tokens.sources import Offer, best
from forerun.serving.backend.loop import Proposal

MODEL: Final = "model"
RECALL: Final = "recall"

ALONE: Final = "target"
"""Name in step tables of the target with drafts that cost no model."""

WITH_DRAFT: Final = "target+draft"
"""Name of the target with its draft model."""

_KEEP: Final = 0.95
"""Weight of the past in the moving averages of seconds."""


class DraftModelPort(Protocol):
    """One sequence of the draft model."""

    def draft(self, keep: int, tokens: Sequence[int], count: int, live: int) -> tuple[Sequence[int], float]:
        """Goes on after `keep` tokens with `tokens`: so many that may follow, and the seconds it took."""
        ...

    def close(self) -> None:
        """Frees its slot."""
        ...


class ModelDrafter:
    """Drafts of a draft model.

    Args:
        port: Its sequence.
    """

    def __init__(self, port: DraftModelPort) -> None:
        self._port = port
        self._fed: list[int] = []

    def propose(self, context: Sequence[int], depth: int, live: int) -> Proposal:
        """At most `depth` tokens that may follow."""
        kept = 0
        for known, token in zip(self._fed, context, strict=False):
            if known != token:
                break
            kept += 1
        # The scores after the last token come with feeding it, also where it was fed before.
        kept = min(kept, len(context) - 1)
        found, seconds = self._port.draft(kept, context[kept:], depth, live)
        self._fed = [*context, *found[:-1]]
        return Proposal(found, MODEL, seconds)

    def close(self) -> None:
        """Frees its slot."""
        self._port.close()


class Depth:
    """How deep to draft, for all texts of a server: the controller, and what it needs to compare sources.

    Args:
        controller: Decides.
    """

    def __init__(self, controller: DepthController) -> None:
        self.controller = controller
        self._draft_seconds = 0.0
        self._pass_seconds = 0.0

    def decide(self, pair: str, live: int, context: int, cap: int) -> DepthDecision:
        """Depth of the next pass with drafts of this pair."""
        load = Load(pair=pair, batch=max(1, live), context=context, draft_model=pair == WITH_DRAFT)
        return self.controller.decide(load, cap)

    def seconds(self, pair: str, live: int, context: int, depth: int) -> float:
        """What a step takes; without a measured table relative to a pass that drafts nothing."""
        table = self.controller.table
        bucket = table.bucket(pair, max(1, live), context)
        if bucket is not None:
            measured = table.cells[pair][bucket].seconds
            return measured[max(one for one in measured if one <= depth)]
        if pair == ALONE or not self._pass_seconds:
            return 1.0
        return 1.0 + depth * self._draft_seconds / self._pass_seconds

    def judged(self, proposal: Proposal, accepted: int, pass_seconds: float) -> None:
        """How a proposal ended."""
        pair = WITH_DRAFT if proposal.drafter == MODEL else ALONE
        self.controller.observe(pair, len(proposal.tokens), accepted)
        if proposal.drafter == MODEL:
            each = proposal.seconds / len(proposal.tokens)
            self._draft_seconds += (1 - _KEEP) * (each - self._draft_seconds)
            self._pass_seconds += (1 - _KEEP) * (pass_seconds - self._pass_seconds)


class Drafts:
    """The drafters of one text.

    Args:
        recall: Drafts that cost no model; None: not wanted.
        model: The draft model's; None: there is none, or it is not wanted.
        depth: How deep.
        fixed: So deep in any case, as far as there is room; None: as the controller decides.
        branches: More than 1: what costs no model drafts trees.
    """

    def __init__(
        self,
        recall: RecallDrafter | None,
        model: ModelDrafter | None,
        depth: Depth,
        fixed: int | None,
        branches: int = 1,
    ) -> None:
        self._recall = recall
        self._model = model
        self._depth = depth
        self._fixed = fixed
        self._branches = branches
        self._scored: Sequence[int] = ()
        self._probing = False

    def extend(self, tokens: Sequence[int]) -> None:
        """Certain tokens that follow."""
        if self._scored:
            right = 0
            while right < min(len(tokens), len(self._scored)) and self._scored[right] == tokens[right]:
                right += 1
            # More than what came is not known to be wrong.
            known = self._scored[: len(tokens)]
            self._depth.controller.observe(ALONE, len(known), right)
            self._scored = ()
        if self._recall is not None:
            self._recall.extend(tokens)

    def propose(self, context: Sequence[int], cap: int, live: int) -> Proposal:
        """At most `cap` tokens that may follow; none where drafting does not pay now."""
        size = len(context)
        recalled = self._recalled(size, cap, live)
        decision = DepthDecision(0, DepthReason.OFF)
        if self._model is not None:
            decision = self._decided(WITH_DRAFT, size, cap, live)
        source = self._winner(recalled, decision, live, size)
        self._probing = source == MODEL and decision.reason is DepthReason.PROBE
        if self._model is not None and source == MODEL:
            return self._model.propose(context, decision.depth, live)
        if source != RECALL:
            return Proposal([], RECALL)
        return Proposal(recalled.tokens, RECALL, parents=None if recalled.is_chain else recalled.parents)

    def _winner(self, recalled: Draft, model: DepthDecision, live: int, context: int) -> str | None:
        """Whose draft is verified; None: nobody's, as a pass without one is expected to give more."""
        depth = self._depth
        if model.depth > 0 and (model.reason is DepthReason.PROBE or not len(recalled)):
            return MODEL  # the controller has decided that it pays, or wants to know
        offers = [Offer(RECALL, recalled.expected, depth.seconds(ALONE, live, context, len(recalled)))]
        if model.depth > 0:
            tokens = depth.controller.acceptance(WITH_DRAFT).tokens_per_pass(model.depth)
            offers.append(Offer(MODEL, tokens - 1.0, depth.seconds(WITH_DRAFT, live, context, model.depth)))
        chosen = best(offers, depth.seconds(ALONE, live, context, 0))
        if chosen is None:
            return RECALL if self._fixed is not None else None  # a given depth is drafted in any case
        return chosen.source

    def judged(self, proposal: Proposal, accepted: int, pass_seconds: float) -> None:
        """How a proposal ended."""
        self._depth.judged(proposal, accepted, pass_seconds)
        if self._probing:
            self._probing = False
            self._depth.controller.probed(WITH_DRAFT, proposal.seconds / pass_seconds)

    def close(self) -> None:
        """The text has ended."""
        if self._model is not None:
            self._model.close()

    def _decided(self, pair: str, context: int, cap: int, live: int) -> DepthDecision:
        if self._fixed is not None:
            return DepthDecision(min(self._fixed, cap), DepthReason.CAPPED)
        return self._depth.decide(pair, live, context, cap)

    def _recalled(self, context: int, cap: int, live: int) -> Draft:
        if self._recall is None:
            return NOTHING
        decision = self._decided(ALONE, context, cap, live)
        if decision.depth > 0:
            return self._recall.propose(decision.depth, self._branches)
        if decision.score:
            self._scored = self._recall.propose(cap).tokens
        return NOTHING
