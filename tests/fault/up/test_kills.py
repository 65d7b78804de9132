"""Processes of a platform are killed while agents work: every call is answered or ends typed, and nothing is left."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest

from forerun.cli.up import SERVICES, Platform
from forerun.client import AsyncClient, AsyncSession, Call, Result, Status
from tests.integration.up.processes import processes_of, until_gone
from tests.integration.up.toolserver import policy, tool_server


class Agent:
    """Calls tools until it is told to stop; what it got is kept."""

    def __init__(self, session: AsyncSession, number: int) -> None:
        self.session = session
        self.number = number
        self.results: list[tuple[str, Result]] = []
        self.stopping = False

    async def work(self) -> None:
        step = 0
        while not self.stopping:
            step += 1
            name = f"{self.number}-{step}"
            calls = [Call("dedent", {"text": f"  {name}"}), Call("read", {"n": name}), Call("write", {"n": name})]
            async with asyncio.timeout(90):  # the client's own bound is 65 s; nothing waits longer
                results = await self.session.call_tools(calls)
            self.results += [(name, result) for result in results]

    async def until_calls(self, count: int) -> None:
        """Waits for so many further answers with content."""
        target = self.answered + count
        while self.answered < target:  # noqa: ASYNC110
            await asyncio.sleep(0.02)

    @property
    def answered(self) -> int:
        return sum(result.ok for _, result in self.results)


@pytest.mark.timeout(240)
async def test_each_service_and_the_broker_are_killed_while_calls_run(tmp_path: Path) -> None:
    async with tool_server() as tools:
        tools.delay_seconds = 0.02
        file = tmp_path / "policy.yaml"
        file.write_text(policy(tools))
        async with Platform(tmp_path / "data", file, port=0) as platform:
            addresses = {name: platform.address_of(name) for name in (*SERVICES, "broker")}
            async with (
                AsyncClient(platform.address, platform.token) as client,
                client.session("agent") as one,
                client.session("agent") as two,
            ):
                agents = [Agent(one, 1), Agent(two, 2)]
                working = [asyncio.ensure_future(agent.work()) for agent in agents]
                for victim in ("orchestrator", "sandbox", "broker", "verifier", "predictor", "snapshots"):
                    await agents[0].until_calls(6)
                    before = platform.pid_of(victim)
                    platform.kill(victim)
                    async with asyncio.timeout(30):
                        while platform.pid_of(victim) in (None, before):  # noqa: ASYNC110
                            await asyncio.sleep(0.02)
                    await platform.until_serving(30)
                for agent in agents:
                    await agent.until_calls(6)
                    agent.stopping = True
                await asyncio.gather(*working)
            assert platform.restarts == 6
            assert {name: platform.address_of(name) for name in addresses} == addresses
        await until_gone(tmp_path / "data")
    statuses: Counter[str] = Counter()
    for agent in agents:
        for name, result in agent.results:
            statuses[f"{result.call.name} {result.status.value}"] += 1
            if result.call.name == "dedent" and result.ok:
                assert result.text == name
            if result.call.name == "write":
                # Never twice; and what the agent was told is true.
                assert tools.writes[name] <= 1
                if result.ok:
                    assert tools.writes[name] == 1
                if result.status in (Status.UNAVAILABLE, Status.REJECTED):
                    assert tools.writes[name] == 0
            if not result.ok:
                assert result.failure is not None and result.failure.reason and result.failure.message, result
    # Repeatable calls survive everything.
    assert {key for key in statuses if key.startswith(("dedent", "read"))} == {"dedent ok", "read ok"}, statuses


async def test_a_platform_that_is_killed_leaves_nothing_behind(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "forerun.cli.main", "up", "--data", str(tmp_path), "--port", "0",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    assert process.stdout is not None
    async with asyncio.timeout(90):
        while b"ready at" not in await process.stdout.readline():
            assert process.returncode is None
    assert len(processes_of(tmp_path)) >= 1 + len(SERVICES)
    os.kill(process.pid, signal.SIGKILL)
    await process.wait()
    await until_gone(tmp_path)
    # Its files are no obstacle for the next one, which admits the same token.
    token = (tmp_path / "token").read_text()
    async with Platform(tmp_path, port=0) as platform:
        assert platform.token == token.strip()
