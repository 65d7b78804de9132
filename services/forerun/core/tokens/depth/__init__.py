"""How deep to draft: from measured step times and the acceptance that is seen. Speculation never harms. Pure."""

from forerun.core.tokens.depth.acceptance import Acceptance
from forerun.core.tokens.depth.controller import DepthController, DepthDecision, DepthReason, Load
from forerun.core.tokens.depth.costs import StepCosts, StepTable
from forerun.core.tokens.depth.reading import PROBE_TOKENS, SHORT_READ, AnswerLengths, Reading, ReadingSpeed

__all__ = [
    "PROBE_TOKENS",
    "SHORT_READ",
    "Acceptance",
    "AnswerLengths",
    "DepthController",
    "DepthDecision",
    "DepthReason",
    "Load",
    "Reading",
    "ReadingSpeed",
    "StepCosts",
    "StepTable",
]
