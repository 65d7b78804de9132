"""Exact verification of drafts: the text is what the target alone would have given.

A pass of the target gives scores after the last certain token and after each drafted one. `verify` walks down the
draft: at each node a *rule* chooses the next token from the target's distribution there, after all processing. If a
drafted child has this token, the walk goes on behind it; if not, the token is the last one of the pass. A pass without
a draft is a walk of one step, so decoding without speculation is the same code.

* `Greedy`: the likeliest token. Equal to the target alone, token for token.
* `Coupled`: the target's own sample, whose noise depends on seed and absolute position only. Equal to the target alone
  under the same seed, token for token, whatever was drafted.
* `Rejection`: drafted tokens are accepted with probability min(1, p/q), in the order of siblings, else the token comes
  from what is left of p. Equal in distribution, with more accepted tokens where a draft *model* gives its q. For tokens
  that were chosen, not drawn (histories), q is one certain token. Siblings of one model are drawn independently, with
  chance of their own: never from `noise.key` of the same seed and position.

Each position is processed with the penalties of exactly the tokens before it (`TokenCounts`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from forerun.core.errors import CoreError
from forerun.core.tokens.distribution import Distribution
from forerun.core.tokens.drafts import ROOT, Draft
from forerun.core.tokens.noise import fraction, key
from forerun.core.tokens.sampling import SamplingOptions, TokenCounts

_RESIDUAL: Final = 1 << 20  # number of the draw that picks from what is left; siblings have the numbers below

D = TypeVar("D", bound=Distribution)


class Rule(Protocol):
    """How the next token is chosen at one node."""

    def choose(self, target: Distribution, children: Sequence[tuple[int, Distribution | None]], position: int) -> int:
        """The next token.

        Args:
            target: What the target gives here.
            children: Drafted tokens in the order in which they are tried, with what each was drawn from (None: chosen).
            position: Absolute position of the next token in prompt and output together.
        """
        ...


class Greedy:
    """The target's likeliest token; of equal ones the lowest id."""

    def choose(self, target: Distribution, children: Sequence[tuple[int, Distribution | None]], position: int) -> int:
        """Does not look at the draft."""
        return target.likeliest()


@dataclass(frozen=True, slots=True)
class Coupled:
    """The target's own sample of this seed and position."""

    seed: int

    def choose(self, target: Distribution, children: Sequence[tuple[int, Distribution | None]], position: int) -> int:
        """Does not look at the draft."""
        return target.race(key(self.seed, position))


@dataclass(frozen=True, slots=True)
class Rejection:
    """Accepts with probability min(1, p/q), else draws from what is left (Leviathan 2023; trees: Miao 2024)."""

    seed: int

    def choose(self, target: Distribution, children: Sequence[tuple[int, Distribution | None]], position: int) -> int:
        """Tries the drafted tokens one after the other; each rejection takes its proposal off the target."""
        chance, left = key(self.seed, position), target
        for number, (token, proposal) in enumerate(children):
            drawn_with = 1.0 if proposal is None else proposal.probability(token)
            if fraction(chance, number) * drawn_with < left.probability(token):
                return token
            left = left.without(token if proposal is None else proposal)
        return left.at(fraction(chance, _RESIDUAL))


def rule_for(options: SamplingOptions, seed: int, *, coupled: bool = True) -> Rule:
    """The rule of a request: greedy at temperature 0, else coupled, or rejection where that was asked for."""
    if options.is_greedy:
        return Greedy()
    return Coupled(seed) if coupled else Rejection(seed)


@dataclass(frozen=True, slots=True)
class Verified:
    """What a pass gave.

    Attributes:
        tokens: Certain tokens; at least one.
        nodes: The node after which each was chosen, which is the row of scores behind it; `ROOT` for the first.
        accepted: Drafted tokens among them: all, or all but the last one.
    """

    tokens: list[int]
    nodes: list[int]
    accepted: int


def verify(
    draft: Draft,
    distribution: Callable[[int, TokenCounts], Distribution],
    counts: TokenCounts,
    rule: Rule,
    position: int,
) -> Verified:
    """Walks down a draft.

    Args:
        draft: What was drafted; an empty one is a step without speculation.
        distribution: The target's distribution after a node (`ROOT`: after the last certain token) and after all
            processing. Called for nodes on the walk only, so that rejected branches cost nothing.
        counts: Tokens before; afterwards it holds the new ones, too.
        rule: See the module.
        position: Absolute position of the first new token.

    Returns:
        The new tokens. Nothing beyond the first token that was not drafted is known.
    """
    children = draft.children()
    tokens: list[int] = []
    nodes: list[int] = []
    node = ROOT
    while True:
        offered = [
            (draft.tokens[one], None if draft.proposals is None else draft.proposals[one]) for one in children[node]
        ]
        token = rule.choose(distribution(node, counts), offered, position + len(tokens))
        tokens.append(token)
        nodes.append(node)
        counts.push(token)
        following = [one for one in children[node] if draft.tokens[one] == token]
        if not following:
            return Verified(tokens, nodes, len(tokens) - 1)
        node = following[0]


def of_rows(
    rows: Sequence[Sequence[float]], process: Callable[[Sequence[float], TokenCounts], D]
) -> Callable[[int, TokenCounts], D]:
    """The `distribution` of `verify` for one row of scores after the last certain token and one after each node."""

    def after(node: int, counts: TokenCounts) -> D:
        if node + 1 >= len(rows):
            raise CoreError("missing_scores", f"the target gave {len(rows)} rows of scores, node {node} has none")
        return process(rows[node + 1], counts)

    return after
