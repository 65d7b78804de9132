"""Plans whose session ends under them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from forerun.client import ForerunClientError, PlanTask
from forerun.orchestrator.planning import PlanRun
from forerun.v1 import session_pb2
from tests.integration.orchestrator.conftest import Stage


def gets(s: Stage) -> list[int]:
    """What was read at the tool, in order."""
    return [arguments["id"] for name, arguments, _ in s.world.log if name == "get"]


def test_a_plan_ends_with_its_session_and_starts_nothing_after_it(stage: Any) -> None:
    async def play(s: Stage) -> None:
        async with s.client.session("a") as session, session.plan() as plan:
            await plan.add(PlanTask("one", "get", {"id": 1}), PlanTask("two", "get", {"id": 2}, after=["one"]))
            await asyncio.sleep(0.5)
            await session.close()
            with pytest.raises(ForerunClientError) as caught:
                await plan.finish()
        assert caught.value.reason == "SESSION_ENDED"
        assert gets(s) == [1], "what follows a call that the end took back does not run"

    stage(play)


def test_a_plan_whose_reading_meets_a_fault_ends_with_an_error(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody reads on, so what is still to come of it would be waited for until somebody gave up."""

    def take(self: PlanRun, request: session_pb2.RunPlanRequest) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(PlanRun, "take", take)

    async def play(s: Stage) -> None:
        began = asyncio.get_running_loop().time()
        async with s.client.session("a") as session:
            with pytest.raises(ForerunClientError) as caught:
                await session.run_plan([PlanTask("one", "get", {"id": 1})])
        assert caught.value.reason == "INTERNAL"
        assert asyncio.get_running_loop().time() - began < 5.0

    stage(play)
