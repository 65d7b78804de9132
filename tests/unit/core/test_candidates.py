"""Candidates come over the wire, so they are checked."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forerun.core import limits
from forerun.core.candidates import Candidate, problems

GOOD = Candidate("search", b'{"q":"x"}', 0.7, 12.5, 0, "site", "seen 9 of 12 times", 1.5)


def test_a_good_candidate_has_no_problems() -> None:
    assert problems(GOOD) == []
    assert problems(replace(GOOD, expected_seconds=None)) == []


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        (replace(GOOD, tool=""), "tool"),
        (replace(GOOD, arguments=b"x" * (limits.ARGUMENTS_BYTES + 1)), "arguments"),
        (replace(GOOD, probability=1.01), "probability"),
        (replace(GOOD, probability=float("nan")), "probability"),
        (replace(GOOD, evidence=-1.0), "evidence"),
        (replace(GOOD, evidence=float("inf")), "evidence"),
        (replace(GOOD, rank=-1), "rank"),
        (replace(GOOD, expected_seconds=float("nan")), "expected_seconds"),
        (replace(GOOD, explanation="x" * 501), "explanation"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_problems_name_the_field(bad: Candidate, field: str) -> None:
    assert [problem.partition(":")[0] for problem in problems(bad)] == [field]
