"""One request after another and many at once: ends, refusals, cancellation, slots and the queue."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from forerun.runtime.errors import InvalidArgument, ResourceExhausted
from forerun.serving.backend.toy import ToyModel, ToySpec
from tests.integration.serving.conftest import Served, events

pytestmark = pytest.mark.asyncio(loop_scope="module")


def alone(prompt: list[int], count: int) -> list[int]:
    """What the toy target says greedily, computed here."""
    model, context = ToyModel(ToySpec()), list(prompt)
    for _ in range(count):
        scores = model.scores(context)
        context.append(scores.index(max(scores)))
    return context[len(prompt) :]


async def test_without_a_request_all_series_exist_at_zero(toy: Served) -> None:
    metrics = await toy.metrics()
    assert metrics['forerun_draft_tokens_proposed_total{drafter="model"}'] == 0
    assert metrics['forerun_generations_total{end="cancelled"}'] == 0
    assert metrics["forerun_decoding_slots_used"] == 0
    bounds = "forerun_draft_depth_ceiling"  # what is in force, from the start on
    assert {value for name, value in metrics.items() if not name.startswith(bounds)} == {0.0}


@pytest.mark.parametrize("depth", range(8))
async def test_greedy_text_does_not_depend_on_the_depth(toy: Served, depth: int) -> None:
    answer = await toy.generate([5, 6, 7], max_tokens=300, ignore_end=True, depth=depth)
    assert answer.tokens == alone([5, 6, 7], 300)
    assert answer.finish == "length"
    assert (answer.usage["prompt"], answer.usage["generated"]) == (3, 300)
    assert answer.usage["proposed"] >= answer.usage["accepted"] > 0 or depth == 0
    assert answer.usage["passes"] + answer.usage["accepted"] == 299


async def test_many_texts_at_once_are_the_same_as_each_alone(toy: Served) -> None:
    prompts = [[first, second] for first in range(1, 9) for second in range(1, 5)]
    answers = await asyncio.gather(
        *(toy.generate(one, max_tokens=60, ignore_end=True, depth=place % 8) for place, one in enumerate(prompts))
    )
    assert [one.tokens for one in answers] == [alone(one, 60) for one in prompts]


async def test_opting_out_drafts_nothing(toy: Served) -> None:
    answer = await toy.generate([5, 6, 7], max_tokens=50, ignore_end=True, depth=7, speculate=False)
    assert answer.tokens == alone([5, 6, 7], 50)
    assert (answer.usage["proposed"], answer.usage["passes"]) == (0, 49)


async def test_an_expected_text_is_verified_like_any_draft(toy: Served) -> None:
    right = alone([9, 9], 40)
    wrong = [*right[:20], 63 - right[20], *right[21:]]
    for expected in (right, wrong):
        answer = await toy.generate(
            [9, 9], max_tokens=40, ignore_end=True, depth=7, drafters=["recall"], expected=[expected]
        )
        assert answer.tokens == right
        assert answer.usage["accepted"] >= 15


async def test_a_stop_token_ends_the_answer_and_is_its_last_token(toy: Served) -> None:
    right = alone([5, 6, 7], 60)
    stop = right[30]
    for depth in (0, 3, 7):
        answer = await toy.generate([5, 6, 7], max_tokens=60, ignore_end=True, depth=depth, stop_tokens=[stop])
        assert answer.tokens == right[: right.index(stop) + 1]
        assert answer.finish == "stop"


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ([], {}, "the prompt is empty"),
        ([1, 64], {}, "no token 64"),
        ([1] * 4_096, {}, "leaves no room"),
        ([1], {"tempo": 1}, "unknown options: tempo"),
        ([1], {"expected": [[1, 64]]}, "no token 64"),
        ([1], {"expected": [[1, -2]]}, "no token -2"),
        ([1], {"expected": [3]}, "int"),
    ],
)
async def test_what_cannot_be_served_is_refused_with_its_reason(
    toy: Served, prompt: list[int], options: dict[str, Any], message: str
) -> None:
    # A tensor of no elements is the client's way to say an empty prompt.
    with pytest.raises(InvalidArgument, match=message):
        await toy.generate(prompt, **options)


async def test_a_cancelled_stream_frees_its_slot(toy: Served) -> None:
    before = await toy.metrics()
    async with aclosing(events(toy.client, [1, 2], {"max_tokens": 4_000, "ignore_end": True, "depth": 0})) as stream:
        async for _ in stream:
            assert (await toy.metrics())["forerun_decoding_slots_used"] == 1
            break
    async with asyncio.timeout(10):
        while True:
            metrics = await toy.metrics()
            if not metrics["forerun_decoding_slots_used"]:
                break
    cancelled = 'forerun_generations_total{end="cancelled"}'
    assert metrics[cancelled] == before[cancelled] + 1
    # Far fewer tokens than were asked for: the work ended, not only the stream.
    assert metrics["forerun_generated_tokens_total"] - before["forerun_generated_tokens_total"] < 2_000


async def test_requests_beyond_slots_and_queue_are_refused_and_the_others_are_served(toy: Served) -> None:
    places = toy.profile.slots + toy.profile.queued
    answers = await asyncio.gather(
        *(toy.generate([1, 2], max_tokens=30, ignore_end=True, depth=0) for _ in range(places + 40)),
        return_exceptions=True,
    )
    refused = [one for one in answers if isinstance(one, BaseException)]
    assert refused, "more requests than slots and places in the queue"
    assert {type(one) for one in refused} == {ResourceExhausted}
    assert all(one.tokens == alone([1, 2], 30) for one in answers if not isinstance(one, BaseException))
    assert (await toy.metrics())["forerun_decoding_queue_length"] == 0
