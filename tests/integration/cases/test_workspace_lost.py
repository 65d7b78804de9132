"""A session finds its workspace where it is, or is told that it is lost: never a fresh one in its place."""

from __future__ import annotations

import asyncio
import random
import shutil

import pytest

from forerun.cli.virtual import SERVICES
from forerun.client import AsyncSession, Call, Status
from forerun.sandbox.workspaces.disk import file_name
from tests.integration.cases.conftest import Play, Stage, policy, tool
from tests.kills import kill
from tests.simulation.files import Desk, InPlace
from tests.simulation.moments import Moments

WORKERS = ("sandbox", "sandbox-2")
GONE_SECONDS = 65.0
AWAY_SECONDS = 15.0
ALL = (*SERVICES, "sandbox-2")
FILE = ["file/{file}"]
RULES = policy(
    tool("add", "WRITE", staged=True, writes=FILE, endpoint={"command": {"argv": ["add", "{file}", "{token}"]}}),
    tool("show", "READ", reads=FILE, endpoint={"command": {"argv": ["show", "{file}"]}}),
    tool("get", "READ", reads=["o/{id}"]),
    tool("set", "WRITE", writes=["o/{id}"]),
)


async def written(s: Stage, session: AsyncSession) -> str:
    """The session writes; the worker that has its workspace."""
    result = await session.call_tool("add", {"file": 0, "token": "line"})
    assert result.text == "line "
    (own,) = [name for name in WORKERS if any((s.directory / name).rglob(f"*{_encoded(session)}*"))]
    return own


def _encoded(session: AsyncSession) -> str:
    return file_name(session.id)


async def lost(session: AsyncSession) -> None:
    """What uses the workspace is refused, and what does not use it goes on."""
    for name, arguments in (("show", {"file": 0}), ("add", {"file": 0, "token": "more"}), ("show", {"file": 1})):
        (result,) = await session.call_tools([Call(name, arguments)], timeout_seconds=200.0)
        assert (result.status, result.failure and result.failure.reason) == (Status.REJECTED, "WORKSPACE_LOST")
    for name in ("get", "set"):
        assert (await session.call_tool(name, {"id": 1})).ok


@pytest.mark.parametrize("owner", ["same", "another"])
def test_the_worker_that_has_the_workspace_is_gone(play: Play, owner: str) -> None:
    async def scene(s: Stage) -> None:
        asyncio.get_running_loop().set_default_executor(InPlace(1))
        await s.platform.start_service("sandbox-2")
        await asyncio.sleep(3.0)
        owns = set()
        for _ in range(4):
            async with s.client.session("agent") as session:
                own = await written(s, session)
                owns.add(own)
                await kill(s.platform, own, services=ALL)
                if owner == "another":
                    await kill(s.platform, "orchestrator", services=ALL)
                    await s.platform.start_service("orchestrator")
                await asyncio.sleep(GONE_SECONDS)
                await lost(session)
                # It comes back with what it had.
                await s.platform.start_service(own)
                await asyncio.sleep(3.0)
                assert (await session.call_tool("show", {"file": 0})).text == "line "
        assert owns == set(WORKERS)

    # Workers that are in the settings are never given up before they have reported once.
    settings = {"orchestrator": {"sandbox_targets": ()}}
    play(scene, RULES, make_runner=Desk(random.Random(1), Moments()).runner, settings=settings)


def test_a_new_owner_that_knows_other_workers_finds_the_workspace(play: Play) -> None:
    """The worker was not reachable when the session was taken over, for shorter than it takes to give it up."""

    async def scene(s: Stage) -> None:
        asyncio.get_running_loop().set_default_executor(InPlace(1))
        await s.platform.start_service("sandbox-2")
        await asyncio.sleep(3.0)
        for _ in range(4):
            async with s.client.session("agent") as session:
                own = await written(s, session)
                for name in (own, "orchestrator"):
                    await kill(s.platform, name, services=ALL)
                await s.platform.start_service("orchestrator")
                await asyncio.sleep(AWAY_SECONDS)
                showing = asyncio.ensure_future(session.call_tool("show", {"file": 0}))
                await asyncio.sleep(5.0)
                await s.platform.start_service(own)
                assert (await showing).text == "line "

    play(scene, RULES, make_runner=Desk(random.Random(1), Moments()).runner)


def test_a_worker_that_has_lost_its_disk_says_so(play: Play) -> None:
    async def scene(s: Stage) -> None:
        asyncio.get_running_loop().set_default_executor(InPlace(1))
        async with s.client.session("agent") as session:
            await session.call_tool("add", {"file": 0, "token": "line"})
            await kill(s.platform, "sandbox")
            shutil.rmtree(s.directory / "sandbox")
            await s.platform.start_service("sandbox")
            await lost(session)
            await kill(s.platform, "orchestrator")
            await s.platform.start_service("orchestrator")
            await lost(session)

    play(scene, RULES, make_runner=Desk(random.Random(1), Moments()).runner)
