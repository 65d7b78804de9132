"""Clients that read slowly, vanish, or live in another time."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from starlette.responses import Response

from forerun.client import AsyncClient, Call, Status
from forerun.core import limits
from forerun.runtime.errors import ErrorReason, from_rpc_error
from forerun.runtime.ids import SeededIds
from forerun.v1 import session_pb2
from tests.integration.bounds.conftest import RULES, Raw, stub_of
from tests.integration.cases.conftest import Play, Run, Stage, Tools

TWENTY_MEGABYTES = 20_000_000


def test_a_client_that_reads_slowly_is_sent_away_and_gets_everything_when_it_is_back(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "STREAM_MESSAGES", 8)
    calls = [("get", b'{"id":%d}' % number) for number in range(100)]

    async def scene(s: Stage) -> None:
        session = s.ids.uuid7()
        found: dict[int, bytes] = {}
        for attempt in range(20):
            raw = Raw(s, session, resume=attempt > 0)
            await raw.open()
            await raw.ask(1, *calls, leave_out=found)
            await asyncio.sleep(60.0)  # it does something else meanwhile
            try:
                while len(found) < len(calls):
                    result = await raw.result()
                    found[result.call.index] = result.observation.content
            except grpc.aio.AioRpcError as error:
                refused = from_rpc_error(error)
                assert refused.reason is ErrorReason.QUEUE_FULL and refused.retry_after_seconds is not None
                assert refused.metadata["limit"] == "STREAM_MESSAGES"
                continue
            raw.vanish()
            break
        assert len(found) == len(calls) and len(s.tools.runs) == len(calls), "each ran once and was answered"

    play(scene, RULES)


def test_a_client_that_vanishes_leaves_nothing_behind(play: Play) -> None:
    async def scene(s: Stage) -> None:
        raw = Raw(s, s.ids.uuid7())
        await raw.open()
        await raw.ask(1, ("get", b'{"id":1}'))
        await asyncio.sleep(0.5)
        raw.vanish()
        await asyncio.sleep(1.0)
        assert (await stub_of(s).GetTotals(session_pb2.GetTotalsRequest(), timeout=5.0)).totals.sessions == 1
        await asyncio.sleep(15.0)  # the bound for its return, and a sweep
        totals = (await stub_of(s).GetTotals(session_pb2.GetTotalsRequest(), timeout=5.0)).totals
        assert (totals.sessions, totals.calls) == (0, 1)

    play(scene, RULES, settings={"orchestrator": {"reconnect_seconds": 10.0}})


def test_a_silent_session_ends(play: Play) -> None:
    async def scene(s: Stage) -> None:
        raw = Raw(s, s.ids.uuid7())
        await raw.open()
        await asyncio.sleep(100.0)
        last: session_pb2.ConnectResponse = await raw.call.read()
        assert last.HasField("ended")

    play(scene, RULES, settings={"orchestrator": {"session_idle_seconds": 60.0}})


@pytest.mark.parametrize("years", [-50, 300])
def test_nothing_depends_on_the_clients_clock(play: Play, years: int) -> None:
    class Wrong:
        """A clock that is years away, and runs backwards."""

        def __init__(self) -> None:
            self.seconds = 1_700_000_000.0 + years * 365 * 86_400

        def now(self) -> float:
            self.seconds -= 3_600.0
            return self.seconds

        def monotonic(self) -> float:
            return asyncio.get_running_loop().time()

    async def scene(s: Stage) -> None:
        async with AsyncClient(channel=s.platform.channel(), ids=SeededIds(7, Wrong())) as client:
            session = client.session("a")
            async with session:
                for number in range(3):
                    await s.ahead(session, ("get", b'{"id":%d}' % number))
                    await asyncio.sleep(3.0)
                    result = await session.call_tool("get", {"id": number}, timeout_seconds=30.0)
                    assert (result.status, result.served.value) == (Status.OK, "ready")
        times = [event.at_seconds for event in await s.journal(session)]
        assert times == sorted(times) and all(1_700_000_000.0 <= time < 1_700_001_000.0 for time in times)

    play(scene, RULES)


def test_eight_results_of_twenty_megabytes_in_one_message(play: Play) -> None:
    tools = Tools(seconds=0.1)

    async def big(_: Run) -> Response:
        return Response(b"x" * TWENTY_MEGABYTES, media_type="application/octet-stream")

    tools.answers["big"] = big

    async def scene(s: Stage) -> None:
        async with s.client.session("a") as session:
            results = await session.call_tools([Call("big", {"bytes": number}) for number in range(8)])
            assert [len(result.content) for result in results] == [TWENTY_MEGABYTES] * 8
        assert len(s.tools.runs) == 8

    play(scene, RULES, tools=tools)
