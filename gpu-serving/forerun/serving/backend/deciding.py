"""What a request asks for, and which token follows from a target's scores."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from forerun.serving.backend.sequences import Refused


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of a request, as JSON in its `OPTIONS`.

    Attributes:
        max_tokens: Of the answer; None: as many as the profile allows.
        temperature: 0 takes the likeliest token.
        stop: Texts that end the answer; they are not part of it.
        stop_tokens: Tokens that end it, besides the model's own.
        ignore_end: Go on after the model's own end token.
        logprobs: Give each token's log probability.
        speculate: False: without drafts (the opt-out).
        depth: Tokens to draft for each pass; None: the controller decides.
        drafters: Only these; None: all that there are.
        expected: Tokens that are expected to follow, such as a predicted call.
    """

    max_tokens: int | None = None
    temperature: float = 0.0
    stop: tuple[str, ...] = ()
    stop_tokens: tuple[int, ...] = ()
    ignore_end: bool = False
    logprobs: bool = False
    speculate: bool = True
    depth: int | None = None
    drafters: tuple[str, ...] | None = None
    expected: tuple[int, ...] = ()

    @classmethod
    def read(cls, text: str) -> Options:
        """The options in a JSON text.

        Raises:
            Refused: They are none; the message names what is wrong.
        """
        try:
            given: dict[str, Any] = json.loads(text)
            known = {one.name for one in fields(cls)}
            unknown = sorted(set(given) - known)
            if unknown:
                raise Refused(f"unknown options: {', '.join(unknown)}")
            values: dict[str, Any] = {
                name: tuple(value) if isinstance(value, list) else value for name, value in given.items()
            }
            return cls(**values)
        except (ValueError, TypeError) as error:
            raise Refused(f"the options are not understood: {error}") from error

    def for_models(self) -> str:
        """What of them target and draft have to know, as JSON."""
        return json.dumps({"temperature": self.temperature, "logprobs": self.logprobs})


@dataclass(frozen=True, slots=True)
class Decision:
    """What follows.

    Attributes:
        tokens: At least one.
        accepted: How many of the drafted ones are among them.
        logprobs: Of each, where asked for.
    """

    tokens: list[int]
    accepted: int
    logprobs: list[float] | None


class Decider:
    """Decides the tokens of one text.

    Args:
        options: Of its request.
    """

    def __init__(self, options: Options) -> None:
        if options.temperature != 0:
            raise Refused("only temperature 0 so far")

    def saw(self, tokens: Sequence[int]) -> None:
        """Tokens of the text that were fed and are no drafts."""

    def decide(self, rows: Sequence[Any], drafted: Sequence[int]) -> Decision:
        """What follows from the scores after the last token and after each drafted one."""
        tokens: list[int] = []
        for row, draft in zip(rows, [*drafted, None], strict=True):
            tokens.append(self.likeliest(row))
            if tokens[-1] != draft:
                break
        return Decision(tokens, len(tokens) - 1, None)

    def likeliest(self, row: Any) -> int:
        """The token with the highest score; of equal ones the first."""
        if isinstance(row, list):
            return row.index(max(row))
        return int(row.argmax())
