"""From a model's scores to the distribution that is sampled, with every option that requests may set.

The order is that of vLLM: bias, penalties, temperature, min-p, top-k, top-p. Temperature 0 takes the likeliest token
after bias and penalties. This is the reference; array libraries have to agree with `process` on every token that is
left and on its probability (up to the last bits of `exp`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from forerun.core.errors import CoreError
from forerun.core.tokens.distribution import Dense, softmax

_BIAS_TOKENS: Final = 1_024
_LARGEST_BIAS: Final = 100.0
_LARGEST_PENALTY: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOptions:
    """How tokens are chosen. The defaults sample the model as it is.

    Attributes:
        temperature: Divides the scores; 0: always the likeliest token.
        top_k: Only the k likeliest tokens; 0: all. Of equal ones at the border the lower ids stay.
        top_p: Only the likeliest tokens that together have this probability, at least one.
        min_p: Only tokens with at least this share of the likeliest one's probability.
        repetition_penalty: Above 1, scores of tokens in prompt or output shrink: divided if positive, else multiplied.
        presence_penalty: Taken off the score of each token that is in the output.
        frequency_penalty: Taken off for each time that it is.
        logit_bias: Added to scores, by token; -100 as good as forbids a token.
        seed: Same seed, same text. None: whoever decodes draws one.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None

    def __post_init__(self) -> None:
        """Refuses what has no meaning.

        Raises:
            CoreError: `invalid_sampling`, with the option and its range.
        """
        ranges = (
            ("temperature", self.temperature, 0.0, math.inf),
            ("top_p", self.top_p, 0.0, 1.0),
            ("min_p", self.min_p, 0.0, 1.0),
            ("presence_penalty", self.presence_penalty, -_LARGEST_PENALTY, _LARGEST_PENALTY),
            ("frequency_penalty", self.frequency_penalty, -_LARGEST_PENALTY, _LARGEST_PENALTY),
            *(
                (f"logit_bias of {token}", bias, -_LARGEST_BIAS, _LARGEST_BIAS)
                for token, bias in self.logit_bias.items()
            ),
        )
        for name, value, low, high in ranges:
            if not low <= value <= high or math.isinf(value):
                raise CoreError("invalid_sampling", f"{name} must be from {low:g} to {high:g}, not {value}")
        if self.top_p == 0.0:
            raise CoreError("invalid_sampling", "top_p must be above 0; temperature 0 takes the likeliest token")
        if not 0.0 < self.repetition_penalty < math.inf:
            raise CoreError("invalid_sampling", f"repetition_penalty must be above 0, not {self.repetition_penalty}")
        if self.top_k < 0:
            raise CoreError("invalid_sampling", f"top_k must be 0 (all) or more, not {self.top_k}")
        if len(self.logit_bias) > _BIAS_TOKENS:
            raise CoreError("invalid_sampling", f"logit_bias names more than {_BIAS_TOKENS} tokens")

    @property
    def is_greedy(self) -> bool:
        """Each token is certain."""
        return self.temperature == 0.0

    @property
    def has_penalties(self) -> bool:
        """What was said before counts."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0


class TokenCounts:
    """Which tokens prompt and output hold, as penalties see them.

    A verification pass looks at positions behind drafted tokens: it pushes them while it walks and pops what was not
    accepted, so that each position sees exactly what it would see without speculation.
    """

    __slots__ = ("output", "prompt")

    def __init__(self, prompt: Iterable[int] = ()) -> None:
        self.prompt = frozenset(prompt)
        self.output: dict[int, int] = {}

    def push(self, token: int) -> None:
        """One more of this token in the output."""
        self.output[token] = self.output.get(token, 0) + 1

    def pop(self, token: int) -> None:
        """One less."""
        left = self.output[token] - 1
        if left:
            self.output[token] = left
        else:
            del self.output[token]


def adjusted(logits: Sequence[float], counts: TokenCounts, options: SamplingOptions) -> list[float]:
    """Scores after bias and penalties."""
    scores = list(logits)
    for token, bias in options.logit_bias.items():
        if 0 <= token < len(scores):
            scores[token] += bias
    if not options.has_penalties:
        return scores
    factor = options.repetition_penalty
    if factor != 1.0:
        for token in counts.prompt | counts.output.keys():
            if token < len(scores):
                scores[token] = scores[token] / factor if scores[token] > 0.0 else scores[token] * factor
    for token, count in counts.output.items():
        if token < len(scores):
            scores[token] -= options.presence_penalty + options.frequency_penalty * count
    return scores


def process(logits: Sequence[float], counts: TokenCounts, options: SamplingOptions) -> Dense:
    """The distribution that the next token is drawn from.

    Raises:
        CoreError: `invalid_logits` where no token is left.
    """
    scores = adjusted(logits, counts, options)
    if options.is_greedy:
        softmax(scores)  # refuses what is no distribution
        best = max(range(len(scores)), key=scores.__getitem__)
        return Dense([1.0 if token == best else 0.0 for token in range(len(scores))])
    probabilities = softmax([score / options.temperature for score in scores])
    kept = _kept(probabilities, options)
    if kept is None:
        return Dense(probabilities)
    total = sum(probabilities[token] for token in sorted(kept))
    return Dense([one / total if token in kept else 0.0 for token, one in enumerate(probabilities)])


def _kept(probabilities: Sequence[float], options: SamplingOptions) -> set[int] | None:
    """Tokens that min-p, top-k and top-p leave; None for all of them."""
    if options.min_p == 0.0 and not 0 < options.top_k < len(probabilities) and options.top_p == 1.0:
        return None
    order = sorted(range(len(probabilities)), key=lambda token: (-probabilities[token], token))
    least = options.min_p * probabilities[order[0]]
    order = [token for token in order if probabilities[token] >= least]
    if options.top_k:
        order = order[: options.top_k]
    if options.top_p < 1.0:
        # Of what is left: top-p counts the probability of the tokens that the steps before have kept.
        wanted, total, count = options.top_p * sum(probabilities[token] for token in order), 0.0, 0
        while total < wanted and count < len(order):
            total += probabilities[order[count]]
            count += 1
        order = order[: max(1, count)]
    return set(order)


def log_probabilities(logits: Sequence[float]) -> list[float]:
    """Natural logarithms of the model's own probabilities, before all options: what requests get as `logprobs`."""
    softmax(logits)
    highest = max(logits)
    norm = highest + math.log(sum(math.exp(one - highest) for one in logits))
    return [one - norm for one in logits]
