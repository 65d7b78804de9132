"""The depth controller on a ramp of batches with declared step times, so that noise of a machine decides nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from forerun.core.tokens.depth import DepthController, Load, StepCosts, StepTable
from forerun.core.tokens.noise import fraction, key

DEPTHS: Final = (0, 1, 2, 3, 4, 5, 6, 7)
BATCHES: Final = (1, 2, 4, 8, 16, 32, 64)
RAMP: Final = BATCHES + BATCHES[-2::-1]
PASSES: Final = 600
_CONTEXT: Final = 1_024


@dataclass(frozen=True, slots=True)
class Machine:
    """Declared step times of a target, and of a draft model where there is one.

    Attributes:
        name: For the report.
        pass_seconds: Of a pass with few tokens: reading the weights.
        knee: Tokens of a pass from which on computing decides.
        draft_seconds: Of one forward of the draft model with few tokens; 0: drafts cost no model.
    """

    name: str
    pass_seconds: float
    knee: int
    draft_seconds: float = 0.0

    @property
    def pair(self) -> str:
        """As in the table."""
        return "target+draft" if self.draft_seconds else "target"

    def step(self, batch: int, depth: int) -> float:
        """Seconds of a step."""
        verify = self.pass_seconds * max(1.0, batch * (depth + 1) / self.knee)
        return verify + depth * self.draft_seconds * max(1.0, batch / self.knee)

    def table(self) -> StepTable:
        """What calibration on this machine gives."""
        cells = {
            (batch, _CONTEXT): StepCosts({depth: self.step(batch, depth) for depth in DEPTHS}) for batch in BATCHES
        }
        return StepTable({self.pair: cells})


MACHINES: Final = (Machine("free drafts", 0.025, 32), Machine("draft model", 0.025, 64, 0.004))


def tokens_per_pass(rate: float, depth: int) -> float:
    """Expected tokens of a pass when each token is accepted with the same chance."""
    return sum(rate**position for position in range(depth + 1))


@dataclass(frozen=True, slots=True)
class Level:
    """One stretch of the ramp.

    Attributes:
        batch: Texts in one pass.
        controller: Tokens a second of the whole batch.
        fixed: The same, by depth; 0 is off.
        depths: Depths the controller chose, in order.
    """

    batch: int
    controller: float
    fixed: Mapping[int, float]
    depths: Sequence[int]

    @property
    def off(self) -> float:
        """Tokens a second without speculation."""
        return self.fixed[0]

    @property
    def best(self) -> float:
        """Of the best fixed depth."""
        return max(self.fixed.values())


def ramp(machine: Machine, rates: Mapping[int, float], *, passes: int = PASSES, seed: int = 1) -> list[Level]:
    """Runs the controller over the ramp.

    Outcomes of drafts, from which it learns, are drawn; goodput is counted in expected tokens, so that luck is not.

    Args:
        machine: Declared step times.
        rates: True acceptance of a token by batch.
        passes: Of each stretch.
        seed: Of the outcomes.
    """
    controller = DepthController(machine.table(), most=DEPTHS[-1])
    levels = []
    for stretch, batch in enumerate(RAMP):
        tokens = seconds = 0.0
        depths = []
        for number in range(passes):
            load = Load(pair=machine.pair, batch=batch, context=_CONTEXT, draft_model=machine.draft_seconds > 0.0)
            decision = controller.decide(load, cap=DEPTHS[-1])
            depths.append(decision.depth)
            tokens += batch * tokens_per_pass(rates[batch], decision.depth)
            seconds += machine.step(batch, decision.depth)
            drafted = decision.depth or (DEPTHS[-1] if decision.score else 0)
            chance = key(seed, stretch * passes + number)
            for text in range(batch):
                controller.observe(machine.pair, drafted, _accepted(rates[batch], drafted, chance, text))
        fixed = {depth: batch * tokens_per_pass(rates[batch], depth) / machine.step(batch, depth) for depth in DEPTHS}
        levels.append(Level(batch, tokens / seconds, fixed, depths))
    return levels


def _accepted(rate: float, drafted: int, chance: int, text: int) -> int:
    for position in range(drafted):
        if fraction(chance, text * 64 + position) >= rate:
            return position
    return drafted


def steady(rate: float) -> dict[int, float]:
    """The same acceptance at every batch."""
    return dict.fromkeys(BATCHES, rate)
