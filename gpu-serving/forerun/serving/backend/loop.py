"""Decoding one text with a target and drafts: the same tokens as the target alone gives, in fewer passes.

Pure but for its ports, so that tests run the very loop that is served beside a model in their own process.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from forerun.serving.backend.deciding import Options
from forerun.serving.backend.stopping import Stopping

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

    async def start(self, prompt: Sequence[int], live: int) -> Verdict:
        """Feeds the prompt; the first token."""
        ...

    async def verify(self, keep: int, last: int, drafted: Sequence[int], live: int) -> Verdict:
        """Goes on after `keep` tokens with `last`, and checks what was drafted to follow it."""
        ...

    async def close(self) -> None:
        """Frees its slot. Never fails."""
        ...


@dataclass(frozen=True, slots=True)
class Proposal:
    """What may follow.

    Attributes:
        tokens: In order; empty: nothing is known.
        drafter: Who proposes it.
        seconds: What it took, where that counts.
    """

    tokens: Sequence[int]
    drafter: str = ""
    seconds: float = 0.0


class DraftPort(Protocol):
    """Everything that drafts for one text."""

    async def propose(self, context: Sequence[int], depth: int, live: int) -> Proposal:
        """At most `depth` tokens that may follow."""
        ...

    def judged(self, proposal: Proposal, accepted: int) -> None:
        """How a proposal ended."""
        ...

    async def close(self) -> None:
        """The text has ended, however. Never fails."""
        ...


class DepthPort(Protocol):
    """Decides how deep to draft."""

    def depth(self, live: int, context: int) -> int:
        """Tokens to draft for the next pass; 0: none, and no draft model is asked."""
        ...

    def passed(self, live: int, depth: int, drafted: int, accepted: int, seconds: float) -> None:
        """What a pass gave."""
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
        finish: `stop` or `length` in the last step.
        drafted: Tokens that its pass verified.
        seconds: Of its pass and its drafts.
    """

    tokens: Sequence[int]
    text: str
    logprobs: Sequence[float] | None
    finish: str | None
    drafted: int
    seconds: float


@dataclass(slots=True)
class Loop:
    """One text.

    Args:
        target: Its sequence.
        draft: Its drafts.
        depth: Who decides how deep.
        stopping: When it ends.
        options: Of the request.
        live: How many texts are decoded now.
        limit: Most tokens of prompt and answer.
    """

    target: TargetPort
    draft: DraftPort
    depth: DepthPort
    stopping: Stopping
    options: Options
    live: Callable[[], int]
    limit: int
    counts: Counts = field(default_factory=Counts)

    async def run(self, prompt: Sequence[int]) -> AsyncGenerator[Step, None]:
        """The answer, pass by pass. Close the iterator to stop early; the slot is freed in any case."""
        context = list(prompt)
        try:
            verdict, proposal = await self.target.start(prompt, self.live()), Proposal(())
            while True:
                step, taken = self._taken(verdict, proposal, len(context))
                context += taken
                self.counts.tokens += len(taken)
                yield step
                if step.finish is not None:
                    return
                verdict, proposal = await self._pass(context)
        finally:
            await self.draft.close()
            await self.target.close()

    async def _pass(self, context: Sequence[int]) -> tuple[Verdict, Proposal]:
        live = self.live()
        # A pass gives one token more than it accepts: what is drafted beyond the end is work for nothing.
        room = min(self.stopping.left - 1, self.limit - len(context) - 1, ROWS - 1)
        depth = min(self.depth.depth(live, len(context)), room) if self.options.speculate and room > 0 else 0
        proposal = await self.draft.propose(context, depth, live) if depth > 0 else Proposal(())
        verdict = await self.target.verify(len(context) - 1, context[-1], proposal.tokens, live)
        self.counts.passes += 1
        self.counts.proposed += len(proposal.tokens)
        self.counts.accepted += verdict.accepted
        if proposal.tokens:
            self.draft.judged(proposal, verdict.accepted)
        self.depth.passed(live, depth, len(proposal.tokens), verdict.accepted, verdict.seconds + proposal.seconds)
        return verdict, proposal

    def _taken(self, verdict: Verdict, proposal: Proposal, length: int) -> tuple[Step, list[int]]:
        taken: list[int] = []
        text, finish = [], None
        for token in verdict.tokens:
            added, finish = self.stopping.take(token)
            taken.append(token)
            text.append(added)
            if finish is None and length + len(taken) >= self.limit:
                finish = "length"
            if finish is not None:
                text.append(self.stopping.rest(finish))
                break
        logprobs = None if verdict.logprobs is None else list(verdict.logprobs[: len(taken)])
        seconds = verdict.seconds + proposal.seconds
        self.counts.seconds += seconds
        return Step(taken, "".join(text), logprobs, finish, len(proposal.tokens), seconds), taken
