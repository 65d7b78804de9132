"""Everything that drafts for one text, and which of it is verified."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from forerun.serving.backend.loop import Proposal

MODEL: Final = "model"
"""Name of the draft model among the drafters."""

EXPECTED: Final = "expected"
"""Name of the expected continuation, such as a predicted call."""


class DraftModelPort(Protocol):
    """One sequence of the draft model."""

    async def draft(self, keep: int, tokens: Sequence[int], count: int, live: int) -> tuple[list[int], float]:
        """Goes on after `keep` tokens with `tokens`: so many that may follow, and the seconds it took."""
        ...

    async def close(self) -> None:
        """Frees its slot."""
        ...


class ModelDrafter:
    """Drafts of a draft model.

    Args:
        port: Its sequence.
    """

    def __init__(self, port: DraftModelPort) -> None:
        self._port = port
        self._fed: list[int] = []

    async def propose(self, context: Sequence[int], depth: int, live: int) -> Proposal:
        """At most `depth` tokens that may follow."""
        kept = 0
        for known, token in zip(self._fed, context, strict=False):
            if known != token:
                break
            kept += 1
        # The scores after the last token come with feeding it, also where it was fed before.
        kept = min(kept, len(context) - 1)
        found, seconds = await self._port.draft(kept, context[kept:], depth, live)
        self._fed = [*context, *found[:-1]]
        return Proposal(found, MODEL, seconds)

    async def close(self) -> None:
        """Frees its slot."""
        await self._port.close()


class ExpectedDrafter:
    """Drafts from a text that is expected, as long as the answer goes along with it.

    Args:
        tokens: What is expected from the start of the answer on.
        prompt: Tokens before the answer.
    """

    def __init__(self, tokens: Sequence[int], prompt: int) -> None:
        self._tokens = list(tokens)
        self._prompt = prompt

    def propose(self, context: Sequence[int], depth: int) -> Proposal:
        """At most `depth` tokens that may follow; none once the answer has left the expected text."""
        said = len(context) - self._prompt
        if list(context[self._prompt :]) != self._tokens[:said]:
            self._tokens = []
        return Proposal(self._tokens[said : said + depth], EXPECTED)


class Drafts:
    """The drafters of one text: what is expected comes first, then the draft model.

    Args:
        expected: See there; None: nothing is.
        model: See there; None: there is none, or it is not wanted.
        judged: Told how each proposal ended: its drafter, tokens proposed and accepted.
    """

    def __init__(
        self,
        expected: ExpectedDrafter | None,
        model: ModelDrafter | None,
        judged: Callable[[str, int, int], None],
    ) -> None:
        self._expected = expected
        self._model = model
        self._judged = judged

    async def propose(self, context: Sequence[int], depth: int, live: int) -> Proposal:
        """At most `depth` tokens that may follow."""
        found = Proposal(()) if self._expected is None else self._expected.propose(context, depth)
        if not found.tokens and self._model is not None:
            found = await self._model.propose(context, depth, live)
        return found

    def judged(self, proposal: Proposal, accepted: int) -> None:
        """How a proposal ended."""
        self._judged(proposal.drafter, len(proposal.tokens), accepted)

    async def close(self) -> None:
        """The text has ended."""
        if self._model is not None:
            await self._model.close()
