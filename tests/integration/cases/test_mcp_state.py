"""A real MCP server that keeps state with its connection: nothing runs ahead of it, and what is lost is said."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp import Client

from forerun.cli.virtual import TENANT, VirtualPlatform
from forerun.client import AsyncClient, AsyncSession, CallRejected, Served
from forerun.runtime import subjects
from forerun.runtime.clock import Clock, SystemClock
from forerun.runtime.ids import Ids, SystemIds
from forerun.runtime.virtual import run_virtual
from forerun.sandbox.tools import Server
from forerun.v1 import ledger_pb2
from tests.integration.cases.conftest import Foresight
from tests.integration.cases.mcp_state_server import state_server


@asynccontextmanager
async def _in_memory(_: Server) -> AsyncIterator[Client]:
    """Another connection is another server, as it is with stdio."""
    async with Client(state_server(1.0)) as client:
        yield client


_STATE = [{"template": "state", "scope": "RESOURCE_SCOPE_SESSION"}]
_SERVER = Path(__file__).with_name("mcp_state_server.py")


def _rules(**mcp: Any) -> dict[str, Any]:
    policy = {
        "name": "state", "mode": "MODE_EXACT", "alpha": 1, "lambdaPerSecond": 4, "minimumEvidence": 3, "auditShare": 1,
        "tools": [
            {"tool": "st.get", "effect": "EFFECT_READ", "reads": _STATE, "speculate": True, "race": {}},
            {"tool": "st.put", "effect": "EFFECT_WRITE", "writes": _STATE},
        ],
    }  # fmt: skip
    served = {"command": [sys.executable, str(_SERVER)], "environment": {"PYTHONPATH": ":".join(sys.path)}}
    return {"policies": [policy], "servers": [{"name": "st", "mcp": served | mcp}]}


class Scene:
    """What a test gets."""

    def __init__(self, platform: VirtualPlatform, client: AsyncClient, foresight: Foresight) -> None:
        self.platform, self.client, self._foresight = platform, client, foresight

    async def ahead(self, session: AsyncSession) -> None:
        """The model starts, and a read of the state is predicted with certainty."""
        self._foresight.next = [("st.get", b"{}")]
        await session.model_started()
        await asyncio.sleep(0.5)  # virtual
        self._foresight.next = []

    async def restart(self) -> None:
        """The worker is another process."""
        await self.platform.stop_service("sandbox", 5.0)
        await self.platform.start_service("sandbox")

    async def ledger(self, session: AsyncSession) -> list[ledger_pb2.LedgerLine]:
        """The ledger lines of a session that has ended."""
        messages = await self.platform.bus.read(subjects.ledger(TENANT, session.id), limit=1_000)
        return [ledger_pb2.LedgerLine.FromString(message.data) for message in messages]


Play = Callable[[Scene], Awaitable[None]]


@asynccontextmanager
async def _scene(directory: Path, clock: Clock, ids: Ids, *, real: bool = False, **mcp: Any) -> AsyncIterator[Scene]:
    file, foresight = directory / "policy.yaml", Foresight()
    file.write_text(json.dumps(_rules(**mcp)))  # JSON is YAML
    platform = VirtualPlatform(
        directory=directory, policy_file=file, clock=clock, ids=ids, http=httpx.AsyncHTTPTransport(), engine=foresight,
        open_mcp=None if real else _in_memory, settings={"sandbox": {"list_tools_seconds": 60.0}},
    )  # fmt: skip
    others = _waiting()
    await platform.start()
    try:
        async with AsyncClient(channel=platform.channel(), ids=ids) as client:
            yield Scene(platform, client, foresight)
    finally:
        await platform.stop()
        async with asyncio.timeout(20):
            while _waiting() - others:  # noqa: ASYNC110  (processes give no event)
                await asyncio.sleep(0.01)
        await asyncio.sleep(0)  # so that this loop hears of it


def _waiting() -> set[str]:
    """The threads of asyncio that wait for the end of a process."""
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("asyncio-waitpid-")}


@pytest.fixture
def play(tmp_path: Path) -> Callable[..., None]:
    """Runs a scene on a platform whose policy has this MCP server, in virtual time."""

    def run(scene: Play, **mcp: Any) -> None:
        async def main(clock: Clock, ids: Ids) -> None:
            async with _scene(tmp_path, clock, ids, **mcp) as s:
                await scene(s)

        run_virtual(main, epoch=1_700_000_000.0, seed=1)

    return run


async def _said(session: AsyncSession, tool: str, **arguments: Any) -> str:
    return (await session.call_tool(tool, arguments)).content.decode()


def test_what_keeps_state_never_runs_ahead_and_reads_what_was_written(play: Callable[..., None]) -> None:
    async def scene(s: Scene) -> None:
        async with s.client.session("a") as session:
            assert await _said(session, "st.get") == "unset"
            for value in ("one", "two"):
                await _said(session, "st.put", v=value)
                await s.ahead(session)
                assert await _said(session, "st.get") == value
        assert session.totals is not None
        assert (session.totals.launched, session.totals.outcomes) == (0, {})
        assert session.totals.refused == {"connection_state": 2}
        assert session.totals.speculable_calls == 0, "coverage counts what could have been run ahead"
        assert [one.reason for one in await s.ledger(session) if one.reason] == ["connection_state"] * 2

    play(scene)


def test_a_memo_answers_from_the_same_connection(play: Callable[..., None]) -> None:
    async def scene(s: Scene) -> None:
        async with s.client.session("a") as session:
            await _said(session, "st.put", v="one")
            first, again = [await session.call_tool("st.get", {}) for _ in range(2)]
        assert [(one.content, one.served) for one in (first, again)] == [(b"one", Served.DIRECT), (b"one", Served.MEMO)]

    play(scene)


def test_early_issue_reads_from_the_same_connection_and_is_not_audited(play: Callable[..., None]) -> None:
    async def scene(s: Scene) -> None:
        async with s.client.session("a") as session:
            await _said(session, "st.put", v="one")
            await session.model_started()
            async with session.streamed_message() as message:
                await message.add_call(0, name="st.get", arguments="{}")
                await asyncio.sleep(0.5)  # the model goes on; a part that its message follows at once is not told
                (result,) = await message.call_tools()
        assert (result.content, result.served) == (b"one", Served.EARLY)
        assert not any(line.audit for line in await s.ledger(session))

    play(scene)


def test_sessions_do_not_share_what_keeps_state(play: Callable[..., None]) -> None:
    async def scene(s: Scene) -> None:
        async with s.client.session("a") as session, s.client.session("a") as other:
            await _said(session, "st.put", v="one")
            await _said(other, "st.put", v="two")
            assert await _said(session, "st.get") == "one"

    play(scene, command=[], url="http://127.0.0.1:1/mcp", environment={})


def test_a_stateless_server_runs_ahead(play: Callable[..., None]) -> None:
    async def scene(s: Scene) -> None:
        async with s.client.session("a") as session:
            await s.ahead(session)
            assert (await session.call_tool("st.get", {})).served is Served.JOINED

    play(scene, stateless=True)


def test_state_that_a_restarted_worker_has_lost_is_said_once(play: Callable[..., None]) -> None:
    async def scene(s: Scene) -> None:
        async with s.client.session("a") as session, s.client.session("a") as other:
            await _said(session, "st.put", v="one")
            await s.restart()
            with pytest.raises(CallRejected, match="STATE_LOST"):
                await _said(session, "st.get")
            assert await _said(session, "st.get") == "unset", "from here on it is a new connection"
            await _said(session, "st.put", v="two")
            assert await _said(session, "st.get") == "two"
            assert await _said(other, "st.get") == "unset", "it had no state to lose"

    play(scene)


def test_a_new_owner_knows_that_there_was_state(play: Callable[..., None]) -> None:
    async def scene(s: Scene) -> None:
        async with s.client.session("a") as session:
            await _said(session, "st.put", v="one")
            await s.platform.stop_service("orchestrator", 5.0)
            await s.restart()
            await s.platform.start_service("orchestrator")
            with pytest.raises(CallRejected, match="STATE_LOST"):
                await _said(session, "st.get")
            assert await _said(session, "st.get") == "unset"

    play(scene)


def test_what_was_remembered_ends_with_the_connection(play: Callable[..., None]) -> None:
    async def scene(s: Scene) -> None:
        async with s.client.session("a") as session:
            assert await _said(session, "st.get") == "unset"
            await _said(session, "st.put", v="one")
            assert await _said(session, "st.get") == "one"
            await s.restart()
            with pytest.raises(CallRejected, match="STATE_LOST"):
                await _said(session, "st.put", v="two")
            assert await _said(session, "st.get") == "unset"

    play(scene)


async def test_state_that_died_with_its_process_is_said_once(tmp_path: Path) -> None:
    clock = SystemClock()
    async with _scene(tmp_path, clock, SystemIds(clock), real=True) as s, s.client.session("a") as session:
        os.kill(int(await _said(session, "st.put", v="one")), signal.SIGKILL)
        with pytest.raises(CallRejected, match="STATE_LOST"):
            await _said(session, "st.get")
        assert await _said(session, "st.get") == "unset"
