"""Trees of drafted tokens, verified in one pass by a target that can: the same tokens in fewer passes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from itertools import chain, product

import pytest
import pytest_asyncio

from forerun.runtime.errors import InvalidArgument
from forerun.runtime.kserve import Inference, SequenceStep, Tensor
from forerun.serving.backend.passes import ANSWER, PASS, Answered, Asked
from forerun.serving.profile import Coupled, read_profile
from forerun.serving.server import Installation
from tests.integration.serving.conftest import Answer, Served, serving
from tests.integration.serving.equality import OPTIONS, PROMPT, asked, differences
from tests.integration.serving.inprocess import Decoded, Pair, decode

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

TOKENS = 160
VOCABULARY = 64


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def trees(installation: Installation, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    profile = read_profile("toy")
    assert isinstance(profile.speculation, Coupled)
    speculation = profile.speculation.model_copy(update={"branches": 4})
    folder = tmp_path_factory.mktemp("trees")
    async with serving(installation, folder, profile.model_copy(update={"speculation": speculation})) as served:
        yield served


def misleading(right: list[int]) -> list[list[int]]:
    """The right text, and at every fifth token more pieces of it that go wrong there: the majority is wrong."""
    pieces = [[*right[end - 6 : end], (right[end] + 1) % VOCABULARY] for end in range(6, len(right), 5)]
    return [right, *[list(chain.from_iterable(pieces))] * 10]


@pytest.mark.parametrize("option", OPTIONS)
async def test_every_option_gives_the_tokens_of_the_target_alone(trees: Served, option: str) -> None:
    right = decode(Pair.of(trees.profile), PROMPT, json.dumps(asked(option, TOKENS)))
    assert len(right.tokens) == TOKENS
    found: list[str] = []
    for depth, branches in product((2, 4, 7), (1, 2, 4)):
        answer = await drafted(trees, option, right, depth, branches)
        found += differences(f"{option}, depth {depth}, branches {branches}", answer, right)
        assert answer.usage["accepted"], "nothing was accepted, so nothing was tested"
    assert found == []


async def test_where_the_past_went_on_in_several_ways_a_tree_saves_passes(trees: Served) -> None:
    passes = {}
    for branches in (1, 4):
        given = {
            "max_tokens": 300, "ignore_end": True, "temperature": 0.25, "drafters": ["recall"], "depth": 7,
            "branches": branches, "tenant": f"{branches} branches", "agent": "a",
        }  # fmt: skip
        for seed in range(8):
            await trees.generate([3, 1, 4], **given, seed=seed)
        later = [await trees.generate([3, 1, 4], **given, seed=seed) for seed in range(10, 14)]
        passes[branches] = sum(one.usage["passes"] for one in later)
    assert passes[4] < 0.98 * passes[1], passes


async def drafted(trees: Served, option: str, right: Decoded, depth: int, branches: int) -> Answer:
    given = {**asked(option, TOKENS), "drafters": ["recall"], "history": False, "depth": depth, "branches": branches}
    return await trees.generate(PROMPT, **given, expected=misleading(right.tokens))


async def test_stop_strings_log_probabilities_and_the_opt_out_are_as_without(trees: Served) -> None:
    pair = Pair.of(trees.profile)
    whole = decode(pair, PROMPT, json.dumps(asked("logprobs", TOKENS)))
    words = whole.text.split()
    stop = f"{words[60][-1]} {words[61]}"
    given = {**asked("logprobs", TOKENS), "stop": [stop]}
    right = decode(pair, PROMPT, json.dumps(given))
    for options in ({"speculate": False}, {"depth": 7}, {"depth": 3, "branches": 3}, {}):
        answer = await trees.generate(PROMPT, **given, **options, expected=misleading(whole.tokens))
        assert differences(f"{options}", answer, right) == []


async def test_rejection_with_trees_counts_every_token_once(trees: Served) -> None:
    given = {**asked("top-p", TOKENS), "coupled": False, "drafters": ["recall"], "history": False, "depth": 7}
    answer = await trees.generate(PROMPT, **given, expected=[[5, 6, 7] * 20])
    assert (len(answer.tokens), answer.finish) == (TOKENS, "length")
    assert answer.usage["proposed"] > answer.usage["passes"]
    assert answer.usage["passes"] + 1 + answer.usage["accepted"] == TOKENS, "each pass gives one more than it accepts"


def of(asked: Asked) -> Tensor:
    numbers = asked.numbers()
    return Tensor(PASS, "INT32", numbers, (1, len(numbers)))


async def test_a_tree_whose_tokens_hang_together_wrongly_is_refused(trees: Served) -> None:
    options = Tensor("OPTIONS", "BYTES", [b"{}"], (1, 1))
    sequence = 77
    start = Inference(
        model="target-1", inputs=[of(Asked([1, 2], 0, 0, 1)), options], sequence=SequenceStep(sequence, start=True)
    )
    await trees.client.infer(start, seconds=10)
    for parents in ([1, -1], [-1], [-2, 0]):
        asked = of(Asked([3, 4, 5], 2, 2, 1, parents))
        broken = Inference(model="target-1", inputs=[asked], sequence=SequenceStep(sequence))
        with pytest.raises(InvalidArgument, match="parent"):
            await trees.client.infer(broken, seconds=10)
    # The sequence goes on from what was certain.
    asked = of(Asked([3, 4, 5], 2, 2, 1, [-1, -1]))
    good = Inference(model="target-1", inputs=[asked], sequence=SequenceStep(sequence, end=True))
    response = await trees.client.infer(good, seconds=10)
    assert Answered.of([float(one) for one in response.tensors[ANSWER].values]).tokens
    with pytest.raises(InvalidArgument, match="9 parents are not in"):
        numbers = Tensor(PASS, "INT32", [0, 0, 1, 9], (1, 4))
        await trees.client.infer(Inference(model="target-1", inputs=[numbers, options], sequence=start.sequence))
