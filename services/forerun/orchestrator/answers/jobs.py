"""Model requests of one answer, each with its purpose: read to their end, and accounted for whatever comes of them."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import StrEnum

from forerun.runtime.models.calling import Bill, ModelCall
from forerun.runtime.models.port import FinishReason, Gathered, TextDelta

Sink = Callable[[str], Awaitable[None]]


class Purpose(StrEnum):
    """What a request is for."""

    SINGLE = "single"
    CANDIDATE = "candidate"
    JUDGE = "judge"
    DRAFT = "draft"


@dataclass(slots=True)
class Job:
    """One request.

    Attributes:
        call: The request.
        model: Name of its model.
        purpose: What it is for.
        candidate: Of which candidate, where it is of one.
        cut: A text behind which nothing more is wanted: the request is ended there, at its provider, too.
        message: What has come of it.
        was_cut: It was ended at that text.
    """

    call: ModelCall
    model: str
    purpose: Purpose
    candidate: int = 0
    cut: str = ""
    message: Gathered = field(default_factory=Gathered)
    was_cut: bool = False

    async def run(self, sink: Sink | None = None) -> None:
        """Reads the answer.

        Args:
            sink: Is given the text as it comes.

        Raises:
            ForerunError: there is none.
        """
        async with contextlib.aclosing(self.call.events()) as events:
            async for event in events:
                self.message.add(event)
                if isinstance(event, TextDelta) and event.text and sink is not None:
                    await sink(event.text)
                if self.cut and self.cut in self.message.text:
                    self.was_cut = True
                    return

    @property
    def text(self) -> str:
        """Its text, up to where it was cut."""
        text = self.message.text
        return text[: text.index(self.cut) + len(self.cut)] if self.was_cut else text

    @property
    def ended(self) -> bool:
        """The model has said all that it wanted to say."""
        finished = self.message.finished
        return not self.was_cut and finished is not None and finished.reason is not FinishReason.LENGTH

    @property
    def provider(self) -> str:
        """The provider that has answered, or was to."""
        answered = self.call.answered
        if answered is None and self.call.attempts:
            answered = self.call.attempts[-1]
        return "" if answered is None else answered.endpoint.provider.name

    def bills(self) -> list[Bill]:
        """What each of its attempts has cost."""
        return self.call.bills()

    @property
    def output_tokens(self) -> int:
        """Tokens that the last attempt has generated."""
        return next((bill.usage.output_tokens for bill in reversed(self.bills())), 0)

    @property
    def cost(self) -> float:
        """What it has cost altogether."""
        return sum(bill.money for bill in self.bills())
