"""The way of a call through all five services: speculation, freshness, bad input, take-over, the switch."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import pytest

from forerun.client import (
    Call,
    CallRejected,
    CallTimeout,
    InvalidRequest,
    Mode,
    OutcomeUnknown,
    Served,
    Status,
)
from forerun.v1 import session_pb2, session_pb2_grpc
from tests.integration.orchestrator.conftest import Stage, value_of


async def chain(stage: Stage, start: int, steps: int, *, mode: Mode | None = None) -> list[Any]:
    """A session that follows `next` from observation to observation; its results."""
    results = []
    async with stage.client.session("chain", mode=mode) as session:
        await session.user_turn(f"begin at {start}")
        number = start
        for _ in range(steps):
            await session.model_started()
            await asyncio.sleep(3.0)
            result = await session.call_tool("get", {"id": number})
            results.append(result)
            number = result.json()["next"]
    return results


def test_the_loop_learns_and_serves_the_same(stage: Any) -> None:
    async def play(s: Stage) -> None:
        for run in range(8):
            await chain(s, 100 * run, 5)
        last = await chain(s, 900, 5)
        plain = await chain(s, 900, 5, mode=Mode.OFF)
        assert [r.content for r in last] == [r.content for r in plain]
        assert sum(r.served is Served.READY for r in last) >= 4
        assert all(r.served is Served.DIRECT for r in plain)

    stage(play)


def test_a_write_through_one_session_makes_the_prefetch_of_another_stale(stage: Any) -> None:
    async def play(s: Stage) -> None:
        async with s.client.session("a") as one, s.client.session("b") as two:
            first = await one.call_tool("stock", {"id": 7})
            again = await one.call_tool("stock", {"id": 7})
            await two.call_tool("sell", {"id": 7})
            after = await one.call_tool("stock", {"id": 7})
        assert (first.served, again.served, after.served) == (Served.DIRECT, Served.MEMO, Served.DIRECT)
        assert value_of(after.content) == 1

    stage(play)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (b'{"id": 1, "id": 2}', "ARGUMENTS_NOT_JSON"),
        (b'{"id": NaN}', "ARGUMENTS_NOT_JSON"),
        (b'{"id": 1}{"id": 2}', "ARGUMENTS_NOT_JSON"),
        (b"[1]", "ARGUMENTS_NOT_JSON"),
        (b'{"id": "\xff"}', "ARGUMENTS_NOT_JSON"),
        (b"", "ARGUMENTS_REFUSED"),
        (b'{"id": "seven"}', "ARGUMENTS_REFUSED"),
    ],
)
def test_bad_arguments_are_refused_with_a_reason_and_run_nothing(stage: Any, arguments: bytes, reason: str) -> None:
    async def play(s: Stage) -> None:
        async with s.client.session("a") as session:
            with pytest.raises(CallRejected) as caught:
                await session.call_tool("get", arguments)
            assert caught.value.reason == reason
            assert (await session.call_tool("get", {"id": 1})).ok, "the session goes on"
        assert s.world.executions("get") == 1

    stage(play)


def test_large_integers_arrive_exactly(stage: Any) -> None:
    async def play(s: Stage) -> None:
        number = 2**80 + 1
        async with s.client.session("a") as session:
            result = await session.call_tool("get", {"id": number})
        assert result.json()["next"] == number + 1

    stage(play)


def test_an_unknown_tool_is_refused_by_name(stage: Any) -> None:
    async def play(s: Stage) -> None:
        async with s.client.session("a") as session:
            with pytest.raises(CallRejected) as caught:
                await session.call_tool("no_such_tool", {})
            assert caught.value.reason == "TOOL_NOT_FOUND"
            assert "no_such_tool" in str(caught.value)

    stage(play)


def test_twenty_megabytes_arrive_whole(stage: Any) -> None:
    async def play(s: Stage) -> None:
        size = 20 * 1024 * 1024
        async with s.client.session("a") as session:
            result = await session.call_tool("big", {"id": size}, timeout_seconds=50.0)
        assert len(result.content) == size
        assert hashlib.sha256(result.content).digest() == hashlib.sha256(b"x" * size).digest()

    stage(play)


def test_a_result_above_the_limit_is_a_typed_error_that_names_it(stage: Any) -> None:
    async def play(s: Stage) -> None:
        async with s.client.session("a") as session:
            with pytest.raises(CallRejected) as caught:
                await session.call_tool("big", {"id": 70 * 1024 * 1024})
            assert "output_cap_bytes" in str(caught.value) or "max_observation_bytes" in str(caught.value)

    stage(play)


def test_a_tool_that_never_answers_is_stopped_at_the_deadline(stage: Any) -> None:
    async def play(s: Stage) -> None:
        loop = asyncio.get_running_loop()
        async with s.client.session("a") as session:
            started = loop.time()
            with pytest.raises(CallTimeout):
                await session.call_tool("hang", {"id": 1}, timeout_seconds=5.0)
            assert loop.time() - started < 6.0
        await asyncio.sleep(5.0)
        assert s.world.cancelled == 1, "the tool was told to stop"

    stage(play)


def test_a_cancelled_call_ends_and_its_tool_is_stopped(stage: Any) -> None:
    async def play(s: Stage) -> None:
        async with s.client.session("a") as session:
            call = Call("hang", {"id": 1})
            asking = asyncio.ensure_future(session.call_tools([call, Call("get", {"id": 1})]))
            await asyncio.sleep(2.0)
            await session.cancel(call)
            results = await asking
            assert [r.status for r in results] == [Status.CANCELLED, Status.OK]
        await asyncio.sleep(1.0)
        assert s.world.cancelled == 1

    stage(play)


def test_a_batch_keeps_call_order_and_runs_reads_together(stage: Any) -> None:
    async def play(s: Stage) -> None:
        loop = asyncio.get_running_loop()
        async with s.client.session("a") as session:
            started = loop.time()
            results = await session.call_tools(
                [Call("get", {"id": 1}), Call("get", {"id": 2}), Call("set", {"id": 1}), Call("get", {"id": 1})]
            )
            assert 2.9 < loop.time() - started < 3.5
        assert [r.json()["value"] for r in results] == [0, 0, 1, 1]

    stage(play)


def test_duplicate_indices_are_refused_and_the_stream_goes_on(stage: Any) -> None:
    async def play(s: Stage) -> None:
        stub = session_pb2_grpc.SessionServiceStub(s.platform.channel())
        hello = session_pb2.Hello(session=s.ids.uuid7(), agent="a")
        batch = session_pb2.CallBatch(turn=1)
        for _ in range(2):
            batch.calls.add(index=0).action.tool = "get"
        with pytest.raises(Exception, match="same index"):
            await stub.CallTools(session_pb2.CallToolsRequest(hello=hello, batch=batch), timeout=5.0)
        assert s.world.log == []

    stage(play)


def test_unary_calls_answer_and_are_not_repeated_under_the_same_key(stage: Any) -> None:
    async def play(s: Stage) -> None:
        stub = session_pb2_grpc.SessionServiceStub(s.platform.channel())
        request = session_pb2.CallToolsRequest(hello=session_pb2.Hello(session=s.ids.uuid7(), agent="a"))
        request.batch.turn = 1
        call = request.batch.calls.add(index=0)
        call.action.tool, call.action.arguments = "send", b'{"id": 1}'
        first = await stub.CallTools(request, timeout=20.0)
        second = await stub.CallTools(request, timeout=20.0)
        assert first.results[0].observation.content == second.results[0].observation.content
        assert s.world.executions("send") == 1
        call.action.arguments = b'{"id": 2}'
        third = await stub.CallTools(request, timeout=20.0)
        assert third.results[0].failure.reason == "CALL_KEY_CONFLICT"
        assert s.world.executions("send") == 1

    stage(play)


def test_the_session_of_another_principal_is_closed_to_me(stage: Any) -> None:
    async def play(s: Stage) -> None:
        stub = session_pb2_grpc.SessionServiceStub(s.platform.channel())
        with pytest.raises(Exception, match="must be a UUID"):
            await stub.CallTools(
                session_pb2.CallToolsRequest(hello=session_pb2.Hello(session="mine", agent="a")), timeout=5.0
            )

    stage(play)


def test_the_switch_turns_everything_off_within_a_second(stage: Any) -> None:
    async def play(s: Stage) -> None:
        for run in range(8):
            await chain(s, 100 * run, 5)
        stub = session_pb2_grpc.SessionServiceStub(s.platform.channel())
        await stub.SetSpeculation(session_pb2.SetSpeculationRequest(on=False, reason="test"), timeout=5.0)
        await asyncio.sleep(1.0)
        off = await chain(s, 900, 5)
        assert all(r.served is Served.DIRECT for r in off)
        await stub.SetSpeculation(session_pb2.SetSpeculationRequest(on=True), timeout=5.0)
        await asyncio.sleep(1.0)
        on = await chain(s, 1900, 5)
        assert any(r.served is Served.READY for r in on)

    stage(play)


def test_an_orchestrator_that_restarts_goes_on_with_the_session(stage: Any) -> None:
    async def play(s: Stage) -> None:
        async with s.client.session("a") as session:
            before = await session.call_tool("set", {"id": 1})
            await s.platform.stop_service("orchestrator", 5.0)
            await s.platform.start_service("orchestrator")
            after = await session.call_tool("get", {"id": 1})
        assert (value_of(before.content), value_of(after.content)) == (1, 1)
        assert s.world.executions("set") == 1

    stage(play)


def test_a_write_under_way_when_its_owner_is_lost_is_unknown_and_not_repeated(stage: Any) -> None:
    async def play(s: Stage) -> None:
        s.world.seconds = 8.0
        async with s.client.session("a") as session:
            sending = asyncio.ensure_future(session.call_tool("send", {"id": 1}))
            reading = asyncio.ensure_future(asyncio.sleep(0))
            await asyncio.sleep(2.0)
            await s.platform.stop_service("orchestrator", 0.5)
            await s.platform.start_service("orchestrator")
            with pytest.raises(OutcomeUnknown):
                await sending
            await reading
            assert (await session.call_tool("get", {"id": 1})).ok
        assert s.world.executions("send") == 1

    stage(play)


def test_a_worker_that_restarts_is_waited_for(stage: Any) -> None:
    async def play(s: Stage) -> None:
        async with s.client.session("a") as session:
            await session.call_tool("get", {"id": 1})
            await s.platform.stop_service("sandbox", 1.0)
            asking = asyncio.ensure_future(session.call_tool("get", {"id": 2}))
            await asyncio.sleep(3.0)
            await s.platform.start_service("sandbox")
            assert (await asking).ok

    stage(play)


def test_without_predictor_or_verifier_calls_are_answered(stage: Any) -> None:
    async def play(s: Stage) -> None:
        for run in range(8):
            await chain(s, 100 * run, 5)
        await s.platform.stop_service("verifier", 1.0)
        results = await chain(s, 900, 5)
        assert all(r.ok and r.served is Served.DIRECT for r in results)
        await s.platform.stop_service("predictor", 1.0)
        assert all(r.ok for r in await chain(s, 1900, 3))

    stage(play)


def test_a_broker_that_is_away_stops_writes_that_may_not_be_repeated_and_nothing_else(stage: Any) -> None:
    async def play(s: Stage) -> None:
        async with s.client.session("a") as session:
            await session.call_tool("get", {"id": 1})
            s.platform.broker.go_down()
            assert (await session.call_tool("get", {"id": 2})).ok
            refused = (await session.call_tools([Call("send", {"id": 1})], timeout_seconds=30.0))[0]
            assert refused.status is Status.UNAVAILABLE
            assert s.world.executions("send") == 0
            s.platform.broker.come_up()
            await asyncio.sleep(5.0)
            assert (await session.call_tool("send", {"id": 1})).ok
        assert s.world.executions("send") == 1

    stage(play)


def test_policies_change_while_sessions_are_open(stage: Any) -> None:
    async def play(s: Stage) -> None:
        async with s.client.session("a") as session:
            await session.call_tool("get", {"id": 1})
            assert (await session.call_tool("get", {"id": 1})).served is Served.MEMO
            s.policy_file.write_text(s.policy_file.read_text().replace("mode: MODE_EXACT", "mode: MODE_OFF"))
            await asyncio.sleep(3.0)
            assert (await session.call_tool("get", {"id": 1})).served is Served.DIRECT

    stage(play)


def test_numbers_in_other_spellings_are_the_same_call_only_where_the_schema_says_so(stage: Any) -> None:
    async def play(s: Stage) -> None:
        async with s.client.session("a") as session:
            await session.call_tool("get", b'{"id": 1}')
            assert (await session.call_tool("get", b'{ "id" : 1 }')).served is Served.MEMO

    stage(play)


def test_arguments_above_the_limit_are_refused(stage: Any) -> None:
    async def play(s: Stage) -> None:
        async with s.client.session("a") as session:
            with pytest.raises((CallRejected, InvalidRequest)) as caught:
                await session.call_tool("get", b'{"id": 1, "x": "' + b"y" * (1 << 20) + b'"}')
            assert str(1 << 20) in str(caught.value)

    stage(play)
