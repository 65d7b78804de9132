"""Each call of a conversation has exactly one result before the next request: real, failed or interrupted."""

from __future__ import annotations

import json
from typing import Any

import pytest

from forerun.client import Call, Conversation, Failure, Form, InvalidRequest, Result, Status

OPENAI: dict[str, Any] = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": f"c{number}", "type": "function", "function": {"name": "get", "arguments": f'{{"id": {number}}}'}}
        for number in (1, 2, 3)
    ],
}
ANTHROPIC: dict[str, Any] = {
    "role": "assistant",
    "content": [
        {"type": "text", "text": "let me see"},
        *({"type": "tool_use", "id": f"c{number}", "name": "get", "input": {"id": number}} for number in (1, 2, 3)),
    ],
}
MESSAGE = {Form.OPENAI: OPENAI, Form.ANTHROPIC: ANTHROPIC}


def result(call: Call, status: Status = Status.OK, content: bytes = b"", **more: Any) -> Result:
    return Result(call=call, turn=1, index=0, status=status, content=content or call.provider_call_id.encode(), **more)


def answers(messages: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Results in a request, in order: the call's id, and what is said of it."""
    found = []
    for message in messages:
        if message["role"] == "tool":
            found.append((message["tool_call_id"], message["content"]))
        elif message["role"] == "user" and isinstance(message["content"], list):
            found += [(b["tool_use_id"], b["content"]) for b in message["content"] if b["type"] == "tool_result"]
    return found


def words(messages: list[dict[str, Any]]) -> list[tuple[str, str]]:
    said = [
        (name, json.loads(text)["error"]["reason"] if text.startswith("{") else text)
        for name, text in answers(messages)
    ]
    return said


@pytest.mark.parametrize("form", Form)
def test_three_calls_of_which_one_was_answered_when_the_program_was_lost(form: Form) -> None:
    before = Conversation(form)
    before.user("look")
    before.add(MESSAGE[form])
    first, *_ = before.calls
    assert [(call.name, call.provider_call_id) for call in before.calls] == [
        ("get", "c1"),
        ("get", "c2"),
        ("get", "c3"),
    ]
    assert before.results([result(first)]) == 1
    saved = json.loads(json.dumps(before.messages))

    after = Conversation(form, saved)
    after.user("and now?")
    request = after.request()
    assert words(request) == [("c1", "c1"), ("c2", "INTERRUPTED"), ("c3", "INTERRUPTED")]
    assert json.dumps(request[-1]["content"]).count("and now?") == 1 and request[-1]["role"] == "user"
    # What comes late is dropped: the model was told something else.
    late = Call("get", {}, "c2")
    assert after.results([result(late)]) == 0
    assert after.request() == request
    assert [message["role"] for message in request][:2] == ["user", "assistant"]


@pytest.mark.parametrize("form", Form)
def test_results_stand_in_call_order_right_after_the_message_whatever_comes_first(form: Form) -> None:
    conversation = Conversation(form)
    conversation.add(MESSAGE[form])
    one, two, three = conversation.calls
    conversation.user("meanwhile")
    conversation.results([result(three)])
    conversation.results([result(one), result(two), result(two, content=b"twice")])
    request = conversation.request()
    assert answers(request) == [("c1", "c1"), ("c2", "c2"), ("c3", "c3")]
    if form is Form.ANTHROPIC:
        assert [block["type"] for block in request[1]["content"]] == ["tool_result"] * 3 + ["text"]
        assert len(request) == 2, "roles alternate"
    else:
        assert [message["role"] for message in request] == ["assistant", "tool", "tool", "tool", "user"]
    assert conversation.calls == []


@pytest.mark.parametrize("form", Form)
def test_failures_are_results(form: Form) -> None:
    conversation = Conversation(form)
    conversation.add(MESSAGE[form])
    one, two, three = conversation.calls
    conversation.results(
        [
            result(one, Status.TIMEOUT, failure=Failure("TOOL_TIMEOUT", "too slow")),
            result(two, Status.CANCELLED),
            result(three, content=b"\xff", tool_error=True, media_type="image/png"),
        ]
    )
    said = [json.loads(text) for _, text in answers(conversation.request())]
    assert said[0]["error"] == {"status": "timeout", "reason": "TOOL_TIMEOUT", "message": "too slow"}
    assert said[1]["error"]["reason"] == "CANCELLED"
    assert said[2] == {"binary": {"bytes": 1, "media_type": "image/png"}}
    if form is Form.ANTHROPIC:
        assert [block["is_error"] for block in conversation.messages[1]["content"]] == [True] * 3


@pytest.mark.parametrize("form", Form)
def test_a_fork_gets_its_own_results(form: Form) -> None:
    conversation = Conversation(form)
    conversation.add(MESSAGE[form])
    fork = conversation.fork()
    conversation.results([result(call) for call in conversation.calls])
    assert words(fork.request()) == [(f"c{number}", "INTERRUPTED") for number in (1, 2, 3)]
    assert words(conversation.request()) == [(f"c{number}", f"c{number}") for number in (1, 2, 3)]


@pytest.mark.parametrize("form", Form)
def test_an_older_message_is_completed_too_and_whole_ones_stay(form: Form) -> None:
    conversation = Conversation(form)
    conversation.add(MESSAGE[form])
    conversation.results([result(conversation.calls[1])])
    conversation.add({"role": "assistant", "content": "never mind"})
    conversation.user("go on")
    request = conversation.request()
    assert words(request) == [("c1", "INTERRUPTED"), ("c2", "c2"), ("c3", "INTERRUPTED")]
    assert Conversation(form, request).request() == request


def test_calls_without_an_id_of_their_own_are_refused() -> None:
    for ids in (["a", "a"], ["a", ""]):
        calls = [{"id": name, "function": {"name": "get", "arguments": ""}} for name in ids]
        with pytest.raises(InvalidRequest):
            Conversation().add({"role": "assistant", "tool_calls": calls})
    blank = Conversation()
    blank.add({"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "get", "arguments": ""}}]})
    assert [call.arguments for call in blank.calls] == ["{}"]


@pytest.mark.parametrize("form", Form)
@pytest.mark.parametrize("complete", [False, True])
def test_saved_messages_with_two_results_of_a_call_or_one_of_no_call_are_put_right(form: Form, complete: bool) -> None:
    """A program that wrote them itself may have done so twice; a provider would refuse every later request."""
    named = [("c1", "first"), ("c9", "of no call"), ("c1", "second"), ("c2", "two")]
    named += [("c3", "three")] if complete else []
    after: list[dict[str, Any]]
    if form is Form.OPENAI:
        after = [{"role": "tool", "tool_call_id": name, "content": text} for name, text in named]
    else:
        blocks = [{"type": "tool_result", "tool_use_id": name, "content": text} for name, text in named]
        after = [{"role": "user", "content": [*blocks, {"type": "text", "text": "go on"}]}]
    conversation = Conversation(form, [{"role": "user", "content": "x"}, MESSAGE[form], *after])
    request = conversation.request()
    assert words(request) == [("c1", "first"), ("c2", "two"), ("c3", "three" if complete else "INTERRUPTED")]
    assert conversation.request() == request
    if form is Form.ANTHROPIC:
        assert request[-1]["content"][-1] == {"type": "text", "text": "go on"}
