"""Processes are killed at chosen moments: sessions go on, nothing runs twice, and what is not known is said."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

import pytest
import pytest_asyncio

from forerun.client import Call, Result, Status
from tests.fault.up.registers import Entry, wrong
from tests.fault.up.staging import BROKER, Break, Stage, staged

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


@pytest.mark.parametrize("phase", ["before", "after"])
@pytest.mark.parametrize("victim", ["sandbox", "verifier", "predictor", "snapshots", BROKER])
async def test_other_processes(stage: Stage, victim: str, phase: str) -> None:
    name = f"{victim} {phase}"
    results, seconds = await interrupted(stage, name, phase, victim)
    print(f"{victim} killed {phase} the effect of a write: answered after {seconds:.2f} s")
    assert [wrong(one, stage.registers) for one in results] == [None] * 4
    put = results[0]
    # Only who executes takes the knowledge of its end along.
    assert put.status is (Status.OUTCOME_UNKNOWN if victim == "sandbox" else Status.OK)
    assert stage.registers.executions("put", name, "1") == 1
    assert seconds < RESTART_SECONDS


@pytest.mark.parametrize("phase", ["before", "after"])
async def test_everything_at_once(stage: Stage, phase: str) -> None:
    name = f"everything {phase}"
    results, seconds = await interrupted(stage, name, phase, *stage.everything)
    print(f"everything killed {phase} the effect of a write: answered after {seconds:.2f} s")
    assert [wrong(one, stage.registers) for one in results] == [None] * 4
    assert results[0].status is Status.OUTCOME_UNKNOWN and stage.registers.executions("put", name, "1") == 1
    assert seconds < RESTART_SECONDS
