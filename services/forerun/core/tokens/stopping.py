"""Where an answer ends and which of its text is certain, token by token: the same whatever was drafted.

Verified tokens go through `Answer` one at a time; what comes after the end is discarded by it, as if it had never been
decoded. Text is held back while it may still become part of a stop string or is no complete character yet.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from forerun.core.errors import CoreError

_STOP_STRINGS: Final = 16
_STOP_CHARS: Final = 1_024


class Finish(StrEnum):
    """Why an answer ended, in the words of the OpenAI API."""

    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRules:
    """When an answer ends.

    Attributes:
        tokens: End it; they count as generated and add no text.
        strings: End it wherever they appear in the text, also across tokens; the text ends before them.
        max_tokens: Most tokens of the answer.
        keep_string: Leave the stop string in the text.
    """

    tokens: frozenset[int] = frozenset()
    strings: tuple[str, ...] = ()
    max_tokens: int

    keep_string: bool = False

    def __post_init__(self) -> None:
        """Refuses what cannot be obeyed.

        Raises:
            CoreError: `invalid_stop`.
        """
        if self.max_tokens < 1:
            raise CoreError("invalid_stop", f"max_tokens must be 1 or more, not {self.max_tokens}")
        if len(self.strings) > _STOP_STRINGS or any(not 0 < len(one) <= _STOP_CHARS for one in self.strings):
            raise CoreError(
                "invalid_stop",
                f"at most {_STOP_STRINGS} stop strings, each of 1 to {_STOP_CHARS} characters, are obeyed",
            )


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One token of the answer.

    Attributes:
        token: Its id.
        text: Text that has become certain with it; it may lag behind the tokens.
        finish: Set on the last one.
    """

    token: int
    text: str
    finish: Finish | None


class Answer:
    """One answer that grows.

    Args:
        rules: When it ends.
        piece: The bytes that a token adds to the text. Characters may be spread over several tokens; bytes that are no
            text become U+FFFD.
    """

    def __init__(self, rules: StopRules, piece: Callable[[int], bytes]) -> None:
        self._rules = rules
        self._piece = piece
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self.generated = 0
        self.finish: Finish | None = None

    @property
    def left(self) -> int:
        """Tokens that may still come: a draft of `left` tokens or more is work for nothing."""
        return 0 if self.finish else self._rules.max_tokens - self.generated

    def take(self, tokens: Sequence[int]) -> list[TokenEvent]:
        """Takes certain tokens; the events of those that belong to the answer. None after its end."""
        events = []
        for token in tokens:
            if self.finish is not None:
                break
            events.append(self._take(token))
        return events

    def _take(self, token: int) -> TokenEvent:
        self.generated += 1
        if token in self._rules.tokens:
            self.finish = Finish.STOP
            return TokenEvent(token, self._flush(), self.finish)
        self._held += self._decoder.decode(self._piece(token))
        text = self._until_stop()
        if text is None and self.generated >= self._rules.max_tokens:
            self.finish = Finish.LENGTH
            text = self._flush()
        return TokenEvent(token, self._certain() if text is None else text, self.finish)

    def _until_stop(self) -> str | None:
        """The last text where a stop string is complete: the one that ends first, of those the longest."""
        found = [(at + len(one), at) for one in self._rules.strings if (at := self._held.find(one)) >= 0]
        if not found:
            return None
        end, start = min(found)
        self.finish = Finish.STOP
        text, self._held = self._held[: end if self._rules.keep_string else start], ""
        return text

    def _certain(self) -> str:
        """Text that no stop string can begin in any more."""
        keep = 0
        for one in self._rules.strings:
            for length in range(min(len(one) - 1, len(self._held)), keep, -1):
                if self._held.endswith(one[:length]):
                    keep = length
                    break
        cut = len(self._held) - keep
        text, self._held = self._held[:cut], self._held[cut:]
        return text

    def _flush(self) -> str:
        text, self._held = self._held + self._decoder.decode(b"", final=True), ""
        return text
