"""The platform learns, is silent while it knows little, and follows a change (K6)."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from forerun.client import CallRejected
from tests.integration.cases.conftest import Play, Stage, policy, tool

BEFORE, AFTER = 80, 45
TOOLS = [tool(name, "READ", reads=[f"{name}/{{customer}}"], speculate=True) for name in ("a", "b", "c", "d")]
# Worth it from a probability of 0.3 on; nothing is launched at a site that was seen less than twenty times.
RULES = policy(*TOOLS, minimumEvidence=20, lambdaPerSecond=2.5, budget={"initialCredits": 20})


class Runs:
    """Sessions that call `a`, then end (30 %) or call `b` (90 % of the rest; after the change `c`) or `d`."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.ahead: list[list[str]] = []
        self.refused: list[dict[str, int]] = []

    async def turn(self, s: Stage, number: int) -> None:
        async with s.client.session("agent") as session:
            await session.user_turn("please look at C-17")
            await session.model_started()
            await asyncio.sleep(3.0)
            await session.call_tool("a", {"customer": "C-17"})
            await session.model_started()
            await asyncio.sleep(3.0)
            self.ahead.append([run.tool for run in s.tools.runs if run.session == session.id and run.tool != "a"])
            draw = self._random.random()
            usual = "b" if number < BEFORE else "c"
            if draw >= 0.3:
                await session.call_tool(usual if draw < 0.93 else "d", {"customer": "C-17"})
            await session.assistant_message("done")
        assert session.totals is not None
        self.refused.append(dict(session.totals.refused))


def test_cold_then_right_then_quick_to_follow_a_change(play: Play) -> None:
    runs = Runs(seed=11)

    async def scene(s: Stage) -> None:
        for number in range(BEFORE + AFTER):
            await runs.turn(s, number)

    play(scene, RULES, learning=True)
    assert runs.ahead[:20] == [[]] * 20, "it knows too little"
    assert any(refused.get("cold") for refused in runs.refused[:20]), "and says so"
    settled = runs.ahead[40:BEFORE]
    assert sum("b" in tools for tools in settled) > 0.9 * len(settled)
    assert not any("d" in tools for tools in settled), "what is rare is not worth it"
    assert not any("b" in tools for tools in runs.ahead[BEFORE + 30 :]), "the old habit is given up"


def test_names_that_no_tool_has_never_become_candidates(play: Play) -> None:
    async def scene(s: Stage) -> None:
        refused: list[Any] = []
        for _ in range(12):
            async with s.client.session("agent") as session:
                for name in ("a", "made_up", "a"):
                    await session.model_started()
                    await asyncio.sleep(3.0)
                    if name == "made_up":
                        with pytest.raises(CallRejected):
                            await session.call_tool(name, {"customer": "C-17"})
                    else:
                        await session.call_tool(name, {"customer": "C-17"})
            assert session.totals is not None
            refused.append(session.totals.refused)
        assert sum(one.get("unknown_tool", 0) for one in refused) == 0
        assert {run.tool for run in s.tools.runs} == {"a"}

    play(scene, RULES, learning=True)


def test_a_policy_that_nobody_has_trusted_yet_decides_and_executes_nothing(play: Play) -> None:
    rules = policy(*TOOLS)
    del rules["policies"][0]["mode"]

    async def scene(s: Stage) -> None:
        async with s.client.session("agent") as session:
            await s.ahead(session, ("a", b'{"customer":"C-17"}'))
            await asyncio.sleep(3.0)
            assert s.tools.runs == []
        assert session.totals is not None and session.totals.refused == {"shadow": 1}

    play(scene, rules)
