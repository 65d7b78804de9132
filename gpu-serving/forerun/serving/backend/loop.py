"""Decoding one text with a target and drafts: the same tokens as the target alone gives, in fewer passes.

Pure but for its ports, so that tests run the very loop that is served beside a model in their own process.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from forerun.core.tokens.stopping import Answer, Finish

ROWS: Final = 8
"""Of a verifying pass."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a pass of the target gave.

    Attributes:
        tokens: What the text goes on with; at least one.
        accepted: How many of them were drafted.
        seconds: What the pass took or, for a toy, is declared to take.
        logprobs: For each token, where they were asked for.
    """

    tokens: Sequence[int]
    accepted: int
    seconds: float
    logprobs: Sequence[float] | None = None


class TargetPort(Protocol):
    """One sequence of the target."""

    def start(self, prompt: Sequence[int], live: int) -> Verdict:
        """Feeds the prompt; the first token."""
        ...

    def verify(
        self, keep: int, last: int, drafted: Sequence[int], live: int, parents: Sequence[int] | None = None
    ) -> Verdict:
        """Goes on after `keep` tokens with `last`, and checks what was drafted to follow it; a tree by its parents."""
        ...

    def close(self) -> None:
        """Frees its slot. Never fails."""
        ...


@dataclass(frozen=True, slots=True)
class Proposal:
    """What may follow.

    Attributes:
        tokens: In order; empty: nothing is known.
        drafter: Who proposes it.
        seconds: What it took, where that counts.
        parents: Of a tree: which of the tokens each one follows; None: the one before it.
        read: Tokens that a draft model has read for it first; it may propose none.
    """

    tokens: Sequence[int]
    drafter: str = ""
    seconds: float = 0.0
    parents: Sequence[int] | None = None
    read: int = 0


class DraftPort(Protocol):
    """Everything that drafts for one text."""

    def extend(self, tokens: Sequence[int]) -> None:
        """Certain tokens that follow: the prompt, then what each pass gave."""
        ...

    def propose(self, context: Sequence[int], cap: int, live: int, left: int) -> Proposal:
        """At most `cap` tokens that may follow; none where drafting does not pay now.

        Args:
            context: Prompt and answer so far.
            cap: Most tokens.
            live: Texts that are decoded.
            left: Tokens that may still come.
        """
        ...

    def judged(self, proposal: Proposal, accepted: int, pass_seconds: float) -> None:
        """How a proposal ended, and what its pass took."""
        ...

    def close(self) -> None:
        """The text has ended, however. Never fails."""
        ...


@dataclass(slots=True)
class Counts:
    """What a text has cost.

    Attributes:
        tokens: Of the answer.
        passes: Of the target after the prompt.
        proposed: Drafted tokens that were verified.
        accepted: Of them.
        seconds: Of all passes and drafts.
    """

    tokens: int = 0
    passes: int = 0
    proposed: int = 0
    accepted: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Step:
    """What a pass adds to the answer.

    Attributes:
        tokens: New tokens that count.
        text: New text that is certain: no stop string can still swallow it.
        logprobs: Of each token, where asked for.
        finish: In the last step: why.
        drafted: Tokens that its pass verified.
        accepted: How many of them were right.
        drafter: Who drafted them.
        seconds: Of its pass and its drafts.
    """

    tokens: Sequence[int]
    text: str
    logprobs: Sequence[float] | None
    finish: Finish | None
    drafted: int
    accepted: int
    drafter: str
    seconds: float


@dataclass(slots=True)
class Loop:
    """One text.

    Args:
        target: Its sequence.
        draft: Its drafts.
        answer: Its end, and the text that is certain.
        speculate: False: without drafts.
        live: How many texts are decoded now.
        limit: Most tokens of prompt and answer.
        most: Tokens drafted for the next pass, at most: the governor's cap, the profile's bound and the rows of a pass.
    """

    target: TargetPort
    draft: DraftPort
    answer: Answer
    speculate: bool
    live: Callable[[], int]
    limit: int
    most: Callable[[], int] = lambda: ROWS - 1
    counts: Counts = field(default_factory=Counts)

    def run(self, prompt: Sequence[int]) -> Generator[Step, None, None]:
        """The answer, pass by pass. Close the iterator to stop early; the slot is freed in any case."""
        context = list(prompt)
        self.draft.extend(prompt)
        try:
            verdict, proposal = self.target.start(prompt, self.live()), Proposal(())
            while True:
                step, taken = self._taken(verdict, proposal, len(context))
                context += taken
                self.draft.extend(taken)
                self.counts.tokens += len(taken)
                yield step
                if step.finish is not None:
                    return
                verdict, proposal = self._pass(context)
        finally:
            self.draft.close()
            self.target.close()

    def _pass(self, context: Sequence[int]) -> tuple[Verdict, Proposal]:
        live = self.live()
        # A pass gives one token more than it accepts: what is drafted beyond the end is work for nothing.
        left = min(self.answer.left, self.limit - len(context))
        room = min(left - 1, self.most())
        wanted = self.speculate and room > 0
        proposal = self.draft.propose(context, room, live, left) if wanted else Proposal(())
        verdict = self.target.verify(len(context) - 1, context[-1], proposal.tokens, live, proposal.parents)
        self.counts.passes += 1
        self.counts.proposed += len(proposal.tokens)
        self.counts.accepted += verdict.accepted
        if proposal.tokens or proposal.read:
            self.draft.judged(proposal, verdict.accepted, verdict.seconds)
        return verdict, proposal

    def _taken(self, verdict: Verdict, proposal: Proposal, length: int) -> tuple[Step, list[int]]:
        events = self.answer.take(verdict.tokens[: self.limit - length])
        taken = [one.token for one in events]
        text, finish = "".join(one.text for one in events), self.answer.finish
        if finish is None and length + len(taken) >= self.limit:
            finish = Finish.LENGTH
        logprobs = None if verdict.logprobs is None else list(verdict.logprobs[: len(taken)])
        seconds = verdict.seconds + proposal.seconds
        self.counts.seconds += seconds
        drafted = len(proposal.tokens)
        return Step(taken, text, logprobs, finish, drafted, verdict.accepted, proposal.drafter, seconds), taken
