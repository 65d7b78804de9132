"""One guess: a request to the model, and what has come of it. Only a call that is valid is ever a guess."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from jsonschema.exceptions import SchemaError, ValidationError

from forerun.core.canonical import CanonicalError, canonical, parse_strict
from forerun.core.tokens import Usage
from forerun.runtime.errors import ForerunError
from forerun.runtime.models.catalogue import Model
from forerun.runtime.models.models import CallTerms, Models
from forerun.runtime.models.port import Gathered, ModelRequest, ToolCall
from forerun.runtime.tool_servers import UNRESOLVABLE, validator_of


@dataclass(frozen=True, slots=True)
class Call:
    """A call that was guessed.

    Attributes:
        tool: The tool.
        arguments: Canonical JSON.
    """

    tool: str
    arguments: bytes


@dataclass(frozen=True, slots=True)
class Ended:
    """What has come of a request.

    Attributes:
        call: The guess; None where there is none.
        seconds: What it took.
        usage: Its tokens.
        failed: Why there was no answer; empty where there was one.
    """

    call: Call | None
    seconds: float
    usage: Usage
    failed: str = ""


class SmallModel:
    """Asks the model.

    Args:
        models: Sends requests, with deadlines and a breaker.
        model: Which of them.
        deadline_seconds: Of one guess.
    """

    def __init__(self, models: Models, model: Model, deadline_seconds: float) -> None:
        self._models = models
        self._model = model
        self._deadline_seconds = deadline_seconds

    @property
    def name(self) -> str:
        """Of the model."""
        return self._model.name

    async def guess(self, request: ModelRequest, ended: Callable[[Ended], None]) -> None:
        """One guess. `ended` is told of it in any case, also where this is cancelled: what it cost is not lost."""
        now = asyncio.get_running_loop().time
        began = now()
        terms = CallTerms(speculative=True, races=False, deadline=began + self._deadline_seconds)
        call = self._models.call(self._model, request, terms)
        found, failed, complete = Gathered(), "", False
        try:
            async with aclosing(call.events()) as events:
                async for event in events:
                    found.add(event)
            complete = True
        except ForerunError as error:
            failed = error.reason.value
        finally:
            usages = [bill.usage for bill in call.bills()]
            usage = Usage(
                sum(one.input_tokens for one in usages),
                sum(one.output_tokens for one in usages),
                any(one.estimated for one in usages),
            )
            guessed = valid_call(found.tool_calls, request.tools) if complete else None
            ended(Ended(guessed, now() - began, usage, failed))

    async def close(self) -> None:
        """Closes the connections."""
        await self._models.endpoints.close()


def valid_call(calls: Sequence[ToolCall], tools: str) -> Call | None:
    """The one call of an answer, where it is one of these tools with valid arguments. Nothing is repaired."""
    if len(calls) != 1:
        return None
    (call,) = calls
    schemas: Mapping[str, Any] = {
        one["function"]["name"]: one["function"].get("parameters", {}) for one in json.loads(tools)
    }
    if call.name not in schemas:
        return None
    try:
        schema = schemas[call.name]
        value = parse_strict(call.arguments.encode())
        if not isinstance(value, dict) or _has_pattern(schema):
            return None
        validator = validator_of(schema)
        validator.check_schema(schema)
        validator.validate(json.loads(call.arguments))
        return Call(call.name, canonical(value))
    except (*UNRESOLVABLE, CanonicalError, SchemaError, ValidationError, ValueError):
        return None


def _has_pattern(schema: Any) -> bool:
    """A regular expression of somebody's schema may take for ever, with everybody else's predictions behind it."""
    if isinstance(schema, Mapping):
        # A property may have that name, and is a schema then.
        keyword = isinstance(schema.get("pattern"), str) or "patternProperties" in schema
        return keyword or any(map(_has_pattern, schema.values()))
    return isinstance(schema, list) and any(map(_has_pattern, schema))
