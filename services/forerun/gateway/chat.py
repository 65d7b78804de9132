"""Chat completions: from a request's body to the model port, and from its events to what clients of OpenAI expect.

Fields that would change the answer and are not supported are refused by name; nothing is ignored silently but what
only concerns OpenAI's own bookkeeping.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from forerun.runtime.errors import ErrorReason, InvalidArgument
from forerun.runtime.models.port import (
    Finished,
    Gathered,
    Message,
    ModelEvent,
    ModelRequest,
    TextDelta,
    ToolCall,
)

_BOOKKEEPING: Final = frozenset(
    "user metadata store service_tier safety_identifier prompt_cache_key parallel_tool_calls".split()
)


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _Function(_Body):
    name: str = Field(max_length=256)
    arguments: str


class _Call(_Body):
    id: str = Field(max_length=256)
    type: Literal["function"] = "function"
    function: _Function


class _Part(_Body):
    type: Literal["text"]
    text: str


class _Message(_Body):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[_Part] | None = None
    tool_calls: list[_Call] | None = Field(default=None, max_length=1_000)
    tool_call_id: str = ""
    name: str | None = None
    refusal: None = None


class _StreamOptions(_Body):
    include_usage: bool = False
    include_obfuscation: bool = False


class _Format(_Body):
    type: Literal["text"]


class _ToolName(_Body):
    name: str = Field(min_length=1, max_length=256)


class _NamedTool(_Body):
    type: Literal["function"]
    function: _ToolName


class ChatBody(_Body):
    """The body of a chat completion."""

    model: str = Field(max_length=256)
    messages: list[_Message] = Field(min_length=1, max_length=10_000)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    presence_penalty: float = Field(default=0.0, ge=-2, le=2)
    frequency_penalty: float = Field(default=0.0, ge=-2, le=2)
    logit_bias: dict[str, float] | None = Field(default=None, max_length=1_024)
    seed: int | None = None
    stop: str | list[str] | None = None
    n: Literal[1] | None = None
    stream: bool = False
    stream_options: _StreamOptions | None = None
    tools: list[dict[str, Any]] | None = Field(default=None, max_length=1_000)
    tool_choice: Literal["auto", "none", "required"] | _NamedTool | None = None
    response_format: _Format | None = None
    speculate: bool = True
    """Ours, by the client's `extra_body`: false decodes without drafts."""

    def request(self, expected: tuple[str, ...] = (), who: Mapping[str, str] | None = None) -> ModelRequest:
        """What the model port is asked.

        Args:
            expected: Texts that the answer may equal.
            who: Whose earlier outputs may draft: `tenant` and `agent`.

        Raises:
            InvalidArgument: A call is demanded, and there is no tool.
        """
        must_call = self.tool_choice not in (None, "auto", "none")
        if must_call and not self.tools:
            raise InvalidArgument(ErrorReason.ARGUMENT_INVALID, "tool_choice: demands a call, and there are no tools")
        stop = [self.stop] if isinstance(self.stop, str) else self.stop or []
        tools = self.tools if self.tools and self.tool_choice != "none" else None
        return ModelRequest(
            messages=tuple(_message(one) for one in self.messages),
            temperature=self.temperature,
            top_p=self.top_p,
            max_output_tokens=self.max_completion_tokens or self.max_tokens,
            seed=self.seed,
            stop=tuple(stop),
            tools="" if tools is None else json.dumps(tools),
            must_call=must_call,
            only_tool=self.tool_choice.function.name if isinstance(self.tool_choice, _NamedTool) else "",
            expected=expected,
            served={**self._options(), **(who or {})},
        )

    def _options(self) -> dict[str, Any]:
        """What goes to a served model beside that."""
        found: dict[str, Any] = {
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "speculate": self.speculate,
        }
        if self.logit_bias:
            found["logit_bias"] = self.logit_bias
        return found


def read_body(content: bytes) -> ChatBody:
    """The body of a request.

    Raises:
        InvalidArgument: It is none; the message names each field that is wrong or not supported.
    """
    try:
        given = json.loads(content)
        if b"\\u" in content:
            json.dumps(given, ensure_ascii=False).encode()  # JSON can spell half of a surrogate pair, which is no text
    except UnicodeEncodeError as error:
        raise InvalidArgument(ErrorReason.ARGUMENT_INVALID, "the body holds half of a surrogate pair") from error
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(ErrorReason.ARGUMENT_INVALID, "the body is not JSON, or nested too deeply") from error
    if not isinstance(given, dict):
        raise InvalidArgument(ErrorReason.ARGUMENT_INVALID, "the body is no JSON object")
    try:
        return ChatBody.model_validate({name: value for name, value in given.items() if name not in _BOOKKEEPING})
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()[:5])
        raise InvalidArgument(ErrorReason.ARGUMENT_INVALID, f"not supported here, or wrong: {wrong}") from error


def _message(given: _Message) -> Message:
    content = given.content or ""
    text = content if isinstance(content, str) else "".join(one.text for one in content)
    role = "system" if given.role == "developer" else given.role
    calls = tuple(ToolCall(one.id, one.function.name, one.function.arguments) for one in given.tool_calls or ())
    return Message(role, text, calls, given.tool_call_id)


@dataclass(slots=True)
class Completion:
    """One answer, in the forms of the API.

    Args:
        id: Of the completion.
        model: As the client named it.
        created: Seconds since the epoch.
    """

    id: str
    model: str
    created: int
    _gathered: Gathered = field(default_factory=Gathered)
    _begun: bool = False

    def chunk(self, event: ModelEvent) -> dict[str, Any]:
        """One event of a streamed answer."""
        delta: dict[str, Any] = {} if self._begun else {"role": "assistant"}
        self._begun = True
        if isinstance(event, TextDelta):
            delta["content"] = event.text
        elif not isinstance(event, Finished):
            call: dict[str, Any] = {"index": event.index, "function": {"arguments": event.arguments}}
            if event.id:
                call |= {"id": event.id, "type": "function"}
            if event.name:
                call["function"]["name"] = event.name
            delta["tool_calls"] = [call]
        finish = event.reason.value if isinstance(event, Finished) else None
        return self._frame("chat.completion.chunk", [{"index": 0, "delta": delta, "finish_reason": finish}])

    def usage_chunk(self, finished: Finished) -> dict[str, Any]:
        """The last chunk, for clients that asked for it."""
        return {**self._frame("chat.completion.chunk", []), "usage": _usage(finished)}

    def add(self, event: ModelEvent) -> None:
        """An event of an answer that is given as a whole."""
        self._gathered.add(event)

    def whole(self) -> dict[str, Any]:
        """The answer as a whole; its end has to be there."""
        finished = self._gathered.finished
        assert finished is not None, "the caller waits for the end"
        message: dict[str, Any] = {"role": "assistant", "content": self._gathered.text or None}
        if self._gathered.tool_calls:
            message["tool_calls"] = [
                {"id": one.id, "type": "function", "function": {"name": one.name, "arguments": one.arguments}}
                for one in self._gathered.tool_calls
            ]
        else:
            message["content"] = self._gathered.text
        choice = {"index": 0, "message": message, "finish_reason": finished.reason.value}
        return {**self._frame("chat.completion", [choice]), "usage": _usage(finished)}

    def _frame(self, kind: str, choices: list[Mapping[str, Any]]) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": choices}


def _usage(finished: Finished) -> dict[str, int]:
    usage = finished.usage
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }
