"""An agent's messages in the form of its provider, in which each call has exactly one result.

A provider refuses every later request of a conversation in which a call has no result, or two. So a call that was
cancelled, failed, or was lost with the program that had asked for it must get one, also on a fork and after a crash.
"""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

from forerun.client._errors import InvalidRequest
from forerun.client._results import Call, Result

_INTERRUPTED: Final = json.dumps(
    {"error": {"reason": "INTERRUPTED", "message": "the call was interrupted; it may or may not have had its effect"}}
)


class Form(StrEnum):
    """How a provider writes messages."""

    OPENAI = "openai"
    """`tool_calls` of an assistant message, each answered by a message of the role `tool`."""
    ANTHROPIC = "anthropic"
    """`tool_use` blocks of an assistant message, answered by `tool_result` blocks of the next user message."""


class Conversation:
    """The messages of one agent. Plain data: save `messages` as JSON, and go on with them after a crash.

        conversation.add(message)  # the model's, with its calls
        conversation.results(await session.call_tools(conversation.calls))
        answer = await ask_the_model(conversation.request())

    Args:
        form: How the provider writes messages.
        messages: To go on with.

    Attributes:
        messages: So far, as they were given; `request` is what a provider takes.
    """

    def __init__(self, form: Form | str = Form.OPENAI, messages: Sequence[Mapping[str, Any]] = ()) -> None:
        self.form = Form(form)
        self.messages: list[dict[str, Any]] = [copy.deepcopy(dict(message)) for message in messages]

    def fork(self) -> Conversation:
        """Another conversation that begins with the same messages; neither sees what comes to the other one."""
        return Conversation(self.form, self.messages)

    def user(self, text: str) -> None:
        """The user says something."""
        last = self.messages[-1] if self.messages else {}
        if self.form is Form.ANTHROPIC and last.get("role") == "user" and isinstance(last.get("content"), list):
            last["content"].append({"type": "text", "text": text})  # results stand in front, in the same message
        else:
            self.messages.append({"role": "user", "content": text})

    def add(self, message: Mapping[str, Any]) -> None:
        """A message in the provider's own form, such as the model's.

        Raises:
            InvalidRequest: a call of it has no id, or the id of another one.
        """
        found = dict(message)
        ids = [call.provider_call_id for call in _calls(self.form, found)]
        if not all(ids) or len(set(ids)) != len(ids):
            raise InvalidRequest("ARGUMENT_INVALID", "each call of a message needs an id of its own")
        self.messages.append(copy.deepcopy(found))

    @property
    def calls(self) -> list[Call]:
        """The calls of the last message of the model that have no result yet, for `call_tools`."""
        at = self._last_model_message()
        return [] if at is None else self._open(at)

    def results(self, results: Sequence[Result]) -> int:
        """The results of calls of the last message of the model. The first one of each call counts.

        Returns:
            How many were taken. One that comes late, for a call that has its result already, is dropped.
        """
        at = self._last_model_message()
        waiting = {} if at is None else {call.provider_call_id: call for call in self._open(at)}
        found: dict[str, tuple[str, bool]] = {}
        for result in results:
            name = result.call.provider_call_id
            if name in waiting and name not in found:
                found[name] = _said(result)
        if at is not None and found:
            self._write(at, found)
        return len(found)

    def request(self) -> list[dict[str, Any]]:
        """The messages for the next request to the model: every call has one result.

        One that has none is `INTERRUPTED` from now on: what the model was told stays so. Of several the first counts.
        """
        for at in range(len(self.messages) - 1, -1, -1):
            missing = {call.provider_call_id: (_INTERRUPTED, True) for call in self._open(at)}
            if missing or self._repeated(at):
                self._write(at, missing)
        return copy.deepcopy(self.messages)

    def _last_model_message(self) -> int | None:
        places = range(len(self.messages) - 1, -1, -1)
        return next((at for at in places if self.messages[at].get("role") == "assistant"), None)

    def _open(self, at: int) -> list[Call]:
        """The calls of a message without a result."""
        calls = _calls(self.form, self.messages[at])
        if not calls:
            return []
        answered = self._answered(at)
        return [call for call in calls if call.provider_call_id not in answered]

    def _answered(self, at: int) -> dict[str, dict[str, Any]]:
        """The results behind a message by the names of their calls, the first one of each: messages, or blocks."""
        found: dict[str, dict[str, Any]] = {}
        for one in self._behind(at):
            found.setdefault(one.get("tool_call_id" if self.form is Form.OPENAI else "tool_use_id") or "", one)
        return found

    def _behind(self, at: int) -> list[dict[str, Any]]:
        """The messages, or the blocks of the next message, that are results."""
        following = self.messages[at + 1 :]
        if self.form is Form.OPENAI:
            return list(itertools.takewhile(lambda one: one.get("role") == "tool", following))
        content = following[0].get("content") if following and following[0].get("role") == "user" else None
        blocks = content if isinstance(content, list) else []
        return [one for one in blocks if isinstance(one, dict) and one.get("type") == "tool_result"]

    def _repeated(self, at: int) -> bool:
        """Behind a message with calls there are two results of one, or results of none."""
        calls = {call.provider_call_id for call in _calls(self.form, self.messages[at])}
        return bool(calls) and len(self._behind(at)) != len(calls & self._answered(at).keys())

    def _write(self, at: int, results: Mapping[str, tuple[str, bool]]) -> None:
        """Puts results where the provider wants them: right after the message, in the order of its calls."""
        order = [call.provider_call_id for call in _calls(self.form, self.messages[at])]
        if self.form is Form.OPENAI:
            end = at + 1 + len(self._behind(at))
            written = self._answered(at) | {
                name: {"role": "tool", "tool_call_id": name, "content": text} for name, (text, _) in results.items()
            }
            self.messages[at + 1 : end] = [written[name] for name in order if name in written]
            return
        blocks: dict[str, Any] = {
            name: {"type": "tool_result", "tool_use_id": name, "content": text} | ({"is_error": True} if bad else {})
            for name, (text, bad) in results.items()
        }
        answered = self._answered(at)
        following = self.messages[at + 1] if at + 1 < len(self.messages) else None
        if following is None or following.get("role") != "user":
            following = {"role": "user", "content": []}
            self.messages.insert(at + 1, following)
        content = following["content"]
        rest = [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
        blocks |= answered
        others = [block for block in rest if block.get("type") != "tool_result"]
        following["content"] = [blocks[name] for name in order if name in blocks] + others


def _calls(form: Form, message: Mapping[str, Any]) -> list[Call]:
    if message.get("role") != "assistant":
        return []
    if form is Form.OPENAI:
        functions = [(one.get("function") or {}, one.get("id") or "") for one in message.get("tool_calls") or ()]
        return [Call(function.get("name", ""), function.get("arguments") or "{}", name) for function, name in functions]
    content = message.get("content")
    blocks = content if isinstance(content, list) else []
    return [
        Call(block.get("name", ""), block.get("input") or {}, block.get("id") or "")
        for block in blocks
        if block.get("type") == "tool_use"
    ]


def _said(result: Result) -> tuple[str, bool]:
    """What the model is told of a result, and whether it is a failure."""
    if not result.ok:
        failure = result.failure
        reason = failure.reason if failure is not None else result.status.name
        message = failure.message if failure is not None else f"the call ended as {result.status.value}"
        about = {"status": result.status.value, "reason": reason, "message": message}
        return json.dumps({"error": about}), True
    try:
        return result.text, result.tool_error
    except UnicodeDecodeError:
        binary = {"bytes": len(result.content), "media_type": result.media_type}
        return json.dumps({"binary": binary}), result.tool_error
