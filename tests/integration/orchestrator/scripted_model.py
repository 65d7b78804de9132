"""A model that says what a test wrote down, piece by piece, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

from forerun.client.compiler import ModelError, ModelPiece, ModelRequest, Usage

Line = str | float | ModelError | None
"""A text; a pause in seconds; an error; None for a model that is silent for ever."""

FINISH = ["Thought: enough\n", "Action: Finish(done)"]
REPLAN = ["Thought: not enough\n", "Action: Replan(look again)"]


@dataclass
class ScriptedModel:
    """Answers one script after the other; the last one again and again."""

    scripts: Sequence[Sequence[Line] | Callable[[ModelRequest], Sequence[Line]]]
    usage: Usage | None = None
    requests: list[ModelRequest] = field(default_factory=list)
    stopped: int = 0

    async def __call__(self, request: ModelRequest) -> AsyncIterator[ModelPiece | str]:
        script = self.scripts[min(len(self.requests), len(self.scripts) - 1)]
        self.requests.append(request)
        whole = False
        try:
            for line in script(request) if callable(script) else script:
                if isinstance(line, ModelError):
                    raise line
                if line is None:
                    await asyncio.Event().wait()
                elif isinstance(line, float):
                    await asyncio.sleep(line)
                else:
                    yield line
            whole = True
            if self.usage is not None:
                yield ModelPiece(finish_reason="stop", usage=self.usage)
        finally:
            self.stopped += not whole

    @property
    def prompts(self) -> list[str]:
        """The last message of each request."""
        return [request.messages[-1].content for request in self.requests]
