"""How many calls may run, wait and be written down; what is beyond is refused at once, or waits in order."""

from __future__ import annotations

import asyncio

import pytest
from starlette.responses import Response

from forerun.cli.virtual import TENANT
from forerun.client import Call, Status
from forerun.core import limits
from forerun.runtime import subjects
from forerun.runtime.errors import ErrorReason, ResourceExhausted
from forerun.runtime.network import rpc_errors
from forerun.v1 import event_pb2, prediction_pb2, session_pb2
from tests.integration.bounds.conftest import RULES, batch_of, hello_of, stub_of
from tests.integration.cases.conftest import Play, Run, Stage, Tools, policy


def reads(count: int) -> list[Call]:
    return [Call("get", {"id": number}) for number in range(count)]


def test_a_tenants_calls_run_so_many_at_a_time_and_start_in_the_order_of_their_asking(play: Play) -> None:
    async def scene(s: Stage) -> None:
        async with s.client.session("a") as one, s.client.session("a") as two:
            first = asyncio.ensure_future(one.call_tools([Call("get", {"id": n}) for n in range(5)]))
            await asyncio.sleep(0.1)
            second = asyncio.ensure_future(two.call_tools([Call("get", {"id": n}) for n in range(5, 10)]))
            results = [*await first, *await second]
        assert [result.status for result in results] == [Status.OK] * 10
        assert [run.arguments["id"] for run in s.tools.runs] == list(range(10))
        assert s.tools.peak["get"] == 3

    play(scene, RULES, settings={"orchestrator": {"max_calls_per_tenant": 3}})


def test_a_call_that_gives_up_while_it_waits_for_a_place_never_runs(play: Play) -> None:
    async def scene(s: Stage) -> None:
        async with s.client.session("a") as one, s.client.session("a") as two:
            first = asyncio.ensure_future(one.call_tool("get", {"id": 1}))
            await asyncio.sleep(0.1)
            late = await two.call_tools([Call("get", {"id": 2})], timeout_seconds=0.5)
            assert late[0].status is Status.TIMEOUT
            assert (await first).ok
            assert (await two.call_tool("get", {"id": 3})).ok
        assert [run.arguments["id"] for run in s.tools.runs] == [1, 3]

    play(scene, RULES, settings={"orchestrator": {"max_calls_per_tenant": 1}})


def test_a_message_beyond_the_queue_is_refused_at_once_and_may_be_asked_again(play: Play) -> None:
    async def scene(s: Stage) -> None:
        async with s.client.session("a") as session:
            began = s.now()
            refused = await session.call_tools(reads(10))
            assert s.now() - began < 0.1 and s.tools.runs == []
            assert {result.status for result in refused} == {Status.UNAVAILABLE}
            failure = refused[0].failure
            assert failure is not None and failure.reason == "QUEUE_FULL"
            assert failure.metadata["limit"] == "CALL_QUEUE"
            assert failure.metadata["setting"] == "FORERUN_ORCHESTRATOR_MAX_WAITING_CALLS"
            assert failure.retry_after_seconds is not None
            assert all(result.ok for result in await session.call_tools(reads(4)))
        with pytest.raises(ResourceExhausted), rpc_errors():
            batch = batch_of(1, *[("get", b'{"id":1}')] * 5)
            request = session_pb2.CallToolsRequest(hello=hello_of(s.ids.uuid7()), batch=batch)
            await stub_of(s).CallTools(request, timeout=5.0)

    play(scene, RULES, settings={"orchestrator": {"max_waiting_calls": 4}})


def test_a_journal_has_an_end_and_open_calls_are_still_written_down(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "JOURNAL_EVENTS_PER_SESSION", 4)

    async def scene(s: Stage) -> None:
        async with s.client.session("a") as session:
            assert all(result.ok for result in await session.call_tools(reads(4)))
            refused = await session.call_tools(reads(1))
            failure = refused[0].failure
            assert refused[0].status is Status.REJECTED and failure is not None
            assert (failure.reason, failure.metadata["limit"]) == ("BUDGET_EXHAUSTED", "JOURNAL_EVENTS_PER_SESSION")
        kinds = [event.WhichOneof("event") for event in await s.journal(session)]
        assert kinds == ["opened", "calls_asked", *["call_finished"] * 4, "closed"]

    play(scene, RULES)


def test_one_call_more_than_a_message_may_have_is_one_error_that_names_the_bound(play: Play) -> None:
    async def scene(s: Stage) -> None:
        batch = batch_of(1, *[("get", b"{}")] * (limits.CALLS_PER_MESSAGE + 1))
        request = session_pb2.CallToolsRequest(hello=hello_of(s.ids.uuid7()), batch=batch)
        with pytest.raises(Exception, match="CALLS_PER_MESSAGE") as caught, rpc_errors():
            await stub_of(s).CallTools(request, timeout=5.0)
        assert getattr(caught.value, "reason", None) is ErrorReason.ARGUMENT_INVALID

    play(scene, RULES)


def test_a_broker_that_is_away_pushes_the_client_back_and_nothing_is_lost(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SESSION_INBOX_EVENTS", 5)

    async def scene(s: Stage) -> None:
        bus = s.platform._buses["orchestrator"]
        async with s.client.session("a") as session:
            await session.user_turn("before")
            await asyncio.sleep(1.0)
            bus.cut()
            for number in range(40):
                await session.user_turn(f"turn {number}")
            await asyncio.sleep(5.0)
            bus.heal()
            assert (await session.call_tool("get", {"id": 1})).ok
        texts = [event.user_turn.text for event in await s.journal(session) if event.HasField("user_turn")]
        assert texts == ["before", *(f"turn {number}" for number in range(40))]

    play(scene, RULES)


@pytest.mark.parametrize("seconds", [0.0, -1.0, limits.DEADLINE_MAX_SECONDS + 1])
def test_a_deadline_beyond_the_bound_is_refused(play: Play, seconds: float) -> None:
    async def scene(s: Stage) -> None:
        batch = batch_of(1, ("get", b'{"id":1}'))
        batch.timeout_seconds = seconds
        request = session_pb2.CallToolsRequest(hello=hello_of(s.ids.uuid7()), batch=batch)
        with pytest.raises(Exception, match="DEADLINE_MAX_SECONDS"), rpc_errors():
            await stub_of(s).CallTools(request, timeout=5.0)

    play(scene, RULES)


@pytest.mark.parametrize(
    ("arguments", "reason", "says"),
    [
        (b"[" * 65 + b"]" * 65, "ARGUMENTS_NOT_JSON", "JSON_DEPTH"),
        (b'{"a":' * 70 + b"1" + b"}" * 70, "ARGUMENTS_NOT_JSON", "JSON_DEPTH"),
        (b'{"id":NaN}', "ARGUMENTS_NOT_JSON", ""),
        (b'{"id":1e400000}', "ARGUMENTS_NOT_JSON", "NUMBER_EXPONENT"),
        (b'{"id":' + b"9" * 30_000 + b"}", "ARGUMENTS_NOT_JSON", "NUMBER_DIGITS"),
        (b'{"id":"\xff\xfe"}', "ARGUMENTS_NOT_JSON", ""),
        (b'{"id":"\\ud800"}', "ARGUMENTS_NOT_JSON", ""),
        (b'{"id":1,"id":2}', "ARGUMENTS_NOT_JSON", ""),
    ],
)
def test_arguments_that_nobody_can_hold_are_refused_and_nothing_runs(
    play: Play, arguments: bytes, reason: str, says: str
) -> None:
    async def scene(s: Stage) -> None:
        request = session_pb2.CallToolsRequest(hello=hello_of(s.ids.uuid7()), batch=batch_of(1, ("get", arguments)))
        response = await stub_of(s).CallTools(request, timeout=5.0)
        failure = response.results[0].failure
        assert (failure.reason, s.tools.runs) == (reason, [])
        assert says in failure.message

    play(scene, RULES)


def test_names_are_bounded(play: Play) -> None:
    long = "n" * (limits.NAME_CHARS + 1)

    async def scene(s: Stage) -> None:
        event = session_pb2.ClientEvent(user_turn=event_pb2.UserTurn(text="x"))
        for hello in (
            session_pb2.Hello(session=s.ids.uuid7(), agent=long),
            session_pb2.Hello(session=s.ids.uuid7(), agent="a", tools=[long]),
            session_pb2.Hello(session=s.ids.uuid7(), agent="a", label=long),
            session_pb2.Hello(session=s.ids.uuid7(), agent="a", client_tools=[session_pb2.ClientTool(name=long)]),
        ):
            request = session_pb2.RecordEventRequest(hello=hello, id=s.ids.uuid7(), event=event)
            with pytest.raises(Exception, match="NAME_CHARS"), rpc_errors():
                await stub_of(s).RecordEvent(request, timeout=5.0)
        request = session_pb2.RecordEventRequest(
            hello=session_pb2.Hello(session=s.ids.uuid7(), agent="n" * limits.NAME_CHARS), id=s.ids.uuid7(), event=event
        )
        assert (await stub_of(s).RecordEvent(request, timeout=5.0)).number

    play(scene, RULES)


def test_a_tool_of_the_client_has_the_time_that_its_contract_gives(play: Play) -> None:
    """Its client is told at the welcome, so that it does not give up on its own function."""
    rules = policy()
    rules["policies"][0]["tools"] = [{"tool": name, "effect": "EFFECT_READ", "timeoutSeconds": 200} for name in "ab"]

    async def scene(s: Stage) -> None:
        session = s.client.session("a")

        @session.tool
        async def a() -> str:
            await asyncio.sleep(150.0)
            return "done"

        @session.tool
        async def b() -> str:
            await asyncio.sleep(250.0)
            return "late"

        async with session:
            assert (await session.call_tool("a")).text == "done"
            late = (await session.call_tools([Call("b")]))[0]
            assert late.status is Status.TIMEOUT and s.now() < 360.0

    play(scene, rules)


# ---------------------------------------------------------------- results and predictions


def large(size: int) -> Tools:
    tools = Tools()

    async def big(_: Run) -> Response:
        return Response(b"x" * size, media_type="application/octet-stream")

    tools.answers["big"] = tools.answers["write_big"] = big
    return tools


def test_a_result_above_the_bound_is_one_error_that_says_how_to_cap_it(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "RESULT_BYTES", 2 * limits.MIB)

    async def scene(s: Stage) -> None:
        async with s.client.session("a") as session:
            read, write = await session.call_tools([Call("big", {"bytes": 1}), Call("write_big", {"bytes": 2})])
            # The write has had its effect: only its result is lost.
            assert (read.status, write.status) == (Status.REJECTED, Status.OUTCOME_UNKNOWN)
            for result in (read, write):
                assert result.failure is not None and result.failure.reason == "RESULT_TOO_LARGE"
                assert result.failure.metadata["limit"] == "RESULT_BYTES"
                assert "output_cap_bytes" in result.failure.message
        assert len(s.tools.runs) == 2

    play(scene, RULES, tools=large(3 * limits.MIB))


def test_a_worker_refuses_what_its_setting_does_not_allow(play: Play) -> None:
    async def scene(s: Stage) -> None:
        async with s.client.session("a") as session:
            result = (await session.call_tools([Call("big", {"bytes": 1})]))[0]
            assert result.status is Status.REJECTED and result.failure is not None
            assert result.failure.reason == "LIMIT_OUTPUT"
            assert "max_observation_bytes" in result.failure.message

    play(scene, RULES, tools=large(20_000_000), settings={"sandbox": {"max_observation_bytes": 1_000_000}})


def test_candidates_beyond_the_bound_are_ignored_and_explanations_are_cut(play: Play) -> None:
    async def scene(s: Stage) -> None:
        async with s.client.session("a") as session:
            await session.model_started()
            await asyncio.sleep(0.1)
            batch = prediction_pb2.Candidates(tenant=TENANT, session=session.id, based_on=2)
            for number in range(limits.CANDIDATES_PER_PREDICTION + 10):
                one = batch.candidates.add(
                    probability=1.0, evidence=1e6, rank=number, expected_seconds=2.0, explanation="e" * 1_000
                )
                one.action.tool, one.action.arguments = "get", b'{"id":%d}' % number
            await s.platform.bus.notify(subjects.candidates("first"), batch.SerializeToString())
            await asyncio.sleep(10.0)
        totals = session.totals
        assert totals is not None and totals.launched
        assert totals.launched + sum(totals.refused.values()) == limits.CANDIDATES_PER_PREDICTION
        lengths = {len(line.explanation) for line in await s.ledger(session) if line.explanation}
        assert lengths == {limits.CANDIDATE_EXPLANATION_CHARS}

    play(scene, RULES, settings={"orchestrator": {"replica": "first"}})


def test_without_a_limit_of_its_own_a_tool_is_stopped_after_the_default(play: Play) -> None:
    async def scene(s: Stage) -> None:
        async with s.client.session("a") as session:
            began = s.now()
            result = (await session.call_tools([Call("get", {"id": 1})]))[0]
            assert result.status is Status.TIMEOUT and result.failure is not None
            assert result.failure.reason == "TOOL_TIMEOUT"
            assert round(s.now() - began) == limits.DEADLINE_DEFAULT_SECONDS
        assert s.tools.runs[0].cancelled

    play(scene, RULES, tools=Tools(seconds=limits.DEADLINE_DEFAULT_SECONDS + 10.0))
