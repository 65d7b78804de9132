"""What may not be repeated does not wait for the answers beside it, and these go to who asked."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from forerun.client import Call, Served
from forerun.orchestrator.engine import Orchestrator
from forerun.orchestrator.outlet import Outlet
from forerun.orchestrator.runner import Runner
from forerun.runtime.bus import EVENT_TYPE_HEADER
from forerun.runtime.bus_memory import MemoryBus
from forerun.v1 import common_pb2, event_pb2, session_pb2, session_pb2_grpc
from tests.integration.orchestrator.conftest import Stage, value_of


@pytest.fixture
def order(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Appends of a session's journal as they leave, and answers as they are made."""
    seen: list[str] = []
    append, answer = MemoryBus.append, Outlet.answer

    async def appended(self: MemoryBus, subject: str, data: bytes, **options: Any) -> int:
        seen.append(f"append {(options.get('headers') or {}).get(EVENT_TYPE_HEADER)}")
        return await append(self, subject, data, **options)

    def answered(self: Outlet, made: Any, *, conflict: bool) -> None:
        seen.append(f"answer {made.call[1]}")
        answer(self, made, conflict=conflict)

    monkeypatch.setattr(MemoryBus, "append", appended)
    monkeypatch.setattr(Outlet, "answer", answered)
    return seen


def test_the_journal_is_told_of_a_write_before_the_answers_beside_it_are_made(stage: Any, order: list[str]) -> None:
    async def play(s: Stage) -> None:
        async with s.client.session("a") as session:
            await session.call_tool("get", {"id": 1})
            await asyncio.sleep(1.0)
            order.clear()
            results = await session.call_tools([Call("get", {"id": 1}), Call("set", {"id": 2}), Call("get", {"id": 1})])
        assert [one.served for one in results] == [Served.MEMO, Served.DIRECT, Served.SHARED]
        assert order.index("append calls_asked") < order.index("answer 0") < order.index("answer 2")
        assert order.index("append intent") < order.index("append call_finished")
        assert order.index("append intent") < order.index("answer 1")

    stage(play)


def test_a_message_without_a_write_is_answered_before_the_journal_is_told(stage: Any, order: list[str]) -> None:
    async def play(s: Stage) -> None:
        async with s.client.session("a") as session:
            await session.call_tool("get", {"id": 1})
            await asyncio.sleep(1.0)
            order.clear()
            await session.call_tool("get", {"id": 1})
        assert order.index("answer 0") < order.index("append calls_asked")

    stage(play)


def test_a_refusal_beside_a_write_goes_to_who_asked(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else begins to wait under the same key in the same turn of the loop: for the call that runs."""
    others: list[asyncio.Future[session_pb2.CallResult]] = []
    ask = Orchestrator.ask

    def asked(self: Orchestrator, runner: Runner, batch: session_pb2.CallBatch) -> None:
        ask(self, runner, batch)
        if len(batch.calls) > 1:
            others.append(runner.outlet.wait_for((1, 0)))

    monkeypatch.setattr(Orchestrator, "ask", asked)

    async def play(s: Stage) -> None:
        stub = session_pb2_grpc.SessionServiceStub(s.platform.channel())
        hello = session_pb2.Hello(session=s.ids.uuid7(), agent="a")

        async def send(*calls: tuple[int, str, int]) -> session_pb2.CallToolsResponse:
            batch = session_pb2.CallBatch(turn=1)
            for index, tool, number in calls:
                action = common_pb2.Action(tool=tool, arguments=b'{"id": %d}' % number)
                batch.calls.append(event_pb2.AskedCall(index=index, action=action))
            request = session_pb2.CallToolsRequest(hello=hello, batch=batch)
            response: session_pb2.CallToolsResponse = await stub.CallTools(request, timeout=30.0)
            return response

        begun = asyncio.ensure_future(send((0, "set", 1)))
        await asyncio.sleep(0.5)
        wrong = await send((0, "set", 9), (1, "send", 5))
        assert [one.status for one in wrong.results] == [common_pb2.CALL_STATUS_REJECTED, common_pb2.CALL_STATUS_OK]
        for answer in ((await begun).results[0], await others[0]):
            assert value_of(answer.observation.content) == 1

    stage(play)
