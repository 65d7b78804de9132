"""Which tokens follow from a model's scores: the rules of `forerun.core.tokens` on the rows of one text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forerun.core.errors import CoreError
from forerun.core.tokens.distribution import Distribution
from forerun.core.tokens.drafts import ROOT, Draft, chain
from forerun.core.tokens.sampling import SamplingOptions, TokenCounts
from forerun.core.tokens.verify import rule_for, verify
from forerun.serving.backend.engines import Engine, Scores
from forerun.serving.backend.options import json_of, sampling_of
from forerun.serving.backend.sequences import Refused

if TYPE_CHECKING:
    # It needs numpy, which only the model server's environment has; this module runs in tests, too.
    from forerun.serving.backend.constraint import Constraint


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """What of a request's options its models have to know.

    Attributes:
        sampling: With its seed.
        seed: Of the text.
        coupled: See `Options`.
        logprobs: See `Options`.
        calls: See `Options`.
        call: See `Options`.
        ends: Tokens that end the answer.
    """

    sampling: SamplingOptions
    seed: int
    coupled: bool
    logprobs: bool
    calls: str = ""
    call: str = ""
    ends: tuple[int, ...] = ()

    def text(self) -> str:
        """As JSON."""
        return json.dumps(
            {
                "sampling": json_of(self.sampling),
                "seed": self.seed,
                "coupled": self.coupled,
                "logprobs": self.logprobs,
                "calls": self.calls,
                "call": self.call,
                "ends": self.ends,
            }
        )

    @classmethod
    def read(cls, text: str) -> ModelOptions:
        """What `text` gave; defaults for an empty object."""
        given = json.loads(text)
        try:
            sampling = sampling_of(given.get("sampling", {}))
        except (CoreError, TypeError, ValueError) as error:
            raise Refused(str(error)) from error
        return cls(
            sampling,
            given.get("seed", 0),
            given.get("coupled", True),
            given.get("logprobs", False),
            given.get("calls", ""),
            given.get("call", ""),
            tuple(given.get("ends", ())),
        )


@dataclass(frozen=True, slots=True)
class Decision:
    """What follows.

    Attributes:
        tokens: At least one.
        accepted: How many drafted ones are among them.
        logprobs: Of each, where asked for.
    """

    tokens: list[int]
    accepted: int
    logprobs: list[float] | None


class Decider:
    """Decides the tokens of one text.

    Args:
        options: Of its request.
        engine: Whose scores they are.
        real: Tokens below this id exist; the rest of a row is padding.
        constraint: Which tokens may follow; None: all.
    """

    def __init__(self, options: ModelOptions, engine: Engine, real: int, constraint: Constraint | None = None) -> None:
        self._options = options
        self._engine = engine
        self._real = real
        self._constraint = constraint
        self._rule = rule_for(options.sampling, options.seed, coupled=options.coupled)
        self._counts = TokenCounts()

    def begin(self, prompt: Sequence[int]) -> None:
        """The tokens before the answer."""
        self._counts = TokenCounts(prompt)

    def decide(
        self, rows: Sequence[Scores], drafted: Sequence[int], position: int, parents: Sequence[int] | None = None
    ) -> Decision:
        """What follows from the scores after the last certain token and after each drafted one.

        Args:
            rows: These scores.
            drafted: What was drafted.
            position: Of the first new token.
            parents: Of a tree: which drafted token each one follows; None: the one before it.

        Raises:
            Refused: The scores leave no token.
        """
        nodes = len(drafted)
        draft = chain(drafted, "") if parents is None else Draft(drafted, parents, [0.0] * nodes, "")

        def after(node: int, counts: TokenCounts) -> Distribution:
            scores = rows[node + 1][: self._real]
            if self._constraint is not None:
                scores = self._constraint.masked(scores, draft.path(node))
            return self._engine.process(scores, counts, self._options.sampling)

        try:
            found = verify(draft, after, self._counts, self._rule, position)
        except CoreError as error:
            raise Refused(str(error)) from error
        if self._constraint is not None:
            self._constraint.take(found.tokens)
        logprobs = None
        if self._options.logprobs:
            logprobs = [
                self._engine.log_probability(rows[node + 1][: self._real], token)
                for node, token in zip(found.nodes, found.tokens, strict=True)
            ]
        return Decision(found.tokens, found.accepted, logprobs)

    def propose(self, row: Scores, position: int) -> int:
        """What a draft takes for the next token.

        Coupled sampling draws with the target's own noise, so that a draft that is like the target draws like it. By
        rejection the likeliest token is chosen, which counts as certain.
        """
        sampling = self._options.sampling
        scores = row[: self._real]
        if not self._options.coupled or sampling.is_greedy:
            return self._engine.process(scores, self._counts, _LIKELIEST).likeliest()
        return self._rule.choose(self._engine.process(scores, self._counts, sampling), (), position)


_LIKELIEST = SamplingOptions(temperature=0.0)
assert ROOT == -1, "row 0 is the one after the last certain token"
