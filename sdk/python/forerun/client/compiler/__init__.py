"""The loop of LLMCompiler: a model plans calls, Forerun runs them while the plan still streams, a model decides.

compiler = Compiler(OpenAiModel("http://127.0.0.1:8000/v1", "a-model"))
async with AsyncClient() as client, client.session("an-agent") as session:
    result = await compiler.run(session, "Which of the two is higher?")
    print(result.raise_for_status().answer, result.spent)
"""

from forerun.client.compiler._loop import Compiler
from forerun.client.compiler._model import Model, ModelError, ModelMessage, ModelPiece, ModelRequest, Usage
from forerun.client.compiler._openai import OpenAiModel
from forerun.client.compiler._prompts import LlmCompilerPrompts, PlannedTask, Prompts, Round, Situation
from forerun.client.compiler._results import (
    Basis,
    Bounds,
    CompilerFailed,
    CompilerResult,
    Decided,
    Event,
    PlanBroken,
    Progressed,
    Purpose,
    Requested,
    RequestEnd,
    RequestRecord,
    RoundStarted,
    RunStatus,
    Spent,
    TaskEnded,
    TaskKept,
    TaskPlanned,
    Thought,
)

__all__ = [
    "Basis",
    "Bounds",
    "Compiler",
    "CompilerFailed",
    "CompilerResult",
    "Decided",
    "Event",
    "LlmCompilerPrompts",
    "Model",
    "ModelError",
    "ModelMessage",
    "ModelPiece",
    "ModelRequest",
    "OpenAiModel",
    "PlanBroken",
    "PlannedTask",
    "Progressed",
    "Prompts",
    "Purpose",
    "RequestEnd",
    "RequestRecord",
    "Requested",
    "Round",
    "RoundStarted",
    "RunStatus",
    "Situation",
    "Spent",
    "TaskEnded",
    "TaskKept",
    "TaskPlanned",
    "Thought",
    "Usage",
]
