"""Drafts of tokens and the ports of what proposes them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from forerun.core.errors import CoreError
from forerun.core.tokens.distribution import Distribution

ROOT: Final = -1
"""Parent of a node that follows the last certain token."""


@dataclass(frozen=True, slots=True)
class Draft:
    """Tokens that may follow, as a tree: each node follows its parent. A chain is a tree without branches.

    Attributes:
        tokens: Of the nodes; a parent stands before its children, siblings in the order in which they are tried.
        parents: Index of each node's parent, or `ROOT`.
        reach: Calibrated probability that the node is accepted, with all before it.
        source: Who proposes it.
        proposals: What each node was drawn from, for rejection sampling; None: all of them were chosen, not drawn.
    """

    tokens: Sequence[int]
    parents: Sequence[int]
    reach: Sequence[float]
    source: str
    proposals: Sequence[Distribution] | None = None

    def __post_init__(self) -> None:
        """Refuses what no verification could walk."""
        sizes = {len(self.tokens), len(self.parents), len(self.reach)}
        if self.proposals is not None:
            sizes.add(len(self.proposals))
        if len(sizes) != 1:
            raise CoreError("invalid_draft", "a draft needs one token, parent, probability and proposal for each node")
        if any(not ROOT <= parent < node for node, parent in enumerate(self.parents)):
            raise CoreError("invalid_draft", "each node of a draft needs a parent before it")

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def expected(self) -> float:
        """Drafted tokens that are expected to be accepted."""
        return sum(self.reach)

    @property
    def is_chain(self) -> bool:
        """No node has a sibling, so that any target can verify it in one pass."""
        return all(parent == node - 1 for node, parent in enumerate(self.parents))

    def path(self, node: int) -> list[int]:
        """The tokens from the root to a node; none for the root."""
        found: list[int] = []
        while node != ROOT:
            found.append(self.tokens[node])
            node = self.parents[node]
        return found[::-1]

    def children(self) -> list[list[int]]:
        """Nodes below each node; those below the root come last, so that index `ROOT` finds them."""
        found: list[list[int]] = [[] for _ in range(len(self.tokens) + 1)]
        for node, parent in enumerate(self.parents):
            found[parent].append(node)
        return found


def chain(
    tokens: Sequence[int],
    source: str,
    *,
    reach: Sequence[float] | None = None,
    proposals: Sequence[Distribution] | None = None,
) -> Draft:
    """A draft without branches; without `reach` nothing is expected of it."""
    nodes = len(tokens)
    return Draft(tokens, range(-1, nodes - 1), [0.0] * nodes if reach is None else reach, source, proposals)


NOTHING: Final = chain((), "none")
"""The draft of a source that knows nothing."""


class Drafter(Protocol):
    """One source of drafts for one text. It hears every certain token, whoever proposed it."""

    @property
    def name(self) -> str:
        """In metrics and the ledger; from a closed set."""
        ...

    def extend(self, tokens: Iterable[int]) -> None:
        """Certain tokens that follow: the prompt, then what each pass has verified, in order and once."""
        ...

    def propose(self, nodes: int, branches: int = 1) -> Draft:
        """At most `nodes` tokens, of which at most `branches` follow the same token."""
        ...
