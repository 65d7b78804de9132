"""A14: a call that failed, or was lost with its program, has exactly one result before the next model request."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from forerun.client import Conversation, Form
from tests.integration.cases.conftest import Play, Run, Stage, Tools, policy, tool

RULES = policy(
    tool("look", "READ", reads=["a/{id}"]),
    tool("read", "READ", reads=["b/{id}"]),
    tool("write", "WRITE", writes=["c/{id}"]),
)
MESSAGE = {
    "role": "assistant",
    "tool_calls": [
        {"id": f"call-{name}", "type": "function", "function": {"name": name, "arguments": '{"id": 1}'}}
        for name in ("look", "read", "write")
    ],
}


def slow_tools() -> Tools:
    """The first call takes a second, the others much longer."""
    tools = Tools(seconds=1.0)

    async def slowly(run: Run) -> Any:
        await asyncio.sleep(30.0)
        return {"slow": run.tool}

    tools.answers |= {"read": slowly, "write": slowly}
    return tools


def answered(request: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """The calls' results in a model request: the id and what is said."""
    results = [(message["tool_call_id"], message["content"]) for message in request if message["role"] == "tool"]
    return [(name, json.loads(text).get("error", {}).get("reason", "real")) for name, text in results]


def test_the_program_is_lost_after_the_first_of_three_results(play: Play) -> None:
    async def scene(s: Stage) -> None:
        before = Conversation(Form.OPENAI)
        before.user("do it")
        before.add(MESSAGE)
        saved: list[str] = []

        async def first_program(session_id: asyncio.Future[str]) -> None:
            async with s.client.session("agent") as session:
                session_id.set_result(session.id)
                async for result in session.stream_tools(before.calls):
                    before.results([result])
                    saved.append(json.dumps(before.messages))

        session_id: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        program = asyncio.ensure_future(first_program(session_id))
        await asyncio.sleep(5.0)
        assert len(saved) == 1

        # Another program goes on with the session and with what was saved, and the user has something new to say.
        async with s.client.session("agent", session_id=await session_id, resume=True) as session:
            after = Conversation(Form.OPENAI, json.loads(saved[0]))
            after.user("and now?")
            await session.user_turn("and now?")
            request = after.request()
            assert answered(request) == [
                ("call-look", "real"), ("call-read", "INTERRUPTED"), ("call-write", "INTERRUPTED"),
            ]  # fmt: skip
            assert request[-1] == {"role": "user", "content": "and now?"}
            after.add(MESSAGE | {"tool_calls": [{"id": "x", "function": {"name": "look", "arguments": '{"id": 2}'}}]})
            after.results(await session.call_tools(after.calls))
            assert answered(after.request())[3:] == [("x", "real")], "the session takes further calls"
        program.cancel()
        await asyncio.gather(program, return_exceptions=True)

    play(scene, RULES, tools=slow_tools())


def test_the_worker_is_lost_after_the_first_of_three_results(play: Play) -> None:
    async def scene(s: Stage) -> None:
        conversation = Conversation(Form.OPENAI)
        conversation.add(MESSAGE)
        async with s.client.session("agent") as session:
            asked = asyncio.ensure_future(session.call_tools(conversation.calls))
            await asyncio.sleep(2.0)
            await s.platform.stop_service("sandbox", 0.2)
            results = await asked
            assert [result.status.value for result in results] == ["ok", "timeout", "outcome_unknown"]
            assert conversation.results(results) == 3 and conversation.results(results) == 0
            conversation.user("and now?")
            said = answered(conversation.request())
            assert [name for name, _ in said] == ["call-look", "call-read", "call-write"]
            assert said[0][1] == "real" and "real" not in (said[1][1], said[2][1])

    play(scene, RULES, tools=slow_tools())


def test_a_call_that_was_taken_back_has_its_result_too(play: Play) -> None:
    async def scene(s: Stage) -> None:
        conversation = Conversation(Form.OPENAI)
        conversation.add(MESSAGE)
        async with s.client.session("agent") as session:
            calls = conversation.calls
            asked = asyncio.ensure_future(session.call_tools(calls))
            await asyncio.sleep(2.0)
            for call in calls[1:]:
                await session.cancel(call)
            conversation.results(await asked)
            fork = conversation.fork()
            fork.user("on a fork")
            for one in (conversation, fork):
                assert [name for name, _ in answered(one.request())] == ["call-look", "call-read", "call-write"]

    play(scene, RULES, tools=slow_tools())
