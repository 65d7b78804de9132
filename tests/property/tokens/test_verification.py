"""Speculation changes nothing: every draft, depth and option gives tokens, texts and ends of decoding without it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.core.tokens.drafts import NOTHING, Draft, chain
from forerun.core.tokens.evidence import EvidenceWeights
from forerun.core.tokens.history import History
from forerun.core.tokens.noise import fraction, mixed
from forerun.core.tokens.recall import RecallDrafter
from forerun.core.tokens.sampling import SamplingOptions
from forerun.core.tokens.stopping import Finish, StopRules
from forerun.core.tokens.verify import Coupled, Greedy, Rejection, Rule, rule_for
from tests.property.tokens.toy import VOCABULARY, Decoding, DraftFor

PROMPT = [3, 1, 4, 1, 5]
TOKENS = 60

OPTIONS = {
    "plain": SamplingOptions(),
    "greedy": SamplingOptions(temperature=0.0),
    "cold": SamplingOptions(temperature=0.3),
    "hot": SamplingOptions(temperature=1.7),
    "top_k": SamplingOptions(top_k=3),
    "top_p": SamplingOptions(top_p=0.6),
    "min_p": SamplingOptions(min_p=0.3),
    "repetition": SamplingOptions(repetition_penalty=1.5),
    "presence": SamplingOptions(presence_penalty=1.0),
    "frequency": SamplingOptions(frequency_penalty=0.7),
    "bias": SamplingOptions(logit_bias={3: 2.0, 7: -100.0}),
    "greedy with penalties": SamplingOptions(temperature=0.0, frequency_penalty=0.9, repetition_penalty=1.2),
    "all": SamplingOptions(temperature=0.8, top_k=6, top_p=0.9, min_p=0.05, repetition_penalty=1.1,
                           presence_penalty=0.3, frequency_penalty=0.2, logit_bias={1: -1.5}),
}  # fmt: skip


def decoded(
    options: SamplingOptions, rule: Rule, draft_for: DraftFor = lambda _: NOTHING, stops: StopRules | None = None
) -> Decoding:
    decoding = Decoding(list(PROMPT), options, rule, stops or StopRules(max_tokens=TOKENS))
    decoding.run(draft_for)
    return decoding


def truth(decoding: Decoding) -> list[int]:
    return PROMPT + [event.token for event in decoding.events]


def mixed_chain(right: Sequence[int], depth: int, seed: int) -> DraftFor:
    """Chains that follow the truth and leave it at random places."""

    def draft(context: Sequence[int]) -> Draft:
        tokens = list(right[len(context) : len(context) + depth])
        for at in range(len(tokens)):
            if fraction(mixed(seed), len(context) * 16 + at) < 0.3:
                tokens[at] = int(fraction(mixed(seed + 1), len(context) * 16 + at) * VOCABULARY)
        return chain(tokens, "test")

    return draft


def recall(depth: int, branches: int) -> DraftFor:
    """The drafter that is served, with a history of the same model's outputs."""
    history = History("toy", 10_000)
    for seed in range(5):
        past = decoded(SamplingOptions(), Coupled(1_000 + seed))
        history.append(PROMPT, [event.token for event in past.events])
    drafter, seen = RecallDrafter(EvidenceWeights(), [history], limit=1_000), [0]

    def draft(context: Sequence[int]) -> Draft:
        drafter.extend(context[seen[0] :])
        seen[0] = len(context)
        return drafter.propose(depth, branches) if depth else NOTHING

    return draft


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("depth", range(8))
def test_greedy_and_coupled_texts_are_equal_token_for_token(name: str, depth: int) -> None:
    options = OPTIONS[name]
    rule = rule_for(options, 77)
    alone = decoded(options, rule)
    for draft_for in (mixed_chain(truth(alone), depth, 5), recall(depth, 1), recall(depth, 3)):
        with_drafts = decoded(options, rule, draft_for)
        assert with_drafts.events == alone.events
    good = decoded(options, rule, mixed_chain(truth(alone), depth, 5))
    assert depth == 0 or good.passes < alone.passes, "drafts that are mostly right must save passes"


def test_ties_are_broken_by_the_lowest_id_whatever_was_drafted() -> None:
    options = SamplingOptions(temperature=0.0, logit_bias=dict.fromkeys(range(VOCABULARY), 0.0))
    alone = decoded(options, Greedy())
    for other in range(VOCABULARY):
        drafted = decoded(options, Greedy(), lambda context, token=other: chain([token, token], "test"))  # type: ignore[misc]
        assert drafted.events == alone.events


@settings(max_examples=60)
@given(st.data())
def test_any_tree_gives_the_same_text(data: st.DataObject) -> None:
    options = data.draw(st.sampled_from(list(OPTIONS.values())))
    rule = rule_for(options, data.draw(st.integers(0, 2**64 - 1)))
    alone = decoded(options, rule)
    right = truth(alone)

    def tree(context: Sequence[int]) -> Draft:
        size = data.draw(st.integers(0, 7))
        parents = [data.draw(st.integers(-1, node - 1)) for node in range(size)]
        wanted = [*right[len(context) :], 0, 0]
        tokens = [data.draw(st.sampled_from([wanted[0], wanted[1], 0, 5, 11])) for _ in range(size)]
        return Draft(tokens, parents, [0.0] * size, "test")

    assert decoded(options, rule, tree).events == alone.events


STOPS = {
    "stop token": StopRules(tokens=frozenset({3}), max_tokens=TOKENS),
    "stop string in one token": StopRules(strings=("END",), max_tokens=TOKENS),
    "stop string over tokens": StopRules(strings=("ba", "c\n", "Éx", " x"), max_tokens=TOKENS),
    "stop string that stays": StopRules(strings=("xb", "ca"), max_tokens=TOKENS, keep_string=True),
    "length": StopRules(max_tokens=7),
    "one token": StopRules(max_tokens=1),
}


@pytest.mark.parametrize("name", STOPS)
@pytest.mark.parametrize("depth", range(8))
def test_answers_end_where_they_end_without_speculation(name: str, depth: int) -> None:
    ended = set()
    for seed in range(20):
        alone = decoded(OPTIONS["plain"], Coupled(seed), stops=STOPS[name])
        # The truth goes on behind the end: the draft crosses it.
        beyond = truth(decoded(OPTIONS["plain"], Coupled(seed)))
        for draft_for in (mixed_chain(beyond, depth, seed), lambda _: chain([0] * depth, "test")):
            assert decoded(OPTIONS["plain"], Coupled(seed), draft_for, STOPS[name]).events == alone.events
        assert [event.finish for event in alone.events[:-1]] == [None] * (len(alone.events) - 1)
        ended.add(alone.events[-1].finish)
    assert (Finish.LENGTH if "length" in name or "one" in name else Finish.STOP) in ended


def test_rejection_repeats_under_its_seed() -> None:
    options, draft_for = OPTIONS["all"], recall(5, 1)
    first = decoded(options, Rejection(9), draft_for)
    assert decoded(options, Rejection(9), recall(5, 1)).events == first.events
    assert decoded(options, Rejection(10), recall(5, 1)).events != first.events
