"""Reads a plan from a file, in each of the forms that Forerun takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from forerun.core import limits
from forerun.core.canonical import CanonicalError, JsonValue, parse_strict
from forerun.core.contracts import Contract, unknown
from forerun.core.plan import FailurePolicy, Task
from forerun.core.plan.intake import AnthropicReader, ArrivalError, JsonPlanReader, LlmCompilerReader, OpenAiReader
from forerun.core.schema import SchemaError, ToolSchema, parse_schema
from forerun.runtime.policy import Policy, policies_of, read_policy_file

FORMATS: Final = ("auto", "json", "llmcompiler", "openai", "anthropic")


@dataclass(frozen=True, slots=True)
class Tools:
    """What a policy file says about tools.

    Attributes:
        policy: Its first policy, or None where there is no file.
        schemas: Input schemas by tool.
        servers: Server by tool.
    """

    policy: Policy | None
    schemas: dict[str, ToolSchema]
    servers: dict[str, str]

    def contract(self, tool: str) -> Contract:
        """The contract of a tool."""
        server = self.servers.get(tool, "")
        return unknown(tool, server) if self.policy is None else self.policy.contract(tool, server)

    def parameters(self, tool: str) -> tuple[str, ...] | None:
        """The names of a tool's arguments in order, or None."""
        schema = self.schemas.get(tool)
        return None if schema is None else schema.parameters


@dataclass(frozen=True, slots=True)
class Source:
    """A plan from a file.

    Attributes:
        tasks: In call order.
        failure: The failure policy that the file names, or None.
        format: In which form it came.
    """

    tasks: list[Task]
    failure: FailurePolicy | None
    format: str


def read_tools(path: Path | None) -> Tools:
    """Reads contracts and schemas.

    Raises:
        PolicyError: The file cannot be used.
    """
    if path is None:
        return Tools(None, {}, {})
    message = read_policy_file(path)
    policies = policies_of(message).items
    schemas: dict[str, ToolSchema] = {}
    servers: dict[str, str] = {}
    for server in message.servers:
        for tool in server.tools:
            servers[tool.name] = server.name
            try:
                schemas[tool.name] = parse_schema(tool.input_schema.encode() or b"{}")
            except (SchemaError, CanonicalError):
                continue  # such a tool takes arguments by name
    return Tools(policies[0] if policies else None, schemas, servers)


def read_plan(path: Path, tools: Tools, chosen: str = "auto") -> Source:
    """Reads a plan.

    Args:
        path: A JSON plan, the text of a planner, a provider's message, or the events of its stream as a JSON list.
        tools: For names of parameters and required fields.
        chosen: One of `FORMATS`.

    Raises:
        ArrivalError: It is no plan.
        OSError: It cannot be read.
    """
    if path.stat().st_size > limits.PLAN_TEXT_BYTES:
        raise ArrivalError("too_large", f"more than PLAN_TEXT_BYTES ({limits.PLAN_TEXT_BYTES})")
    data = path.read_bytes()
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ArrivalError("invalid_utf8", f"invalid UTF-8 at byte {error.start}") from error
    form = _format(path, data) if chosen == "auto" else chosen
    if form == "json":
        reader = JsonPlanReader()
        return Source(reader.feed(text) + reader.finish(), reader.failure, form)
    if form == "llmcompiler":
        planner = LlmCompilerReader(tools.parameters)
        return Source(planner.feed(text) + planner.finish(), None, form)
    return Source(_message(_parsed(data), form, tools.schemas.get), None, form)


def _message(value: JsonValue, form: str, schema_of: Callable[[str], ToolSchema | None]) -> list[Task]:
    reader = OpenAiReader(schema_of) if form == "openai" else AnthropicReader(schema_of)
    if not isinstance(value, list):
        return reader.whole(value)
    tasks = [task for event in value for task in reader.feed(event)]
    reader.finish()
    return tasks


def _format(path: Path, data: bytes) -> str:
    """What the content says, where the name says JSON; else the text of a planner."""
    if path.suffix != ".json":
        return "llmcompiler"
    value = _parsed(data)
    first = value[0] if isinstance(value, list) and value else value
    keys = set(first) if isinstance(first, dict) else set()
    if keys & {"choices", "tool_calls"}:
        return "openai"
    if keys & {"content", "type"}:
        return "anthropic"
    return "json"


def _parsed(data: bytes) -> JsonValue:
    try:
        return parse_strict(data)
    except CanonicalError as error:
        raise ArrivalError(error.reason, f"no JSON: {error}") from error
