"""The grammar of one tool call, in the form in which models of the Hermes and Qwen families write them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from forerun.core import limits
from forerun.core.canonical import CanonicalError, JsonValue, parse_strict
from forerun.core.errors import CoreError
from forerun.core.grammar.automaton import Builder, Grammar, GrammarTooLarge
from forerun.core.grammar.schemas import SchemaGrammar, Unsupported
from forerun.core.schema import ToolSchema

OPENING: Final = "<tool_call>\n"
CLOSING: Final = "\n</tool_call>"


@dataclass(frozen=True, slots=True)
class GrammarTool:
    """A tool that may be called.

    Attributes:
        name: Its name.
        schema: Of its arguments.
    """

    name: str
    schema: ToolSchema


@dataclass(frozen=True, slots=True)
class CallGrammar:
    """Exactly one call of one of some tools, with arguments that are valid.

    Attributes:
        grammar: Its texts.
        names: Tools that it can call.
        left_out: Why others cannot be called, by their names.
    """

    grammar: Grammar
    names: tuple[str, ...]
    left_out: Mapping[str, str]


def call_text(name: str, arguments: str) -> str:
    """A call as models write it.

    Args:
        name: The tool.
        arguments: A JSON object.
    """
    spaced = json.dumps(json.loads(arguments), ensure_ascii=False)
    return f'{OPENING}{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": {spaced}}}{CLOSING}'


def call_grammar(tools: Sequence[GrammarTool]) -> CallGrammar:
    """The grammar of one call.

    Raises:
        CoreError: No tool is left; the message says why the first one is not.
    """
    to = Builder()
    first = to.state()
    opened = to.literal(first, f'{OPENING}{{"name": '.encode())
    closed = to.state()
    last = to.literal(closed, f"}}{CLOSING}".encode())
    names: list[str] = []
    left_out: dict[str, str] = {}
    for tool in tools:
        begin = len(to.spans)
        try:
            to.state()
            at = to.literal(begin, f'{json.dumps(tool.name, ensure_ascii=False)}, "arguments": '.encode())
            to.skip(SchemaGrammar(to, tool.schema).arguments(at), closed)
        except (Unsupported, GrammarTooLarge) as error:
            left_out[tool.name] = str(error)
            to.forget(begin)
            continue
        to.skip(opened, begin)
        names.append(tool.name)
    if not names:
        why = next((f"{name}: {reason}" for name, reason in left_out.items()), "there is none")
        raise CoreError("no_tool", f"no tool that can be called under a grammar ({why})")
    return CallGrammar(Grammar(to, first, last), tuple(names), left_out)


def tools_of(text: str, only: str = "") -> list[GrammarTool]:
    """The tools of a list in the form of chat completions.

    Args:
        text: JSON.
        only: The one tool that is wanted; empty: all.

    Raises:
        CoreError: It is no such list, or lacks the tool.
    """
    try:
        entries = parse_strict(text.encode(), max_bytes=limits.ARGUMENTS_BYTES)
    except (CanonicalError, UnicodeEncodeError) as error:
        raise CoreError("no_tools", f"tools that are no JSON: {error}") from error
    if not isinstance(entries, list):
        raise CoreError("no_tools", "tools that are no list")
    found = [_tool(one) for one in entries]
    if only:
        found = [one for one in found if one.name == only]
        if not found:
            raise CoreError("no_tools", f"there is no tool {only!r} among the tools")
    return found


def _tool(entry: JsonValue) -> GrammarTool:
    function = entry.get("function") if isinstance(entry, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(function, dict) or not isinstance(name, str) or not 0 < len(name) <= limits.NAME_CHARS:
        raise CoreError("no_tools", "a tool without a function that has a name")
    parameters = function.get("parameters", {})
    return GrammarTool(name, ToolSchema(parameters if isinstance(parameters, dict) else {}))
