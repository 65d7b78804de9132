"""Tokens of models: what they cost, and token-level speculation that is exact and never harmful. Pure.

`usage` counts and prices them.
"""

from forerun.core.tokens.usage import TokenPrices, Usage, estimated_tokens, most_tokens

__all__ = ["TokenPrices", "Usage", "estimated_tokens", "most_tokens"]
