"""What travels between the loop and a model for one pass: one array of numbers each way.

A tensor of a call inside the server is allocated, described and copied in four processes, and text has to be built and
parsed besides: both cost more than anything else around a pass. Floats are double, so numbers stay what they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

PASS: Final = "PASS"
"""Name of the tensor of `Asked`, INT32."""

ANSWER: Final = "ANSWER"
"""Name of the tensor of `Answered`, FP64."""

_ASKED: Final = 4
_ANSWERED: Final = 4


@dataclass(frozen=True, slots=True)
class Asked:
    """A pass of one sequence.

    Attributes:
        tokens: To feed; a target verifies the drafted ones that end them.
        keep: Tokens of the sequence that stay.
        drafted: How many are verified, or are to be drafted.
        live: Sequences that are decoded now.
        parents: Of a tree: which drafted token each one follows; empty: the one before it.
    """

    tokens: Sequence[int]
    keep: int
    drafted: int
    live: int
    parents: Sequence[int] = ()

    def numbers(self) -> list[int]:
        """As they travel."""
        return [self.keep, self.drafted, self.live, len(self.parents), *self.parents, *self.tokens]

    @classmethod
    def of(cls, numbers: Sequence[int]) -> Asked:
        """What `numbers` gave.

        Raises:
            ValueError: There are too few.
        """
        keep, drafted, live, parents = numbers[:_ASKED]
        end = _ASKED + parents
        if not 0 <= parents <= len(numbers) - _ASKED:
            raise ValueError(f"{parents} parents are not in {len(numbers)} numbers")
        return cls(numbers[end:], keep, drafted, live, numbers[_ASKED:end])


@dataclass(frozen=True, slots=True)
class Answered:
    """What a pass gave.

    Attributes:
        tokens: That follow, or may follow.
        accepted: How many of them were drafted.
        seconds: What the pass took or, for a toy, is declared to take.
        declared: It is declared.
        logprobs: Of each token; empty: not asked for.
    """

    tokens: Sequence[int]
    accepted: int
    seconds: float
    declared: bool = False
    logprobs: Sequence[float] = ()

    def numbers(self) -> list[float]:
        """As they travel."""
        return [self.accepted, self.seconds, self.declared, len(self.tokens), *self.tokens, *self.logprobs]

    @classmethod
    def of(cls, numbers: Sequence[float]) -> Answered:
        """What `numbers` gave.

        Raises:
            ValueError: There are too few.
        """
        accepted, seconds, declared, tokens = numbers[:_ANSWERED]
        end = _ANSWERED + int(tokens)
        return cls([int(one) for one in numbers[_ANSWERED:end]], int(accepted), seconds, bool(declared), numbers[end:])
