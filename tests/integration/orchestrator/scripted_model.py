"""A model that says what a test wrote down, piece by piece, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from forerun.client import AsyncSession
from forerun.client.compiler import (
    Bounds,
    Compiler,
    CompilerResult,
    ModelError,
    ModelPiece,
    ModelRequest,
    Usage,
)
from tests.integration.orchestrator.conftest import Stage

Line = str | float | ModelError | None
"""A text; a pause in seconds; an error; None for a model that is silent for ever."""

END = "9. join()<END_OF_PLAN>"
FINISH = ["Thought: enough\n", "Action: Finish(done)"]
REPLAN = ["Thought: not enough\n", "Action: Replan(look again)"]
DIED = ModelError("MODEL_BROKEN_OFF", "the connection was reset", transient=True)


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


def first_number(request: ModelRequest) -> str:
    """From where the planner is told to count."""
    said = request.messages[-1].content
    return said.partition("Number the calls from ")[2].partition(" ")[0] if "Number the calls" in said else "1"


def asked(s: Stage, *tools: str) -> list[tuple[str, int]]:
    return [(name, arguments["id"]) for name, arguments, _ in s.world.log if not tools or name in tools]


def compiler(planner: ScriptedModel, joiner: ScriptedModel, **bounds: Any) -> Compiler:
    return Compiler(planner, joiner=joiner, bounds=Bounds(**bounds))


async def run(session: AsyncSession, *scripts: Sequence[Line], **bounds: Any) -> CompilerResult:
    """One run with plans and, where they are used up, a joiner that finishes."""
    return await compiler(ScriptedModel(scripts), ScriptedModel([FINISH]), **bounds).run(session, "what?")
