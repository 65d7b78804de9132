"""Decides how deep to draft. The measured table decides; it is argmax of expected tokens a second, with hysteresis."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from forerun.core.tokens.depth.acceptance import PRIOR_RATE, Acceptance
from forerun.core.tokens.depth.costs import StepCosts, StepTable, nominal
from forerun.core.tokens.depth.reading import PRIOR_ANSWER_TOKENS, probe_gap

PRIOR_CROSSOVER_BATCH: Final = 32
_PRIOR_DEPTH: Final = 4
_MARGIN: Final = 0.02  # another depth must promise so much more
_SCORE_EVERY: Final = 8


class DepthReason(StrEnum):
    """Why a depth was chosen; a closed set for metrics.

    `READING` is said by who asks the draft model: reading would cost too much, or nobody knows yet what it costs.
    """

    TABLE = "table"
    NOMINAL = "nominal"
    PRIOR = "prior"
    OFF = "off"
    CAPPED = "capped"
    PROBE = "probe"
    READING = "reading"


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is decoded now.

    Attributes:
        pair: Name of the target alone (drafts cost no model) or of "target+draft", as in the table.
        batch: Texts in one pass.
        context: Tokens of context, the mean over the batch.
        draft_model: Drafting runs a model.
        answer: Expected tokens of the answer; None: not known.
        catch_up: What a draft model takes to read what it has not read yet, in passes without a draft.
    """

    pair: str
    batch: int
    context: int
    draft_model: bool
    answer: int | None = None
    catch_up: float = 0.0


@dataclass(frozen=True, slots=True)
class DepthDecision:
    """How deep to draft for the next pass.

    Attributes:
        depth: Tokens for each text. 0: no draft at all, so no forward of a draft model either.
        reason: Why.
        score: At depth 0, of a source that costs no model: propose, verify nothing, and `observe` how the proposal
            compares with what comes. That keeps the acceptance fresh for nothing.
    """

    depth: int
    reason: DepthReason
    score: bool = False


@dataclass(slots=True)
class _Cell:
    """Where one bucket of load stands."""

    depth: int = 0
    off_passes: int = 0
    probed_at: int = 0


@dataclass(slots=True)
class DepthController:
    """Depth for all texts of one target.

    Args:
        table: Measured step times; `reload` replaces it while texts run.
        most: Deepest draft that the target can verify in a pass.
    """

    table: StepTable
    most: int
    _acceptance: dict[str, Acceptance] = field(default_factory=dict)
    _cells: dict[tuple[str, tuple[int, int]], _Cell] = field(default_factory=dict)
    _probes_lost: dict[str, float] = field(default_factory=dict)

    def reload(self, table: StepTable) -> None:
        """Takes a new table. What was seen of acceptance stays; depths are decided anew."""
        self.table = table
        self._cells.clear()

    def observe(self, pair: str, drafted: int, accepted: int) -> None:
        """How one draft of one text ended."""
        if drafted > 0:
            self.acceptance(pair).observe(drafted, accepted)

    def probed(self, pair: str, lost: float) -> None:
        """What a probe took beyond a pass without a draft and beyond what was read before it, in such passes."""
        before = self._probes_lost.get(pair, lost)
        self._probes_lost[pair] = (before + max(0.0, lost)) / 2.0

    def acceptance(self, pair: str) -> Acceptance:
        """What is known of a pair's acceptance."""
        return self._acceptance.setdefault(pair, Acceptance())

    def decide(self, load: Load, cap: int) -> DepthDecision:
        """Depth of the next pass.

        Args:
            load: What is decoded.
            cap: The governor's bound on drafted tokens of a text in a pass; 0: no speculation.
        """
        cap = min(cap, self.most)
        if cap <= 0:
            return DepthDecision(0, DepthReason.CAPPED)
        bucket = self.table.bucket(load.pair, load.batch, load.context)
        if bucket is not None:
            costs, reason = self.table.cells[load.pair][bucket], DepthReason.TABLE
        elif load.draft_model:
            return self._prior(load, cap)
        else:
            bucket = (1 << max(0, load.batch - 1).bit_length(), 0)
            costs, reason = nominal(bucket[0], range(self.most + 1)), DepthReason.NOMINAL
        cell = self._cells.setdefault((load.pair, bucket), _Cell())
        cell.depth = self._best(load.pair, costs, cap, cell.depth)
        if cell.depth > 0:
            cell.off_passes = cell.probed_at = 0
            return DepthDecision(cell.depth, reason)
        return self._off(load, costs, cap, cell)

    def _best(self, pair: str, costs: StepCosts, cap: int, current: int) -> int:
        """The depth with the highest expected goodput; the current one where none is clearly better."""
        acceptance = self.acceptance(pair)
        goodput = {depth: acceptance.tokens_per_pass(depth) / costs.seconds[depth] for depth in costs.depths(cap)}
        best = max(goodput, key=lambda depth: (goodput[depth], -depth))
        if current in goodput and goodput[best] <= goodput[current] * (1.0 + _MARGIN):
            return current
        return best

    def _off(self, load: Load, costs: StepCosts, cap: int, cell: _Cell) -> DepthDecision:
        """Off, except for probes: rare enough that even useless ones cost next to nothing."""
        cell.off_passes += 1
        if not load.draft_model:
            return DepthDecision(0, DepthReason.OFF, score=cell.off_passes % _SCORE_EVERY == 0)
        shallow = [depth for depth in costs.depths(cap) if depth > 0][:1]
        if not shallow:
            return DepthDecision(0, DepthReason.OFF)
        lost = costs.seconds[shallow[0]] / costs.seconds[0] - 1.0
        if self._probe_is_due(load, cell, lost):
            return DepthDecision(shallow[0], DepthReason.PROBE)
        return DepthDecision(0, DepthReason.OFF)

    def _probe_is_due(self, load: Load, cell: _Cell, lost: float) -> bool:
        lost = max(0.0, lost, self._probes_lost.get(load.pair, 0.0))
        if cell.off_passes - cell.probed_at < probe_gap(lost, load.catch_up):
            return False
        cell.probed_at = cell.off_passes
        return True

    def _prior(self, load: Load, cap: int) -> DepthDecision:
        """A draft model that was never measured here: only where published experience says that it pays."""
        cell = self._cells.setdefault((load.pair, (0, 0)), _Cell())
        if load.batch >= PRIOR_CROSSOVER_BATCH or (load.answer is not None and load.answer < PRIOR_ANSWER_TOKENS):
            return DepthDecision(0, DepthReason.PRIOR)
        if self.acceptance(load.pair).rate >= PRIOR_RATE * (1.0 - (_MARGIN if cell.depth else 0.0)):
            cell.depth, cell.off_passes, cell.probed_at = min(cap, _PRIOR_DEPTH), 0, 0
            return DepthDecision(cell.depth, DepthReason.PRIOR)
        cell.depth = 0
        cell.off_passes += 1
        if self._probe_is_due(load, cell, 0.0):
            return DepthDecision(1, DepthReason.PROBE)
        return DepthDecision(0, DepthReason.PRIOR)
