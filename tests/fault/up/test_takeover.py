"""Processes are killed at chosen moments: sessions go on, nothing runs twice, and what is not known is said."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import grpc
import grpc.aio
import pytest
import pytest_asyncio

from forerun.client import Call, Result, Served, Status
from forerun.runtime.errors import from_rpc_error
from forerun.v1 import common_pb2, event_pb2, session_pb2, session_pb2_grpc
from tests.fault import soak
from tests.integration.up.registers import Entry, wrong
from tests.integration.up.staging import (
    BROKER,
    ORCHESTRATORS,
    Break,
    Stage,
    foreseen,
    opened_with_a_prefetch,
    staged,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

# Promised are 2 s and, after an end of everything, 15 s on a machine that has time; this one may have none.
TAKE_OVER_SECONDS: Final = 10.0
RESTART_SECONDS: Final = 45.0


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    async with staged(tmp_path_factory.mktemp("takeover")) as running:
        yield running


async def interrupted(stage: Stage, name: str, phase: str, *victims: str) -> tuple[list[Result], float]:
    """A write and a read run side by side while victims are killed; how they ended, and seconds from the kill on.

    The kill comes when the write has reached its tool: before it takes effect, or after that and before its answer.
    """
    async with stage.client.session("agent") as session:
        killed = victims or (await stage.holder(),)

        def due(entry: Entry, at: str) -> bool:
            return (entry.tool, entry.key, at) == ("put", name, phase)

        moment = stage.registers.moment = Break(due, lambda: stage.kill(*killed))
        async with asyncio.timeout(90):
            results = await session.call_tools(
                [Call("put", {"key": name, "value": "1"}), Call("check", {"key": f"beside {name}"})]
            )
        ended_at = asyncio.get_running_loop().time()
        assert moment.at is not None
        # The session goes on, with writes too.
        async with asyncio.timeout(90):
            results += await session.call_tools(
                [Call("put", {"key": f"{name} then", "value": "2"}), Call("check", {"key": name})]
            )
    await stage.until_back()
    return results, ended_at - moment.at


@pytest.mark.parametrize("phase", ["before", "after"])
async def test_another_orchestrator_goes_on(stage: Stage, phase: str) -> None:
    name = f"orchestrator {phase}"
    (put, read, later, back), seconds = await interrupted(stage, name, phase)
    print(f"take-over, killed {phase} the effect of a write: {seconds:.2f} s")
    assert [wrong(one, stage.registers) for one in (put, read, later, back)] == [None] * 4
    assert (put.status, read.status, later.status) == (Status.OUTCOME_UNKNOWN, Status.OK, Status.OK)
    assert put.failure is not None and put.failure.reason == "OUTCOME_UNKNOWN"
    # It ran, once, and whoever reads sees it: the platform did not say that it failed.
    assert stage.registers.executions("put", name, "1") == 1 and back.json()["version"] == 1
    assert seconds < TAKE_OVER_SECONDS


async def test_an_orchestrator_is_killed_when_it_has_said_that_it_begins(stage: Stage) -> None:
    """Between the intent and the execution: nobody can know whether it ran, and so it is not run by the next owner."""
    async with stage.client.session("agent") as session:
        holder = await stage.holder()
        async with stage.hearing("intent", lambda: stage.kill(holder)):
            results = await session.call_tools(
                [Call("put", {"key": "intent", "value": "1"}), Call("check", {"key": "beside"})]
            )
        assert [wrong(one, stage.registers) for one in results] == [None] * 2
        assert results[0].status is Status.OUTCOME_UNKNOWN
    await stage.until_back()


async def test_an_owner_that_was_paused_does_nothing_more(stage: Stage) -> None:
    """It wakes up with a call that waits for its turn, while another replica has the session."""
    old, new = ORCHESTRATORS
    name, paused = "paused", asyncio.Event()
    pid = stage.platform.pid_of(old)
    assert pid is not None

    def pause(entry: Entry, phase: str) -> None:
        if (entry.tool, entry.key, phase) == ("check", name, "before") and not paused.is_set():
            os.kill(pid, signal.SIGSTOP)
            paused.set()

    stage.registers.moment = pause
    # A client that does not come back: what it asked for is nobody's wish any more.
    metadata = (("authorization", f"Bearer {stage.platform.token}"),)
    async with grpc.aio.insecure_channel(stage.platform.address_of(old)) as channel, stage.at(new) as client:
        stream: Any = session_pb2_grpc.SessionServiceStub(channel).Connect(metadata=metadata)
        first = client.session("agent")
        await stream.write(session_pb2.ConnectRequest(hello=session_pb2.Hello(session=first.id, agent="agent")))
        await stream.read()
        calls = [("check", {"key": name}), ("put", {"key": name, "value": "1"})]  # of one register: one after the other
        asked = [
            event_pb2.AskedCall(
                index=index, action=common_pb2.Action(tool=tool, arguments=json.dumps(arguments).encode())
            )
            for index, (tool, arguments) in enumerate(calls)
        ]
        await stream.write(session_pb2.ConnectRequest(batch=session_pb2.CallBatch(turn=1, calls=asked)))
        try:
            async with asyncio.timeout(20):
                await paused.wait()
                async with client.session("agent", session_id=first.id, resume=True) as second:
                    assert (await second.call_tool("put", {"key": name, "value": "2"})).json()["version"] == 1
                    os.kill(pid, signal.SIGCONT)
                    with pytest.raises(grpc.aio.AioRpcError) as ended:
                        while await stream.read() is not grpc.aio.EOF:
                            pass
        finally:
            os.kill(pid, signal.SIGCONT)
    assert from_rpc_error(ended.value).reason == "SESSION_TAKEN_OVER"
    assert stage.registers.executions("put", name, "1") == 0


async def test_nobody_goes_on_with_a_session_whose_shared_write_takes_effect_later(stage: Stage) -> None:
    """The owner is killed, its client is gone too, and the tool does not notice: nobody counts the end of the write."""
    key, (lost, other) = "orphan", ORCHESTRATORS
    put, memo = ("put", {"key": key, "value": "late"}), ("look", {"key": key})
    usual, stage.registers.delay_seconds = stage.registers.delay_seconds, 0.15  # what is faster is not worth a guess
    effect = stage.registers.held[key] = asyncio.Event()
    async with stage.at(other) as client:
        taught = await opened_with_a_prefetch(stage, client, key)
        await taught.close()
        async with client.session(key) as first, client.session(key) as second:
            await abandoned(stage, lost, *put)
            # Both see the register as it was: one gets it as an answer, the other one's look may have run ahead.
            assert (await first.call_tool(*memo)).json()["version"] == 0
            await foreseen(stage, second, key)
            effect.set()
            (late,) = [one for one in stage.registers.log if (one.tool, one.key) == ("put", key)]
            async with asyncio.timeout(20):
                while not late.done:  # noqa: ASYNC110  (the tool's own end, of which nobody is told)
                    await asyncio.sleep(0.005)
            for session in (first, second):
                look = await session.call_tool(*memo)
                assert (look.served, look.json()["version"]) == (Served.DIRECT, 1)
    stage.registers.delay_seconds = usual
    await stage.until_back()


async def abandoned(stage: Stage, process: str, tool: str, arguments: Mapping[str, str]) -> None:
    """A client asks for one call of a new session and vanishes together with the orchestrator, while the tool works."""
    begun = asyncio.Event()

    def kill(entry: Entry, phase: str) -> None:
        if (entry.tool, entry.key, phase) == (tool, arguments["key"], "before"):
            stage.kill(process)
            begun.set()

    stage.registers.moment = kill
    metadata = (("authorization", f"Bearer {stage.platform.token}"),)
    action = common_pb2.Action(tool=tool, arguments=json.dumps(dict(arguments)).encode())
    asked = session_pb2.CallBatch(turn=1, calls=[event_pb2.AskedCall(index=0, action=action)])
    async with grpc.aio.insecure_channel(stage.platform.address_of(process)) as channel:
        stream: Any = session_pb2_grpc.SessionServiceStub(channel).Connect(metadata=metadata)
        hello = session_pb2.Hello(session=stage.client.session("gone").id, agent="gone")
        await stream.write(session_pb2.ConnectRequest(hello=hello))
        await stream.read()
        await stream.write(session_pb2.ConnectRequest(batch=asked))
        async with asyncio.timeout(20):
            await begun.wait()


@pytest.mark.parametrize(
    ("victims", "phase"),
    [
        (("sandbox",), "before"),
        (("sandbox",), "after"),
        ((BROKER,), "before"),
        ((BROKER,), "after"),
        (("verifier", "predictor", "snapshots"), "before"),
    ],
)
async def test_other_processes(stage: Stage, victims: tuple[str, ...], phase: str) -> None:
    name = f"{', '.join(victims)} {phase}"
    results, seconds = await interrupted(stage, name, phase, *victims)
    print(f"{', '.join(victims)} killed {phase} the effect of a write: answered after {seconds:.2f} s")
    assert [wrong(one, stage.registers) for one in results] == [None] * 4
    put = results[0]
    # Only who executes takes the knowledge of its end along.
    assert put.status is (Status.OUTCOME_UNKNOWN if "sandbox" in victims else Status.OK)
    assert stage.registers.executions("put", name, "1") == 1
    assert seconds < RESTART_SECONDS


async def test_everything_at_once(stage: Stage) -> None:
    name = "everything"
    results, seconds = await interrupted(stage, name, "after", *stage.everything)
    print(f"everything killed after the effect of a write: answered after {seconds:.2f} s")
    assert [wrong(one, stage.registers) for one in results] == [None] * 4
    assert results[0].status is Status.OUTCOME_UNKNOWN and stage.registers.executions("put", name, "1") == 1
    assert seconds < RESTART_SECONDS


async def test_random_kills(stage: Stage) -> None:
    """One seed of those that `python -m tests.fault.soak` goes through; it kills the broker together with an owner."""
    came = await soak.run(stage, 2)
    print(f"all answered after {[round(one, 1) for one in came.seconds]} s: {dict(came.statuses)}")
    assert any(BROKER in kill.victims and len(kill.victims) > 1 for kill in came.kills)
    assert came.faults == ()
