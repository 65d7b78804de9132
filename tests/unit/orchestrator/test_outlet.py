"""What a client gets over its stream, also one that reads slowly."""

from __future__ import annotations

import asyncio

import pytest

from forerun.core import limits
from forerun.core.outcomes import CallStatus, Served
from forerun.core.session import CallAnswer, ExecutionResult
from forerun.orchestrator.outlet import Outlet
from forerun.orchestrator.stream import Stream
from forerun.runtime.errors import ErrorReason
from forerun.v1 import session_pb2


def answer(index: int, content: bytes = b"x") -> CallAnswer:
    result = ExecutionResult(status=CallStatus.OK, content=content, digest="sha256:0")
    return CallAnswer(
        call=(1, index), tool="get", status=CallStatus.OK, result=result, failure=None, served=Served.DIRECT
    )


async def rest(stream: Stream[session_pb2.ConnectResponse]) -> list[session_pb2.ConnectResponse]:
    found = []
    while (message := await stream.take()) is not None:
        found.append(message)
    return found


def outlet() -> Outlet:
    return Outlet("S", lambda: None)


async def test_a_slow_reader_gets_what_waits_and_then_an_error_that_names_the_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "STREAM_MESSAGES", 3)
    out = outlet()
    stream = out.attach()
    for index in range(5):
        out.answer(answer(index), conflict=False)
    assert not out.attached
    assert [message.result.call.index for message in await rest(stream)] == [0, 1, 2]
    assert stream.error is not None and stream.error.reason is ErrorReason.QUEUE_FULL
    assert stream.error.metadata["limit"] == "STREAM_MESSAGES"
    assert stream.error.retry_after_seconds is not None  # so that clients connect again

    # The rest is answered over the next connection, when the client asks again.
    again = out.attach()
    out.answer(answer(3), conflict=False)
    assert await again.take() is not None


async def test_bytes_that_wait_are_bounded_and_an_empty_stream_takes_any_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "STREAM_BYTES", 10)
    monkeypatch.setattr(limits, "CHUNK_BYTES", 8)
    out = outlet()
    stream = out.attach()
    out.answer(answer(0, b"twenty bytes of text"), conflict=False)
    out.answer(answer(1), conflict=False)
    messages = await rest(stream)
    assert b"".join(message.chunk.data for message in messages) == b"twenty bytes of text"
    assert [message.WhichOneof("message") for message in messages] == ["chunk", "chunk", "chunk", "result"]
    assert stream.error is not None and stream.error.metadata["limit"] == "STREAM_BYTES"


async def test_what_nobody_reads_is_not_kept_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STREAM_LINGER_SECONDS", 0.0)
    out = outlet()
    stream = out.attach()
    out.answer(answer(0), conflict=False)
    out.disconnect()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert await rest(stream) == []


async def test_a_new_stream_ends_the_old_one_without_an_error() -> None:
    out = outlet()
    old = out.attach()
    taking = asyncio.ensure_future(old.take())
    await asyncio.sleep(0)
    new = out.attach()
    assert await taking is None and old.error is None
    assert out.send(session_pb2.ConnectResponse()) and await new.take() is not None


async def test_who_waits_no_more_is_forgotten_and_the_others_are_answered() -> None:
    out = outlet()
    calls = [(1, 0), (1, 1)]
    first = [out.wait_for(call) for call in calls]
    second = [out.wait_for(call) for call in calls]
    out.forget(calls, first)
    for index in range(2):
        out.answer(answer(index), conflict=False)
    assert [future.done() for future in (*first, *second)] == [False, False, True, True]
    out.forget(calls, second)
    out.close()
    assert not any(future.cancelled() for future in first)


async def test_what_only_a_plan_waits_for_is_not_sent_over_the_stream_as_well() -> None:
    out = outlet()
    stream = out.attach()
    alone, beside = out.wait_for((1, 0), alone=True), out.wait_for((1, 1))
    for index in range(2):
        out.answer(answer(index), conflict=False)
    assert (alone.result().call.index, beside.result().call.index) == (0, 1)
    # Once answered the key is like any other: a client that asks again over its stream is answered there.
    out.answer(answer(0), conflict=False)
    # And so is one whose plan has gone away before its answer.
    gone = out.wait_for((1, 2), alone=True)
    out.forget([(1, 2)], [gone])
    out.answer(answer(2), conflict=False)
    out.disconnect()
    assert [message.result.call.index for message in await rest(stream)] == [1, 0, 2]


async def test_what_comes_after_the_answers_waits_for_them_and_not_for_long() -> None:
    out = outlet()
    told: list[str] = []
    out.when_sent(lambda: told.append("nobody is connected"))
    stream = out.attach()
    out.when_sent(lambda: told.append("nothing waits"))
    assert told == ["nobody is connected", "nothing waits"]

    out.answer(answer(0), conflict=False)
    out.when_sent(lambda: told.append("sent"))
    await stream.take()
    assert told[2:] == []  # it is on its way
    reader = asyncio.ensure_future(stream.take())
    await asyncio.sleep(0.0)
    assert told[2:] == ["sent"]

    # A client that does not read holds up nothing, and nothing is told twice.
    out.answer(answer(1), conflict=False)
    await reader
    overdue = asyncio.Event()
    out.when_sent(overdue.set)
    async with asyncio.timeout(10.0):
        await overdue.wait()
    out.answer(answer(2), conflict=False)
    out.when_sent(lambda: told.append("over"))
    out.disconnect()
    assert told[3:] == ["over"]
