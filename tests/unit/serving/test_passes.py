"""What travels for a pass says the same on both sides."""

from __future__ import annotations

import math

import pytest

from forerun.serving.backend.passes import Answered, Asked


@pytest.mark.parametrize(
    "asked",
    [
        Asked([5], 4, 0, 1),
        Asked([5, 6, 7], 4, 2, 3),
        Asked([5, 6, 7], 4, 2, 64, [-1, 0]),
        Asked([], 0, 0, 0, []),
        Asked([1, 2, 2**31 - 1], 0, 0, 2, []),
    ],
)
def test_a_pass_that_is_asked_for(asked: Asked) -> None:
    found = Asked.of(asked.numbers())
    assert (list(found.tokens), found.keep, found.drafted, found.live, list(found.parents)) == (
        list(asked.tokens), asked.keep, asked.drafted, asked.live, list(asked.parents),
    )  # fmt: skip


@pytest.mark.parametrize(
    "answered",
    [
        Answered([3], 0, 0.025),
        Answered([3, 9, 4], 2, 1 / 3, True),
        Answered([3, 49_151], 1, 0.0, False, [-0.1, -math.inf]),
        Answered([], 0, 0.0),
    ],
)
def test_an_answer(answered: Answered) -> None:
    found = Answered.of([float(one) for one in answered.numbers()])
    assert all(isinstance(one, int) for one in found.tokens)
    assert (list(found.tokens), found.accepted, found.seconds, found.declared, list(found.logprobs)) == (
        list(answered.tokens), answered.accepted, answered.seconds, answered.declared, list(answered.logprobs),
    )  # fmt: skip


@pytest.mark.parametrize("numbers", [[], [1, 2, 3], [4, 0, 1, 2, -1], [4, 0, 1, -1, 5]])
def test_too_few_numbers_are_no_pass(numbers: list[int]) -> None:
    with pytest.raises(ValueError, match=r"values to unpack|parents are not in"):
        Asked.of(numbers)
