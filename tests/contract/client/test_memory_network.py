"""The same client over the memory network in virtual time, as replay and simulation use it."""

from __future__ import annotations

import asyncio
from typing import Any

from forerun.client import AsyncClient, Call
from forerun.runtime.clock import LoopClock
from forerun.runtime.ids import SeededIds
from forerun.runtime.memory_network import MemoryFabric, MemoryNetwork
from forerun.runtime.metrics import Metrics
from forerun.runtime.network_inbound import Inbound
from forerun.runtime.tracing import Tracing
from forerun.runtime.virtual import run_virtual
from forerun.v1 import session_pb2_grpc
from tests.integration.client.scripted import TOKEN, ScriptedServicer

TARGET = "orchestrator:7400"


def test_a_session_outlives_a_long_outage() -> None:
    tries = 0

    async def main(clock: LoopClock, ids: SeededIds) -> list[float]:
        inbound = Inbound(authenticator=None, metrics=Metrics("orchestrator"), tracing=Tracing("test"))
        fabric = MemoryFabric()
        servicer = ScriptedServicer()
        server = await MemoryNetwork(fabric, inbound, source="orchestrator").serve(
            "orchestrator",
            TARGET,
            [lambda server: session_pb2_grpc.add_SessionServiceServicer_to_server(servicer, server)],
            services=["forerun.v1.SessionService"],
        )

        class Counting(SeededIds):
            def fraction(self) -> float:
                nonlocal tries
                tries += 1
                return super().fraction()

        network = MemoryNetwork(fabric, inbound, source="agent")
        client = AsyncClient(token=TOKEN, channel=network.channel(TARGET), ids=Counting(1, clock))
        times: list[float] = []
        async with client, client.session("agent") as session:
            fabric.refuse(TARGET)
            fabric.drop(TARGET)
            await asyncio.sleep(3_600)
            # With nothing to say it stopped trying after a minute.
            assert 30 < tries < 80
            asked = asyncio.ensure_future(session.call_tool("echo", {"n": 1}))
            await asyncio.sleep(20)
            assert not asked.done()
            fabric.heal(TARGET)
            healed_at = clock.monotonic()
            assert (await asked).json() == {"n": 1}
            times.append(clock.monotonic() - healed_at)
        await network.close()
        await server.stop(0)
        return times

    (seconds,) = run_virtual(main)
    assert seconds <= 2.0


def run(seed: int) -> tuple[str, list[tuple[float, Any]], int]:
    seen: list[tuple[float, Any]] = []

    async def main(clock: LoopClock, ids: SeededIds) -> tuple[str, list[tuple[float, Any]], int]:
        inbound = Inbound(authenticator=None, metrics=Metrics("orchestrator"), tracing=Tracing("test"))
        fabric = MemoryFabric()
        servicer = ScriptedServicer()
        server = await MemoryNetwork(fabric, inbound, source="orchestrator").serve(
            "orchestrator",
            TARGET,
            [lambda server: session_pb2_grpc.add_SessionServiceServicer_to_server(servicer, server)],
            services=["forerun.v1.SessionService"],
        )
        network = MemoryNetwork(fabric, inbound, source="agent")
        fabric.delay(TARGET, 0.5, source="agent")
        client = AsyncClient(token=TOKEN, channel=network.channel(TARGET), ids=ids)
        async with client, client.session("agent") as session:
            results = await session.call_tools([Call("echo", {"n": 1}), Call("big")])
            seen.append((clock.monotonic(), [len(result.content) for result in results]))
            fabric.drop(TARGET)
            # The time is read after the answer.
            value = (await session.call_tool("echo", {"n": 2})).json()
            seen.append((clock.monotonic(), value))
        await network.close()
        await server.stop(0)
        return session.id, seen, len(servicer.streams)

    return run_virtual(main, seed=seed)


def test_a_session_in_virtual_time() -> None:
    _, seen, streams = run(seed=1)
    assert streams == 2
    assert [value for _, value in seen] == [[7, 5 * 1024 * 1024], {"n": 2}]
    # Hello and Welcome, then the calls and their answers: four ways of half a second.
    assert seen[0][0] == 2.0
    assert 4.0 <= seen[1][0] < 5.0


def test_the_same_seed_repeats_a_run() -> None:
    assert run(seed=7) == run(seed=7)
    assert run(seed=7)[0] != run(seed=8)[0]
