"""What a policy allows of candidates."""

from __future__ import annotations

import math
from dataclasses import dataclass

from forerun.core import limits


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerPolicy:
    """Candidates of answers under a policy.

    Attributes:
        on: They are allowed.
        max_candidates: Candidates of one answer, at most.
        max_cost: Money for one answer.
        worth: What a better answer is worth.
        expected_gain: Share of further candidates that are expected to be better, before it is known.
        drafted_by: Approximate: the model that answers, while the one that was asked for says yes or no; empty: never.
    """

    on: bool = False
    max_candidates: int = 8
    max_cost: float = math.inf
    worth: float = 0.0
    expected_gain: float = 0.25
    drafted_by: str = ""

    def problems(self) -> list[str]:
        """What makes it unusable."""
        found = []
        if not 1 <= self.max_candidates <= limits.ANSWER_CANDIDATES:
            found.append(f"answers.max_candidates: must be 1 to {limits.ANSWER_CANDIDATES}")
        for name, value in (("max_cost", self.max_cost), ("worth", self.worth)):
            if not value >= 0.0:  # also refuses NaN
                found.append(f"answers.{name}: must not be negative")
        if not 0.0 <= self.expected_gain <= 1.0:
            found.append("answers.expected_gain: must be between 0 and 1")
        if len(self.drafted_by) > limits.NAME_CHARS:
            found.append(f"answers.drafted_by: must have at most {limits.NAME_CHARS} characters")
        return found
