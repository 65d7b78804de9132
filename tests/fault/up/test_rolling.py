"""Every process is restarted, one after another, while agents work: nothing fails, and nothing differs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from forerun.client import Status
from tests.integration.up.staging import staged, working

SESSIONS = 8


@pytest.mark.timeout(240)
async def test_a_rolling_restart_under_load_fails_nothing(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    async with staged(tmp_path) as stage, working(stage, SESSIONS, "rolling") as agents:
        before = {name: stage.platform.pid_of(name) for name in stage.everything}
        for agent in agents:
            await agent.until_steps(2)
        begun_at = loop.time()
        await stage.platform.roll()
        seconds = loop.time() - begun_at
        after = {name: stage.platform.pid_of(name) for name in stage.everything}
    faults = [fault for agent in agents for fault in agent.judge(stage.registers)]
    results = [result for agent in agents for result in agent.results]
    failed = [f"{one.call} {one.status} {one.failure}" for one in results if one.status is not Status.OK]
    print(
        f"{len(before)} processes restarted one after another in {seconds:.0f} s; {len(results)} calls of {SESSIONS} "
        f"sessions: {len(failed)} failed, {len(faults)} wrong"
    )
    assert (faults, failed) == ([], [])
    assert all(after[name] not in (None, pid) for name, pid in before.items()), (before, after)
    assert stage.platform.restarts == 0  # none was an accident
