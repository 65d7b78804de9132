"""Speculation changes nothing: tokens, text, log probabilities and ends are those of the target alone."""

from __future__ import annotations

import json

import pytest

from tests.integration.serving.conftest import Served, events
from tests.integration.serving.equality import PROMPT, check, check_rejection
from tests.integration.serving.inprocess import Pair, decode

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(400)]


async def test_every_drafter_and_option_gives_the_tokens_of_the_target_alone(toy: Served) -> None:
    assert await check(toy, (0, 2, 7), tokens=120, at_once=16) == []


async def test_rejection_sampling_is_the_same_served_and_here(toy: Served) -> None:
    assert await check_rejection(toy, (1, 5), tokens=80) == []


async def test_stop_strings_end_the_text_at_the_same_place_for_every_depth(toy: Served) -> None:
    pair = Pair.of(toy.profile)
    whole = decode(pair, PROMPT, json.dumps({"max_tokens": 80, "ignore_end": True}))
    words = whole.text.split()
    # Over the border of two tokens, so that it is complete in the middle of a pass.
    stop = f"{words[40][-1]} {words[41]}"
    right = whole.text[: whole.text.index(stop)]
    for depth in (0, 1, 4, 7):
        answer = await toy.generate(PROMPT, max_tokens=80, ignore_end=True, stop=[stop, "nowhere"], depth=depth)
        assert (answer.text, answer.finish) == (right, "stop")
        kept = await toy.generate(PROMPT, max_tokens=80, ignore_end=True, stop=[stop], keep_stop=True, depth=depth)
        assert kept.text == right + stop


async def test_the_models_own_end_is_an_end_for_every_depth(toy: Served) -> None:
    pair = Pair.of(toy.profile)
    options = {"max_tokens": 2_000, "temperature": 2.0, "seed": 5}
    right = decode(pair, PROMPT, json.dumps(options))
    assert right.finish == "stop", "the toy ends this text by itself"
    for depth in (0, 3, 7):
        answer = await toy.generate(PROMPT, **options, depth=depth)
        assert (answer.tokens, answer.text, answer.finish) == (right.tokens, right.text, "stop")
        assert answer.usage["generated"] == len(right.tokens)


async def test_history_of_an_agent_drafts_for_it_and_for_nobody_else(toy: Served) -> None:
    options = {"max_tokens": 150, "ignore_end": True, "depth": 7, "drafters": ["recall"], "temperature": 1.0, "seed": 3}
    first = await toy.generate([8, 8, 8], **options, tenant="acme", agent="one")
    again = await toy.generate([8, 8, 8], **options, tenant="acme", agent="one")
    other = await toy.generate([8, 8, 8], **options, tenant="rival", agent="one")
    assert first.tokens == again.tokens == other.tokens
    assert again.usage["passes"] < first.usage["passes"] / 2
    assert other.usage["passes"] == first.usage["passes"], "what one tenant said helps no other"


async def test_an_erased_tenants_outputs_draft_for_it_no_longer(toy: Served) -> None:
    options = {"max_tokens": 150, "ignore_end": True, "depth": 7, "drafters": ["recall"], "temperature": 1.0, "seed": 4}
    first = await toy.generate([9, 8, 7], **options, tenant="gone", agent="one")
    again = await toy.generate([9, 8, 7], **options, tenant="gone", agent="one")
    assert again.usage["passes"] < first.usage["passes"] / 2
    ((said, _),) = [one async for one in events(toy.client, [1], {"tenant": "gone", "erase": True})]
    assert said == {"erased": {"histories": 2, "tokens": 616, "files": 0}}
    after = await toy.generate([9, 8, 7], **options, tenant="gone", agent="one")
    assert after.tokens == first.tokens
    assert after.usage["passes"] > again.usage["passes"] * 1.5
