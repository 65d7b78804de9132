"""What a request may cost, before it is sent."""

from __future__ import annotations

from collections.abc import Iterable

from forerun.core.answers import Price
from forerun.core.tokens import Usage, estimated_tokens, most_tokens
from forerun.runtime.models.catalogue import Model, Provider
from forerun.runtime.models.port import ModelRequest

_SHARE_OF_MOST = 0.25
"""Of the tokens that an answer may have, how many it is expected to have before that is known."""


def price_of(model: Model, request: ModelRequest, *, known_output: float | None = None, grows_by: int = 0) -> Price:
    """The price of one request at whichever provider answers.

    Args:
        model: The model.
        request: The request.
        known_output: Tokens that its answers have had on average; None where that is not known.
        grows_by: Tokens that the prompt may still get before it is sent.
    """
    most_input = most_tokens(request.size_bytes, len(request.messages)) + grows_by
    expected_input = estimated_tokens(request.size_bytes)
    most = expected = 0.0
    for provider in _able(model, request):
        tokens = provider.most_output(request.max_output_tokens)
        likely = min(float(tokens), known_output if known_output is not None else _SHARE_OF_MOST * tokens)
        most = max(most, provider.prices.of(Usage(most_input, tokens)))
        expected = max(expected, provider.prices.of(Usage(expected_input, int(likely))))
    return Price(min(expected, most), most)


def price_of_text(provider: Provider, request: ModelRequest, text: str) -> float:
    """What one request for this text would have cost."""
    return provider.prices.of(Usage(estimated_tokens(request.size_bytes), estimated_tokens(len(text.encode()))))


def _able(model: Model, request: ModelRequest) -> Iterable[Provider]:
    return [one for one in model.providers if one.continues or not request.continues]
