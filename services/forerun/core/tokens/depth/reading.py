"""Whether a draft model is worth what it has to read first. No table of steps counts that. Pure.

A measured step holds the few tokens that the pass before it gave. A draft model that is asked again after a while reads
everything that came since before it drafts, and the whole prompt where it is asked for the first time in a text.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Final

PRIOR_ANSWER_TOKENS: Final = 100

SHORT_READ: Final = 16
"""Tokens that are read in about the time of one, since the weights are read once: steps hold them already."""

PROBE_TOKENS: Final = 256
"""Most tokens that are read only to know how long reading takes."""

_PROBE_SHARE: Final = 0.005  # of the time may go into probes that gain nothing
_PROBE_LEAST: Final = 32  # passes between probes
_PROBE_MOST: Final = 4_096
_ANSWERS: Final = 64  # whose lengths are known
_DOUBLED: Final = 7  # times that the gap between probes doubles
_KEEP: Final = 0.8  # weight of what was read before, each time that something is read


def probe_gap(lost: float, catch_up: float = 0.0) -> int:
    """Passes from one probe to the next: useless probes take half a per cent of the time, and less if they are cheap.

    Args:
        lost: What a probe takes beyond a pass without a draft, in such passes.
        catch_up: What is to be read before it takes, in such passes.
    """
    return max(_PROBE_LEAST, min(_PROBE_MOST, math.ceil(lost / _PROBE_SHARE)) + math.ceil(catch_up / _PROBE_SHARE))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a draft model costs and gives in the rest of a text.

    It pays where `unread * token_seconds < left * (pass_seconds - step_seconds / tokens_per_pass)`: seconds of reading
    against the seconds that each token still to come takes less.

    Attributes:
        unread: Tokens that it has to read first.
        token_seconds: What reading one of them takes.
        left: Tokens that it would draft: likely to come, and given by no free draft.
        pass_seconds: A pass without a draft, which gives one token.
        step_seconds: Drafting and the verifying pass together.
        tokens_per_pass: Tokens that such a step is expected to give.
    """

    unread: int
    token_seconds: float
    left: float
    pass_seconds: float
    step_seconds: float
    tokens_per_pass: float

    @property
    def cost(self) -> float:
        """Seconds of reading beyond what a step holds anyway."""
        return 0.0 if self.unread <= SHORT_READ else self.unread * self.token_seconds

    @property
    def gain(self) -> float:
        """Seconds that the rest of the answer is expected to take less; below 0: more."""
        return self.left * (self.pass_seconds - self.step_seconds / self.tokens_per_pass)

    @property
    def pays(self) -> bool:
        """The draft model may be asked."""
        return self.cost < self.gain


@dataclass(slots=True)
class _Read:
    """What was read at one size of a batch."""

    tokens: float = 0.0
    seconds: float = 0.0
    waited: int | None = None  # passes since the last probe; None: there was none
    unanswered: int = 0  # probes whose end nobody has told yet


class ReadingSpeed:
    """What a draft model's reading takes, by batch in powers of two, and when it has to be tried again."""

    def __init__(self) -> None:
        self._read: dict[int, _Read] = {}

    def observe(self, batch: int, tokens: int, seconds: float) -> None:
        """So many tokens were read in so many seconds. Long texts count for more than short ones."""
        read = self._of(batch)
        read.tokens = _KEEP * read.tokens + tokens
        read.seconds = _KEEP * read.seconds + seconds
        read.unanswered = 0

    def token_seconds(self, batch: int) -> float | None:
        """Seconds of reading a token; None: nothing was read at such a batch yet."""
        read = self._of(batch)
        return read.seconds / read.tokens if read.tokens else None

    def probe_is_due(self, batch: int, pass_seconds: float) -> bool:
        """A pass in which the draft model is not asked for its reading: True if `PROBE_TOKENS` may be read to learn.

        The first time at once, then no sooner than after `probe_gap` such passes, so that one bad figure does not last;
        twice as many after each probe that still goes on, so that texts side by side do not all try the same.

        Args:
            batch: Texts that are decoded.
            pass_seconds: A pass without a draft. Not looked at while nothing is known.
        """
        read, each = self._of(batch), self.token_seconds(batch)
        gap = probe_gap(0.0 if each is None else PROBE_TOKENS * each / pass_seconds) << min(read.unanswered, _DOUBLED)
        if read.waited is not None and read.waited + 1 < gap:
            read.waited += 1
            return False
        read.waited = 0
        read.unanswered += 1
        return True

    def _of(self, batch: int) -> _Read:
        return self._read.setdefault(1 << max(0, batch - 1).bit_length(), _Read())


class AnswerLengths:
    """How long answers of a server get: its last ones, and at first one of `PRIOR_ANSWER_TOKENS` that nobody gave."""

    def __init__(self) -> None:
        self._ended: deque[tuple[int, int]] = deque([(PRIOR_ANSWER_TOKENS, 0)], maxlen=_ANSWERS)

    def ended(self, tokens: int, free: int) -> None:
        """An answer has ended, however.

        Args:
            tokens: All of it.
            free: Those of them that came in passes whose drafts cost no model.
        """
        self._ended.append((tokens, free))

    def left(self, given: int, most: int) -> float:
        """Tokens that are likely to come and that a draft model would draft.

        The mean of what answers that got longer than this one had left, at most `most`, less the share that free drafts
        give. One that has outlived all of them lasts as long again.

        Args:
            given: Tokens of the answer so far.
            most: Tokens that may still come.
        """
        longer = [min(tokens - given, most) for tokens, _ in self._ended if tokens > given]
        likely = sum(longer) / len(longer) if longer else min(given, most)
        free = sum(free for _, free in self._ended) / max(1, sum(tokens for tokens, _ in self._ended))
        return likely * (1.0 - free)
