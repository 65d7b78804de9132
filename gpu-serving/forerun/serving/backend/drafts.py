"""Everything that drafts for one text: what costs no model and a draft model compete before each pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from forerun.core.tokens.depth import (
    PROBE_TOKENS,
    SHORT_READ,
    AnswerLengths,
    DepthController,
    DepthDecision,
    DepthReason,
    Load,
    Reading,
    ReadingSpeed,
)
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
        self._read = 0  # certain tokens, from the beginning
        self._guessed: Sequence[int] = ()  # after them: what it drafted itself

    def unread(self, context: Sequence[int]) -> int:
        """Tokens that it has to read before it can draft what follows; at least the last one."""
        return len(context) - self._kept(context)

    def propose(self, context: Sequence[int], depth: int, live: int) -> Proposal:
        """At most `depth` tokens that may follow."""
        kept = self._kept(context)
        found, seconds = self._port.draft(kept, context[kept:], depth, live)
        self._read, self._guessed = len(context), found[:-1]
        return Proposal(found, MODEL, seconds, read=len(context) - kept)

    def read(self, context: Sequence[int], most: int, live: int) -> Proposal:
        """Reads on, at most so many tokens, and proposes nothing: only what it took is of interest."""
        kept = self._kept(context)
        self._read, self._guessed = min(kept + most, len(context)), ()
        _, seconds = self._port.draft(kept, context[kept : self._read], 1, live)
        return Proposal((), MODEL, seconds, read=self._read - kept)

    def _kept(self, context: Sequence[int]) -> int:
        kept = self._read
        for guess, token in zip(self._guessed, context[kept : kept + len(self._guessed)], strict=False):
            if guess != token:
                break
            kept += 1
        # The scores after the last token come with feeding it, also where it was fed before.
        return min(kept, len(context) - 1)

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
        self.answers = AnswerLengths()
        self._reading = ReadingSpeed()
        self._draft_seconds: float | None = None
        self._pass_seconds: float | None = None

    def decide(self, pair: str, live: int, context: int, cap: int, catch_up: float = 0.0) -> DepthDecision:
        """Depth of the next pass with drafts of this pair, whose model has to read for `catch_up` seconds first."""
        load = Load(
            pair=pair,
            batch=max(1, live),
            context=context,
            draft_model=pair == WITH_DRAFT,
            catch_up=catch_up and catch_up / self._step(live, context, 0),
        )
        return self.controller.decide(load, cap)

    def decide_model(self, live: int, context: int, cap: int, unread: int, given: int, left: int) -> DepthDecision:
        """Depth of the next pass with drafts of the model; `READING` where what it has to read first does not pay.

        Args:
            live: Texts that are decoded.
            context: Tokens of prompt and answer.
            cap: Most tokens.
            unread: Tokens that the model has to read.
            given: Tokens of the answer so far.
            left: Tokens that may still come.
        """
        each = 0.0 if unread <= SHORT_READ else self._reading.token_seconds(live)
        if each is None:
            return _UNREAD
        decision = self.decide(WITH_DRAFT, live, context, cap, unread * each)
        if unread <= SHORT_READ or not decision.depth or decision.reason is DepthReason.PROBE:
            return decision
        expected = Reading(
            unread=unread,
            token_seconds=each,
            left=self.answers.left(given, left),
            pass_seconds=self._step(live, context, 0),
            step_seconds=self._step(live, context, decision.depth),
            tokens_per_pass=self.controller.acceptance(WITH_DRAFT).tokens_per_pass(decision.depth),
        )
        return decision if expected.pays else _UNREAD

    def read_probe_is_due(self, live: int, context: int) -> bool:
        """For a pass whose draft model is not asked for what it would have to read: it may read a little."""
        return self._reading.probe_is_due(live, self._step(live, context, 0))

    def seconds(self, pair: str, live: int, context: int, depth: int) -> float:
        """What a step takes; without a measured table relative to a pass that drafts nothing."""
        table = self.controller.table
        bucket = table.bucket(pair, max(1, live), context)
        if bucket is not None:
            measured = table.cells[pair][bucket].seconds
            return measured[max(one for one in measured if one <= depth)]
        if pair == ALONE or self._draft_seconds is None or not self._pass_seconds:
            return 1.0
        return 1.0 + depth * self._draft_seconds / self._pass_seconds

    def judged(self, proposal: Proposal, accepted: int, pass_seconds: float, live: int) -> None:
        """How a proposal ended."""
        pair = WITH_DRAFT if proposal.drafter == MODEL else ALONE
        self.controller.observe(pair, len(proposal.tokens), accepted)
        if proposal.drafter != MODEL:
            return
        self._pass_seconds = _moved(self._pass_seconds, pass_seconds)
        if proposal.read <= SHORT_READ:
            self._draft_seconds = _moved(self._draft_seconds, proposal.seconds / len(proposal.tokens))
        elif self._draft_seconds is not None or len(proposal.tokens) <= 1:
            self._reading.observe(live, proposal.read, self.reading_seconds(proposal))

    def reading_seconds(self, proposal: Proposal) -> float:
        """What the draft model read for, of the seconds of a proposal; 0: no more than a step holds."""
        if proposal.read <= SHORT_READ:
            return 0.0
        # The first token comes with what is read. That takes longer than each of the others.
        forwards = max(1, len(proposal.tokens))
        others = (forwards - 1) * (self._draft_seconds or 0.0)
        return max(proposal.seconds / forwards, proposal.seconds - others)

    def _step(self, live: int, context: int, depth: int) -> float:
        """Seconds of a step with `depth` tokens of the draft model."""
        measured = self.controller.table.bucket(WITH_DRAFT, max(1, live), context) is not None
        return self.seconds(WITH_DRAFT, live, context, depth) * (1.0 if measured else self._pass_seconds or 1.0)


_UNREAD: Final = DepthDecision(0, DepthReason.READING)


def _moved(average: float | None, value: float) -> float:
    """A moving average that begins with its first value."""
    return value if average is None else _KEEP * average + (1 - _KEEP) * value


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
        self._live = 1
        self._given: int | None = None  # tokens of the answer; None: the prompt has not come yet
        self._free = 0  # those of passes whose drafts cost no model

    def extend(self, tokens: Sequence[int]) -> None:
        """Certain tokens that follow."""
        self._given = 0 if self._given is None else self._given + len(tokens)
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

    def propose(self, context: Sequence[int], cap: int, live: int, left: int) -> Proposal:
        """At most `cap` tokens that may follow; none where drafting does not pay now."""
        size, self._live = len(context), live
        recalled = self._recalled(size, cap, live)
        decision = DepthDecision(0, DepthReason.OFF)
        if self._model is not None:
            decision = self._decided_model(self._model, context, cap, live, left)
            if decision.reason is DepthReason.READING and self._depth.read_probe_is_due(live, size):
                return self._model.read(context, PROBE_TOKENS, live)
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
        if proposal.drafter == RECALL:
            self._free += accepted + 1
        self._depth.judged(proposal, accepted, pass_seconds, self._live)
        if self._probing:
            self._probing = False
            drafting = proposal.seconds - self._depth.reading_seconds(proposal)
            self._depth.controller.probed(WITH_DRAFT, drafting / pass_seconds)

    def close(self) -> None:
        """The text has ended."""
        if self._given:
            self._depth.answers.ended(self._given, min(self._free, self._given))
        if self._model is not None:
            self._model.close()

    def _decided(self, context: int, cap: int, live: int) -> DepthDecision:
        if self._fixed is not None:
            return DepthDecision(min(self._fixed, cap), DepthReason.CAPPED)
        return self._depth.decide(ALONE, live, context, cap)

    def _decided_model(
        self, model: ModelDrafter, context: Sequence[int], cap: int, live: int, left: int
    ) -> DepthDecision:
        if self._fixed is not None:
            return DepthDecision(min(self._fixed, cap), DepthReason.CAPPED)
        return self._depth.decide_model(live, len(context), cap, model.unread(context), self._given or 0, left)

    def _recalled(self, context: int, cap: int, live: int) -> Draft:
        if self._recall is None:
            return NOTHING
        decision = self._decided(context, cap, live)
        if decision.depth > 0:
            return self._recall.propose(decision.depth, self._branches)
        if decision.score:
            self._scored = self._recall.propose(cap).tokens
        return NOTHING
