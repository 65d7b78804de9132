"""A staged write that ran ahead takes effect once, whoever commits it, and whoever asks for it again."""

from __future__ import annotations

import asyncio
import random

import pytest

from forerun.client import Served, Status
from forerun.runtime.errors import Aborted
from forerun.sandbox.owner import Owner
from forerun.sandbox.worker.engine import Engine
from tests.integration.cases.conftest import Play, Stage, policy, tool
from tests.kills import kill
from tests.simulation.files import Desk, InPlace
from tests.simulation.moments import Moments

FILE = ["file/{file}"]
FILES = policy(
    tool(
        "add", "WRITE", staged=True, writes=FILE, speculate=True,
        endpoint={"command": {"argv": ["add", "{file}", "{token}"]}},
    ),
    tool("show", "READ", reads=FILE, endpoint={"command": {"argv": ["show", "{file}"]}}),
)  # fmt: skip
ARGUMENTS = {"file": 0, "token": "line"}
ADD = ("add", b'{"file":0,"token":"line"}')


@pytest.mark.parametrize("moment", ["before", "after", "late"])
def test_the_owner_is_lost_at_the_commit(play: Play, moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before its worker merges, after that, or so that its request comes when another owner has run the call."""
    late: list[asyncio.Future[int]] = []

    async def scene(s: Stage) -> None:
        asyncio.get_running_loop().set_default_executor(InPlace(1))
        real, answered = Engine.merge, asyncio.Event()

        async def merging(engine: Engine, owner: Owner, fork: str, **more: str) -> int:
            await answered.wait()
            return await real(engine, owner, fork, **more)

        async def merge(engine: Engine, owner: Owner, fork: str, **more: str) -> int:
            monkeypatch.undo()
            if moment == "after":
                await real(engine, owner, fork, **more)
            reborn.append(asyncio.ensure_future(again()))
            if moment == "late":
                late.append(asyncio.ensure_future(merging(engine, owner, fork, **more)))
            await asyncio.sleep(0)  # now it is dead: what comes of this is heard by nobody
            return 0

        async def again() -> None:
            await kill(s.platform, "orchestrator")
            await s.platform.start_service("orchestrator")

        reborn: list[asyncio.Future[None]] = []
        async with s.client.session("agent") as session:
            await s.ahead(session, ADD)
            await asyncio.sleep(5.0)
            monkeypatch.setattr(Engine, "merge", merge)
            added = await session.call_tool("add", ARGUMENTS)
            answered.set()
            shown = await session.call_tool("show", {"file": 0})
        await asyncio.gather(*reborn)
        assert (added.status, added.served, added.text) == (Status.OK, Served.DIRECT, "line ")
        assert shown.text == "line "
        for one in late:
            with pytest.raises(Aborted):
                await one

    play(scene, FILES, make_runner=Desk(random.Random(1), Moments()).runner)
