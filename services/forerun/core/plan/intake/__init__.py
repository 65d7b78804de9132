"""Plans and model messages as they arrive: each task is handed on as soon as it is complete, and never taken back.

A reader is fed with what has arrived and gives the tasks that became complete by it. Nothing is repaired. When what
arrives is cut off, changes, or is no plan, a reader raises a typed error and gives nothing any more.
"""

from forerun.core.plan.intake.anthropic import AnthropicReader
from forerun.core.plan.intake.json_plan import JsonPlanReader
from forerun.core.plan.intake.llmcompiler import LlmCompilerReader
from forerun.core.plan.intake.openai import OpenAiReader
from forerun.core.plan.intake.port import ArrivalError, MessageReader, TextReader

__all__ = [
    "AnthropicReader",
    "ArrivalError",
    "JsonPlanReader",
    "LlmCompilerReader",
    "MessageReader",
    "OpenAiReader",
    "TextReader",
]
