"""What a predictor proposes: one possible next action, with the reasons to believe in it."""

from __future__ import annotations

from dataclasses import dataclass

from forerun.core import limits


@dataclass(frozen=True, slots=True)
class Candidate:
    """A predicted tool call.

    Attributes:
        tool: Name of the tool, as the policy knows it.
        arguments: The exact JSON bytes that would be sent.
        probability: Calibrated mean that this very action comes next, in [0, 1].
        evidence: Discounted number of observations behind the probability; 0 is a cold site.
        rank: 0 for the best of one prediction.
        site: Call site: digest of tenant, agent, context signature and tool.
        explanation: Which engine derived it and from what, for people.
        expected_seconds: Expected duration of the call, or None where nothing was measured.
        prediction_seconds: Seconds of a model that the candidate took; 0 for what statistics gave.
    """

    tool: str
    arguments: bytes
    probability: float
    evidence: float
    rank: int
    site: str
    explanation: str
    expected_seconds: float | None = None
    prediction_seconds: float = 0.0


def problems(candidate: Candidate) -> list[str]:
    """Returns what makes a candidate unusable; empty when it may be ranked. Candidates come over the wire."""
    found: list[str] = []
    if not 0 < len(candidate.tool) <= limits.NAME_CHARS:
        found.append(f"tool: must have 1 to {limits.NAME_CHARS} characters")
    if len(candidate.arguments) > limits.ARGUMENTS_BYTES:
        found.append(f"arguments: {len(candidate.arguments)} bytes, limit {limits.ARGUMENTS_BYTES}")
    if not 0.0 <= candidate.probability <= 1.0:  # also refuses NaN
        found.append("probability: must be in [0, 1]")
    if not 0.0 <= candidate.evidence < float("inf"):
        found.append("evidence: must be a finite number that is not negative")
    if candidate.rank < 0:
        found.append("rank: must not be negative")
    if candidate.expected_seconds is not None and not 0.0 <= candidate.expected_seconds < float("inf"):
        found.append("expected_seconds: must be a finite number that is not negative")
    if not 0.0 <= candidate.prediction_seconds < float("inf"):
        found.append("prediction_seconds: must be a finite number that is not negative")
    if len(candidate.explanation) > limits.CANDIDATE_EXPLANATION_CHARS:
        found.append(f"explanation: must have at most {limits.CANDIDATE_EXPLANATION_CHARS} characters")
    return found
