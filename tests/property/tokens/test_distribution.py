"""The acceptance rules give the target's distribution: chi-square on 200,000 tokens for each sampling option."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import pytest

from forerun.core.tokens.distribution import Dense, Distribution
from forerun.core.tokens.drafts import NOTHING, Draft
from forerun.core.tokens.noise import fraction, key
from forerun.core.tokens.sampling import SamplingOptions, TokenCounts, process
from forerun.core.tokens.verify import Coupled, Rejection, Rule, verify
from tests.property.tokens.test_verification import OPTIONS
from tests.property.tokens.toy import VOCABULARY, logits

TOKENS = 200_000
LIMIT = 4.0
START = (5, 2)
_DRAFT_CHANCE = 1 << 40  # seeds of the drafts: independent of those of the texts


class World:
    """The exact distribution of the first two tokens under an option, and texts of two tokens."""

    def __init__(self, options: SamplingOptions) -> None:
        @cache
        def after(said: tuple[int, ...]) -> Dense:
            counts = TokenCounts(START)
            for token in said:
                counts.push(token)
            return process(logits((*START, *said)), counts, options)

        @cache
        def proposal(said: tuple[int, ...]) -> Dense:
            """A draft model: the target with other scores, so that q is above and below p."""
            scores = [score * 0.6 + fraction(99, token) for token, score in enumerate(logits((*START, *said)))]
            return process(scores, TokenCounts(), SamplingOptions())

        self.after, self.proposal = after, proposal

    def exact(self) -> dict[tuple[int, int], float]:
        return {
            (one, two): self.after(()).probability(one) * self.after((one,)).probability(two)
            for one in range(VOCABULARY)
            for two in range(VOCABULARY)
            if self.after(()).probability(one) > 0.0
        }

    def text(self, draft_for: Callable[[tuple[int, ...], int], Draft], rule: Rule, trial: int) -> tuple[int, int]:
        said: tuple[int, ...] = ()
        while len(said) < 2:
            draft = draft_for(said, trial)

            def distribution(
                node: int, counts: TokenCounts, draft: Draft = draft, said: tuple[int, ...] = said
            ) -> Distribution:
                path: tuple[int, ...] = ()
                while node >= 0:
                    path, node = (draft.tokens[node], *path), draft.parents[node]
                return self.after((*said, *path))

            said += tuple(verify(draft, distribution, TokenCounts(), rule, len(START) + len(said)).tokens)
        return said[0], said[1]


@dataclass
class Drafts:
    """All kinds of drafts in turn: chosen and drawn ones, chains and trees."""

    world: World
    kinds: Sequence[str] = ("none", "chosen", "chosen tree", "drawn", "drawn tree")

    def __call__(self, said: tuple[int, ...], trial: int) -> Draft:
        kind = self.kinds[trial % len(self.kinds)]
        if len(said) == 2 or kind == "none":
            return NOTHING
        parents = [-1, 0] if kind in {"chosen", "drawn"} else [-1, -1, 0, 0, 1]
        tokens: list[int] = []
        proposals: list[Distribution] = []
        for node, parent in enumerate(parents):
            before = (*said, tokens[parent]) if parent >= 0 else said
            chance = fraction(key(_DRAFT_CHANCE + trial, len(said)), node)
            proposal = self.world.proposal(before)
            tokens.append(proposal.at(chance) if "drawn" in kind else (proposal.likeliest() + node) % VOCABULARY)
            proposals.append(proposal)
        reach = [0.0] * len(tokens)
        return Draft(tokens, parents, reach, kind, proposals if "drawn" in kind else None)


def chi_square(counted: Counter[tuple[int, int]], exact: dict[tuple[int, int], float]) -> float:
    """Standard score of the chi-square statistic (Wilson and Hilferty): above 4 once in 30,000 right samples."""
    total, statistic, cells, rest_seen, rest_exact = sum(counted.values()), 0.0, 0, 0.0, 0.0
    assert not [pair for pair in counted if exact.get(pair, 0.0) == 0.0], (
        "a token that the options exclude was produced"
    )
    for pair, probability in exact.items():
        expected = probability * total
        if expected < 5.0:
            rest_seen, rest_exact = rest_seen + counted[pair], rest_exact + expected
            continue
        statistic += (counted[pair] - expected) ** 2 / expected
        cells += 1
    if rest_exact > 1.0:
        statistic += (rest_seen - rest_exact) ** 2 / rest_exact
        cells += 1
    free = max(1, cells - 1)
    cube_root: float = (statistic / free) ** (1 / 3)
    return (cube_root - (1 - 2 / (9 * free))) / math.sqrt(2 / (9 * free))


def score(options: SamplingOptions, rule_for: Callable[[int], Rule], tokens: int = TOKENS, *kinds: str) -> float:
    world = World(options)
    drafts = Drafts(world, kinds) if kinds else Drafts(world)
    counted = Counter(world.text(drafts, rule_for(trial), trial) for trial in range(tokens // 2))
    return chi_square(counted, world.exact())


@pytest.mark.timeout(600)  # 200,000 tokens: seconds on a machine of its own
@pytest.mark.parametrize("name", [name for name in OPTIONS if "greedy" not in name])
def test_rejection_samples_the_targets_distribution(name: str) -> None:
    assert abs(score(OPTIONS[name], Rejection)) < LIMIT


@pytest.mark.timeout(600)  # 200,000 tokens: seconds on a machine of its own
@pytest.mark.parametrize("name", ["plain", "all"])
def test_coupled_samples_the_targets_distribution(name: str) -> None:
    assert abs(score(OPTIONS[name], Coupled)) < LIMIT


class _TokenOfTheTarget(Rejection):
    """Planted: after a rejection it draws from the target instead of from what is left."""

    def choose(self, target: Distribution, children: Sequence[tuple[int, Distribution | None]], position: int) -> int:
        for number, (token, proposal) in enumerate(children):
            drawn_with = 1.0 if proposal is None else proposal.probability(token)
            if fraction(key(self.seed, position), number) * drawn_with < target.probability(token):
                return token
        return target.at(fraction(key(self.seed, position), 1 << 20))


class _LeavesTheWrongRest(Rejection):
    """Planted: after a rejection only the drafted token is taken off the target, not what the model proposed."""

    def choose(self, target: Distribution, children: Sequence[tuple[int, Distribution | None]], position: int) -> int:
        left, chance = target, key(self.seed, position)
        for number, (token, proposal) in enumerate(children):
            drawn_with = 1.0 if proposal is None else proposal.probability(token)
            if fraction(chance, number) * drawn_with < left.probability(token):
                return token
            left = left.without(token)
        return left.at(fraction(chance, 1 << 20))


class _SameChance(Rejection):
    """Planted: acceptance and the draw from what is left share their chance."""

    def choose(self, target: Distribution, children: Sequence[tuple[int, Distribution | None]], position: int) -> int:
        left, chance = target, fraction(key(self.seed, position), 0)
        for token, proposal in children:
            if chance * (1.0 if proposal is None else proposal.probability(token)) < left.probability(token):
                return token
            left = left.without(token if proposal is None else proposal)
        return left.at(chance)


@pytest.mark.parametrize(
    ("planted", "kind"),
    [
        (_TokenOfTheTarget, "chosen"),
        (_TokenOfTheTarget, "drawn tree"),
        (_LeavesTheWrongRest, "drawn"),
        (_SameChance, "chosen"),
        (_SameChance, "drawn"),
    ],
)
def test_planted_bugs_are_caught(planted: Callable[[int], Rule], kind: str) -> None:
    assert score(OPTIONS["plain"], planted, 20_000, kind) > 10.0


def test_a_draft_model_is_accepted_more_often_with_its_own_probabilities() -> None:
    """Rejection with q accepts 1 - (distance of p and q); the coupled rule cannot do better for independent noise."""
    world = World(OPTIONS["plain"])
    p, q = world.after(()), world.proposal(())
    overlap = sum(min(p.probability(token), q.probability(token)) for token in range(VOCABULARY))
    accepted = sum(
        q.at(fraction(key(_DRAFT_CHANCE + trial, 0), 0)) == token
        for trial in range(20_000)
        for token in [Rejection(trial).choose(p, [(q.at(fraction(key(_DRAFT_CHANCE + trial, 0), 0)), q)], 2)]
    )
    assert accepted / 20_000 == pytest.approx(overlap, abs=0.01)
