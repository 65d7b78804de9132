"""A model on NVIDIA Triton behind the model port: the coupled pair of `gpu-serving`, over KServe v2 gRPC."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, Final

from forerun.core.race_replicas import Fault
from forerun.core.tokens import Usage
from forerun.runtime.errors import (
    DeadlineExceeded,
    ErrorReason,
    ForerunError,
    InvalidArgument,
    ResourceExhausted,
    Unavailable,
)
from forerun.runtime.kserve import Inference, KServeClient, StreamBounds, Tensor
from forerun.runtime.models.errors import ModelError, broken, no_connection, not_understood, too_slow
from forerun.runtime.models.hermes import HermesCalls
from forerun.runtime.models.port import Deadlines, Finished, FinishReason, Message, ModelEvent, ModelRequest, TextDelta

LOOP: Final = "speculative"
CHAT: Final = "chat"

_PROMPT_END: Final = 8
"""Tokens of the prompt before an expected text."""

_FINISH: Final[Mapping[str, FinishReason]] = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}


class ServedModel:
    """One served model. Without a tenant in a request (`ModelRequest.served`) no history is kept and none drafts.

    Args:
        name: What callers call it.
        client: Of its server.
        options: Further options of the loop (docs/serving.md), for every request; a request's own come first.
    """

    def __init__(self, name: str, client: KServeClient, *, options: Mapping[str, Any] | None = None) -> None:
        self.name = name
        self._client = client
        self._options = {"tenant": "", "agent": "", **(options or {})}

    async def close(self) -> None:
        """Closes the connection to its server."""
        await self._client.close()

    async def generate(self, request: ModelRequest, deadlines: Deadlines) -> AsyncGenerator[ModelEvent, None]:
        """Sends a request; deltas as they come, `Finished` at the end.

        Raises:
            ModelError: It failed, is refused, or took too long.
        """
        if request.continues:
            raise _refused(self.name, "it cannot go on with a message of the assistant")
        began = False
        try:
            prompt, expected = await self._prompt(request, deadlines)
            began = True
            bounds = StreamBounds(
                first_seconds=deadlines.first_token,
                idle_seconds=deadlines.between_tokens,
                total_seconds=deadlines.total,
            )
            calls = HermesCalls() if request.tools else None
            asked = Inference(
                model=LOOP,
                inputs=[prompt, Tensor("OPTIONS", "BYTES", [json.dumps(self._asked(request) | expected).encode()])],
            )
            ended = False
            async with aclosing(self._client.stream(asked, bounds)) as responses:
                async for response in responses:
                    for event in self._events(_event(self.name, response.tensors), calls):
                        ended = isinstance(event, Finished)
                        yield event
        except ForerunError as error:
            if not began and error.reason is ErrorReason.PEER_UNAVAILABLE:
                raise no_connection(self.name) from error  # no token was read, so it has cost nothing
            raise _model_error(self.name, error, deadlines) from error
        if not ended:
            raise broken(self.name, "ended its answer without saying why")

    async def _prompt(self, request: ModelRequest, deadlines: Deadlines) -> tuple[Tensor, dict[str, Any]]:
        """The prompt's tokens, and the option for what is expected to follow it."""
        conversation = {
            "messages": [_message(one) for one in request.messages],
            "tools": json.loads(request.tools) if request.tools and request.describe_tools else [],
            "expected": request.expected,
        }
        content = json.dumps(conversation, ensure_ascii=False).encode()  # escaped it may be six times as long
        asked = Inference(model=CHAT, inputs=[Tensor("REQUEST", "BYTES", [content])])
        found = await self._client.infer(asked, seconds=deadlines.first_token)
        prompt = found.tensors["TOKENS"].values
        # Drafts are found by what stands before them, so what is expected begins where the prompt ends.
        expected = [[*prompt[-_PROMPT_END:], *one] for one in _expected(found.tensors)] if request.expected else []
        return Tensor("PROMPT", "INT32", prompt), {"expected": expected} if expected else {}

    def _asked(self, request: ModelRequest) -> dict[str, Any]:
        options: dict[str, Any] = {**self._options, **request.served, "stop": list(request.stop)}
        # Without a temperature a provider samples the model as it is.
        options["temperature"] = 1.0 if request.temperature is None else request.temperature
        for name, value in (
            ("top_p", request.top_p),
            ("max_tokens", request.max_output_tokens),
            ("seed", request.seed),
        ):
            if value is not None:
                options[name] = value
        if request.max_output_tokens is not None and "max_tokens" in self._options:
            options["max_tokens"] = min(request.max_output_tokens, self._options["max_tokens"])
        if request.must_call:
            options |= {"calls": json.loads(request.tools or "[]"), "call": request.only_tool}
        return options

    def _events(self, event: Mapping[str, Any], calls: HermesCalls | None) -> list[ModelEvent]:
        text, finish = str(event["text"]), event.get("finish")
        found: list[ModelEvent] = []
        if calls is None:
            found += [TextDelta(text)] if text else []
        else:
            found += calls.feed(text)
            found += calls.end() if finish else []
        if finish:
            usage = event["usage"]
            called = calls is not None and calls.count > 0
            reason = FinishReason.TOOL_CALLS if called else _FINISH[finish]
            found.append(Finished(reason, Usage(int(usage["prompt"]), int(usage["generated"])), self.name))
        return found


def _expected(tensors: Mapping[str, Tensor]) -> list[list[int]]:
    (content,) = tensors["EXPECTED"].values
    found: list[list[int]] = json.loads(content if isinstance(content, bytes) else b"[]")
    return found


def _message(message: Message) -> dict[str, Any]:
    found: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        found["tool_calls"] = [
            {"type": "function", "id": one.id, "function": {"name": one.name, "arguments": _arguments(one.arguments)}}
            for one in message.tool_calls
        ]
    if message.tool_call_id:
        found["tool_call_id"] = message.tool_call_id
    return found


def _arguments(text: str) -> Any:
    """Templates write arguments as JSON themselves; what is none stays the text that it is."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _event(name: str, tensors: Mapping[str, Tensor]) -> Mapping[str, Any]:
    try:
        (content,) = tensors["EVENT"].values
        event = json.loads(content if isinstance(content, bytes) else b"")
    except (KeyError, ValueError) as error:
        raise not_understood(name, "an event that is none of the loop's") from error
    found: Mapping[str, Any] = event
    return found


def _refused(name: str, why: str) -> ModelError:
    error = InvalidArgument(ErrorReason.MODEL_REFUSED, f"the model {name} refused: {why}", metadata={"provider": name})
    return ModelError(error, Fault.REFUSED)


def _model_error(name: str, error: ForerunError, deadlines: Deadlines) -> ModelError:
    if isinstance(error, DeadlineExceeded):
        which = {"idle_seconds": "between_tokens", "total_seconds": "total"}.get(
            error.metadata.get("bound", ""), "first_token"
        )
        return too_slow(name, which, getattr(deadlines, which))
    if isinstance(error, InvalidArgument):
        return _refused(name, error.message.rpartition("refused: ")[2])
    if isinstance(error, ResourceExhausted):
        full = ResourceExhausted(
            ErrorReason.QUEUE_FULL, f"the queue of the model {name} is full", metadata={"provider": name}
        )
        return ModelError(full, Fault.BUSY)
    if isinstance(error, Unavailable) and error.reason is ErrorReason.PEER_UNAVAILABLE:
        away = Unavailable(
            ErrorReason.MODEL_UNAVAILABLE, f"the model {name} does not answer", metadata={"provider": name}
        )
        return ModelError(away, Fault.BROKEN)
    return broken(name, "failed")
