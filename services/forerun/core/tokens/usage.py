"""Tokens of a model request, and what they cost. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

_MILLION: Final = 1_000_000.0
_BYTES_PER_TOKEN: Final = 4.0
"""Of English text and code, by the usual tokenisers. Only for what a provider does not say."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request, or of several.

    Attributes:
        input_tokens: Of the prompt.
        output_tokens: Generated.
        estimated: Some were estimated from bytes, because the provider did not say.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    estimated: bool = False

    def __add__(self, other: Usage) -> Usage:
        """Both together."""
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.estimated or other.estimated,
        )


@dataclass(frozen=True, slots=True)
class TokenPrices:
    """What a provider asks for, in the policy's currency.

    Attributes:
        input_per_million: For a million tokens of the prompt.
        output_per_million: For a million generated tokens.
    """

    input_per_million: float = 0.0
    output_per_million: float = 0.0

    def of(self, usage: Usage) -> float:
        """The price of these tokens."""
        return (usage.input_tokens * self.input_per_million + usage.output_tokens * self.output_per_million) / _MILLION


def estimated_tokens(text_bytes: int) -> int:
    """Tokens of so many bytes of text, as far as that can be told."""
    return math.ceil(text_bytes / _BYTES_PER_TOKEN)


def most_tokens(text_bytes: int, pieces: int) -> int:
    """Tokens of so many bytes in so many messages, at most: a token has a byte or more, a message a few of its own."""
    return text_bytes + 16 * pieces + 16
