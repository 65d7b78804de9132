"""How deep to draft: from measured step times and the acceptance that is seen. Speculation never harms. Pure."""

from forerun.core.tokens.depth.acceptance import Acceptance
from forerun.core.tokens.depth.controller import DepthController, DepthDecision, DepthReason, Load
from forerun.core.tokens.depth.costs import StepCosts, StepTable

__all__ = ["Acceptance", "DepthController", "DepthDecision", "DepthReason", "Load", "StepCosts", "StepTable"]
