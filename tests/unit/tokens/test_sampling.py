"""Options of sampling one by one, and what they refuse."""

from __future__ import annotations

import math
from typing import Any

import pytest

from forerun.core.errors import CoreError
from forerun.core.tokens.distribution import Dense, softmax
from forerun.core.tokens.drafts import NOTHING, ROOT, chain
from forerun.core.tokens.noise import fraction, key, mixed
from forerun.core.tokens.sampling import SamplingOptions, TokenCounts, log_probabilities, process
from forerun.core.tokens.verify import Coupled, Greedy, Rejection, of_rows, rule_for, verify

LOGITS = [2.0, 1.0, 1.0, 0.0, -1.0]


def probabilities(counts: TokenCounts | None = None, logits: list[float] | None = None, **options: Any) -> list[float]:
    found = process(logits or LOGITS, counts or TokenCounts(), SamplingOptions(**options))
    return list(found.probabilities)


def left(found: list[float]) -> set[int]:
    return {token for token, one in enumerate(found) if one > 0.0}


def test_without_options_the_model_is_sampled_as_it_is() -> None:
    total = sum(math.exp(one) for one in LOGITS)
    assert probabilities() == pytest.approx([math.exp(one) / total for one in LOGITS])


def test_temperature_divides_the_scores_and_zero_takes_the_first_of_the_likeliest() -> None:
    assert probabilities(temperature=0.5) == pytest.approx(softmax([2.0 * one for one in LOGITS]))
    assert probabilities(temperature=0.0, logits=[1.0, 3.0, 3.0]) == [0.0, 1.0, 0.0]


def test_top_k_keeps_lower_ids_of_equal_tokens() -> None:
    assert left(probabilities(top_k=2)) == {0, 1}
    assert left(probabilities(top_k=3)) == {0, 1, 2}
    assert probabilities(top_k=99) == probabilities()


def test_top_p_keeps_the_fewest_tokens_that_reach_it() -> None:
    everything = probabilities()
    assert left(probabilities(top_p=everything[0] - 0.01)) == {0}
    assert left(probabilities(top_p=everything[0] + 0.01)) == {0, 1}
    assert left(probabilities(top_p=1e-9)) == {0}
    assert sum(probabilities(top_p=0.7)) == pytest.approx(1.0)


def test_top_p_counts_what_top_k_has_left() -> None:
    assert left(probabilities(top_k=3, top_p=0.9)) == {0, 1, 2}
    shares = softmax([2.0, 1.0])
    assert left(probabilities(top_k=2, top_p=shares[0] - 0.01)) == {0}


def test_min_p_is_a_share_of_the_likeliest() -> None:
    assert left(probabilities(min_p=math.exp(-1.0) - 0.01)) == {0, 1, 2}
    assert left(probabilities(min_p=math.exp(-1.0) + 0.01)) == {0}


def test_penalties_see_prompt_and_output() -> None:
    counts = TokenCounts([0, 4])
    counts.push(1)
    counts.push(1)
    assert probabilities(counts, repetition_penalty=2.0) == pytest.approx(softmax([1.0, 0.5, 1.0, 0.0, -2.0]))
    assert probabilities(counts, presence_penalty=0.5) == pytest.approx(softmax([2.0, 0.5, 1.0, 0.0, -1.0]))
    assert probabilities(counts, frequency_penalty=0.5) == pytest.approx(softmax([2.0, 0.0, 1.0, 0.0, -1.0]))
    counts.pop(1)
    assert counts.output == {1: 1}
    counts.pop(1)
    assert probabilities(counts, frequency_penalty=0.5) == probabilities()


def test_bias_is_added_and_may_name_tokens_that_do_not_exist() -> None:
    assert probabilities(logit_bias={3: 5.0, 900: 1.0}) == pytest.approx(softmax([2.0, 1.0, 1.0, 5.0, -1.0]))
    assert probabilities(logit_bias={0: -100.0})[0] < 1e-40


def test_forbidden_tokens_stay_forbidden() -> None:
    assert left(probabilities(logits=[-math.inf, 1.0, 1.0])) == {1, 2}
    for scores in ([-math.inf] * 3, [math.nan, 1.0], [math.inf, 1.0], []):
        for temperature in (0.0, 1.0):
            with pytest.raises(CoreError) as refused:
                process(scores, TokenCounts(), SamplingOptions(temperature=temperature))
            assert refused.value.reason == "invalid_logits"


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": -0.1},
        {"temperature": math.nan},
        {"temperature": math.inf},
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"min_p": -0.1},
        {"repetition_penalty": 0.0},
        {"presence_penalty": 2.1},
        {"frequency_penalty": -2.1},
        {"logit_bias": {1: 101.0}},
        {"logit_bias": dict.fromkeys(range(2_000), 0.0)},
    ],
)
def test_options_without_meaning_are_refused_by_name(options: dict[str, Any]) -> None:
    with pytest.raises(CoreError, match=next(iter(options))) as refused:
        SamplingOptions(**options)
    assert refused.value.reason == "invalid_sampling"


def test_log_probabilities_are_the_models_own() -> None:
    assert [math.exp(one) for one in log_probabilities(LOGITS)] == pytest.approx(softmax(LOGITS))


# ---------------------------------------------------------------- chance and rules


def test_chance_is_the_same_on_every_machine() -> None:
    """Known values: whoever writes the same function for arrays compares with them."""
    assert mixed(0) == 0
    assert mixed(1) == 0x5692161D100B05E5
    assert key(7, 3) == mixed(mixed(7) + 3 * 0x9E3779B97F4A7C15)
    draws = [fraction(key(7, 3), number) for number in range(1_000)]
    assert 0.0 < min(draws) < max(draws) < 1.0
    assert sum(draws) / 1_000 == pytest.approx(0.5, abs=0.03)


def test_quantiles_never_give_a_token_without_probability() -> None:
    found = Dense([0.0, 0.5, 0.0, 0.5, 0.0])
    assert [found.at(one) for one in (0.0, 0.49, 0.5, 0.99, 1.0)] == [1, 1, 3, 3, 3]
    assert {found.race(key(1, position)) for position in range(50)} == {1, 3}


def test_what_is_left_after_a_rejection() -> None:
    found = Dense([0.5, 0.3, 0.2])
    assert found.without(0).probabilities == pytest.approx([0.0, 0.6, 0.4])
    assert found.without(Dense([0.2, 0.5, 0.3])).probabilities == pytest.approx([1.0, 0.0, 0.0])
    assert found.without(found) is found


def test_the_rule_of_a_request() -> None:
    assert isinstance(rule_for(SamplingOptions(temperature=0.0), 1), Greedy)
    assert rule_for(SamplingOptions(), 1) == Coupled(1)
    assert rule_for(SamplingOptions(), 1, coupled=False) == Rejection(1)


def test_a_pass_counts_only_what_was_accepted() -> None:
    rows = [[0.0, 9.0, 0.0], [0.0, 0.0, 9.0], [9.0, 0.0, 0.0]]
    counts, options = TokenCounts(), SamplingOptions(temperature=0.0)
    found = verify(
        chain([1, 1], "x"), of_rows(rows, lambda row, seen: process(row, seen, options)), counts, Greedy(), 5
    )
    assert (found.tokens, found.nodes, found.accepted) == ([1, 2], [ROOT, 0], 1)
    assert counts.output == {1: 1, 2: 1}


def test_missing_scores_are_an_error_and_not_a_guess() -> None:
    distribution = of_rows([[1.0, 0.0]], lambda row, _: Dense(softmax(row)))
    assert verify(NOTHING, distribution, TokenCounts(), Greedy(), 0).tokens == [0]
    with pytest.raises(CoreError) as refused:
        verify(chain([0, 0], "x"), distribution, TokenCounts(), Greedy(), 0)
    assert refused.value.reason == "missing_scores"
