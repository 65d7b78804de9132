"""Plans whose session ends under them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from forerun.client import ForerunClientError, PlanTask
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
