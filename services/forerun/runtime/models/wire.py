"""Chat completions as JSON: requests written, chunks and whole completions read. Nothing is repaired."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any, Final

from forerun.core import limits
from forerun.core.tokens import Usage, estimated_tokens
from forerun.runtime.models.catalogue import Provider
from forerun.runtime.models.port import (
    Finished,
    FinishReason,
    Message,
    ModelEvent,
    ModelRequest,
    TextDelta,
    ToolCallDelta,
)

_CODE: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_MOST_CALLS: Final = limits.CALLS_PER_MESSAGE
_MOST_TOKENS: Final = 1 << 40


class NotACompletion(Exception):
    """It is no chat completion. The text says what it is, without its content."""


def request_body(request: ModelRequest, provider: Provider) -> bytes:
    """The body of a request."""
    body: dict[str, Any] = {
        "model": provider.model,
        "messages": [_message(one) for one in request.messages],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": provider.most_output(request.max_output_tokens),
    }
    for name, value in (("temperature", request.temperature), ("top_p", request.top_p), ("seed", request.seed)):
        if value is not None:
            body[name] = value
    if request.stop:
        body["stop"] = list(request.stop)
    if request.tools:
        body["tools"] = json.loads(request.tools)
        if request.must_call:
            named = {"type": "function", "function": {"name": request.only_tool}}
            body["tool_choice"] = named if request.only_tool else "required"
    if request.continues:
        # As vLLM and SGLang have it; endpoints that go on by themselves do not mind.
        body |= {"continue_final_message": True, "add_generation_prompt": False}
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


def _message(message: Message) -> dict[str, Any]:
    body: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        body["tool_calls"] = [
            {"id": one.id, "type": "function", "function": {"name": one.name, "arguments": one.arguments}}
            for one in message.tool_calls
        ]
    if message.tool_call_id:
        body["tool_call_id"] = message.tool_call_id
    return body


@dataclass(slots=True)
class Completion:
    """What has come of one completion.

    Attributes:
        prompt_bytes: Of the request, for an estimate of tokens.
        deltas: Deltas that said something: as many tokens, at least.
        ended: Why it ended, once that was said.
    """

    prompt_bytes: int
    deltas: int = 0
    ended: FinishReason | None = None
    _usage: Usage | None = None
    _model: str = ""
    _output_bytes: int = field(default=0)

    def chunk(self, data: str) -> list[ModelEvent]:
        """Takes the data of one event of a stream.

        Raises:
            NotACompletion: it is none.
        """
        body = _object(data)
        self._note(body)
        choice = _choice(body)
        return [] if choice is None else self._delta(choice, choice.get("delta"))

    def whole(self, data: str) -> list[ModelEvent]:
        """Takes a completion that did not stream.

        Raises:
            NotACompletion: it is none.
        """
        body = _object(data)
        self._note(body)
        choice = _choice(body)
        if choice is None:
            raise NotACompletion("a completion without a choice")
        return self._delta(choice, choice.get("message"))

    def finished(self) -> Finished:
        """Its end."""
        generated = max(self.deltas, estimated_tokens(self._output_bytes))
        usage = self._usage or Usage(estimated_tokens(self.prompt_bytes), generated, True)
        return Finished(self.ended or FinishReason.OTHER, usage, self._model)

    def _note(self, body: dict[str, Any]) -> None:
        if body.get("error"):
            raise NotACompletion(f"an error instead of a completion ({error_code(body) or 'without a code'})")
        model, usage = body.get("model"), body.get("usage")
        if isinstance(model, str):
            self._model = model[:256]
        if isinstance(usage, dict):
            prompt, generated = _count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens"))
            if prompt is not None and generated is not None:
                self._usage = Usage(prompt, generated)

    def _delta(self, choice: dict[str, Any], delta: object) -> list[ModelEvent]:
        reason = choice.get("finish_reason")
        if isinstance(reason, str):
            known = "tool_calls" if reason == "function_call" else reason
            self.ended = FinishReason(known) if known in set(FinishReason) else FinishReason.OTHER
        if delta is None:
            return []
        if not isinstance(delta, dict):
            raise NotACompletion("a delta that is no object")
        events: list[ModelEvent] = []
        text = delta.get("content")
        if isinstance(text, str) and text:
            events.append(TextDelta(_unicode(text)))
            self._output_bytes += len(text.encode())
        elif text is not None and not isinstance(text, str):
            raise NotACompletion("content that is no text")
        for thought in (delta.get("reasoning_content"), delta.get("reasoning")):
            if isinstance(thought, str) and thought:
                events.append(TextDelta(""))  # it is at work; what it thinks is no part of the answer
                self._output_bytes += len(thought.encode("utf-8", "surrogatepass"))
                break
        events += self._calls(delta.get("tool_calls"))
        self.deltas += bool(events)
        return events

    def _calls(self, calls: object) -> list[ModelEvent]:
        if calls is None:
            return []
        if not isinstance(calls, list) or len(calls) > _MOST_CALLS:
            raise NotACompletion("tool_calls that are no list")
        return [self._call(number, one) for number, one in enumerate(calls)]

    def _call(self, number: int, call: object) -> ToolCallDelta:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(call, dict) or not isinstance(function, dict):
            raise NotACompletion("a tool call that is no function call")
        index = call.get("index", number)
        if not isinstance(index, int) or not 0 <= index < _MOST_CALLS:
            raise NotACompletion("a tool call with an impossible index")
        parts = [call.get("id"), function.get("name"), function.get("arguments")]
        identity, name, arguments = (_unicode(one) if isinstance(one, str) else "" for one in parts)
        self._output_bytes += len(name.encode()) + len(arguments.encode())
        return ToolCallDelta(index, identity, name, arguments)


def error_code(body: object) -> str:
    """The provider's own word for an error; empty where there is none that may be repeated to people."""
    error = body.get("error") if isinstance(body, dict) else None
    for place in (error, body):
        if isinstance(place, dict):
            for name in ("code", "type"):
                value = place.get(name)
                if isinstance(value, str) and _CODE.fullmatch(value):
                    return value
    return ""


def _object(data: str) -> dict[str, Any]:
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        raise NotACompletion("something that is no JSON") from None
    if not isinstance(body, dict):
        raise NotACompletion("JSON that is no object")
    return body


def _unicode(text: str) -> str:
    """The text, where it is Unicode. JSON can spell half of a surrogate pair, which is none and goes on no wire."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise NotACompletion("text that is no Unicode") from None
    return text


def _choice(body: dict[str, Any]) -> dict[str, Any] | None:
    choices = body.get("choices")
    if choices is None or choices == []:
        return None
    if not isinstance(choices, list) or not isinstance(choices[0], dict):
        raise NotACompletion("choices that are no list of objects")
    return choices[0]


def _count(value: object) -> int | None:
    """A number of tokens; None for what cannot be one."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST_TOKENS else None
