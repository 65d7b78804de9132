"""The level `pod` with real runner processes: who gets which, and who gives one back."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from forerun.runtime.errors import (
    ErrorReason,
)
from forerun.sandbox.connectors.port import Ended, ToolFault
from forerun.sandbox.isolation.launch import SetupFailed
from forerun.sandbox.owner import Owner
from forerun.sandbox.runners.remote import Lost
from tests.integration.sandbox.runner_processes import (
    AS_IN_A_POD,
    Authority,
    RunnerProcess,
    runners,
)
from tests.integration.sandbox.runner_stage import ANN, BOB, EVE, begun, in_a_pod, plan, pool, runs, taken
from tests.integration.sandbox.test_commands import alive


async def test_two_sessions_have_two_runners(tmp_path: Path, authority: Authority) -> None:
    with runners(tmp_path / "runners", authority, 2) as found:
        async with pool(found, authority) as mine:
            ann = asyncio.ensure_future(mine.run(plan("echo secret > $HOME/ann; sleep 764", owner=ANN)))
            await begun("sleep\x00764")
            if AS_IN_A_POD:
                seen = await mine.run(plan("ps ax | grep -c '[s]leep 764'; grep -rsl secret /mnt; true", owner=BOB))
                assert seen.stdout.text == "0\n"
            assert (await mine.run(plan("echo bob", owner=BOB))).stdout.text == "bob\n"
            with pytest.raises(ToolFault) as full:
                await mine.run(plan("true", owner=Owner("other", "s1"), speculative=True))
            assert full.value.reason is ErrorReason.NO_FREE_RUNNER
            ann.cancel()
            await asyncio.gather(ann, return_exceptions=True)


async def test_no_free_runner_is_a_typed_error_after_a_bounded_wait(
    runner: RunnerProcess, authority: Authority
) -> None:
    async with pool([runner], authority, wait=1.0) as mine:
        busy = asyncio.ensure_future(mine.run(plan("sleep 765", owner=ANN)))
        await begun("sleep\x00765")
        asked_at = time.monotonic()
        with pytest.raises(ToolFault, match="runners_wait_seconds") as refused:
            await mine.run(plan("true", owner=BOB))
        assert 0.9 < time.monotonic() - asked_at < 5.0
        fault = refused.value
        assert (fault.ended, fault.reason, fault.not_started) == (
            Ended.UNAVAILABLE, ErrorReason.NO_FREE_RUNNER, True
        )  # fmt: skip
        assert not busy.done(), "a command that an agent waits for keeps its runner"
        busy.cancel()
        await asyncio.gather(busy, return_exceptions=True)


async def test_work_ahead_of_time_leaves_runners_to_agents_and_gives_its_own_back(
    tmp_path: Path, authority: Authority
) -> None:
    with runners(tmp_path / "runners", authority, 2) as found:
        async with pool(found[:1], authority, kept=1) as mine:
            with pytest.raises(ToolFault, match="kept"):
                await mine.run(plan("true", owner=ANN, speculative=True))
        listed = [found[0]]
        async with pool(listed, authority, wait=20.0) as mine:
            ahead = asyncio.ensure_future(mine.run(plan("sleep 766", owner=ANN, speculative=True)))
            await begun("sleep\x00766")
            asked = asyncio.ensure_future(mine.run(plan("echo bob", owner=BOB)))
            with pytest.raises(ToolFault) as preempted:
                await ahead
            assert preempted.value.reason is ErrorReason.PREEMPTED
            assert await found[0].over() == 0
            listed.append(found[1])  # the one that a cluster starts in its place
            assert (await asked).stdout.text == "bob\n"


async def test_a_promoted_command_keeps_its_runner(runner: RunnerProcess, authority: Authority) -> None:
    async with pool([runner], authority, wait=1.0) as mine:
        ahead = plan("echo ann; sleep 768", owner=ANN, speculative=True)
        running = asyncio.ensure_future(mine.run(ahead))
        await begun("sleep\x00768")
        ahead.demand.asked_for = True
        with pytest.raises(ToolFault) as refused:
            await mine.run(plan("true", owner=BOB))
        assert refused.value.reason is ErrorReason.NO_FREE_RUNNER
        assert not running.done()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_an_idle_session_lets_go_and_takes_another_one(tmp_path: Path, authority: Authority) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    with runners(tmp_path / "runners", authority, 2) as found:
        async with pool(found, authority, wait=15.0, idle=0.5) as mine:
            await mine.run(plan("echo 1 > one", workspace))
            codes = await asyncio.wait_for(_first_over(found), 15.0)
            assert codes == 0
            assert (await mine.run(plan("cat one", workspace))).stdout.text == "1\n"


async def _first_over(found: Sequence[RunnerProcess]) -> int:
    while True:
        for one in found:
            if (code := one.process.poll()) is not None:
                return code
        await asyncio.sleep(0.02)


async def test_a_runner_that_dies_under_a_command_is_an_end_that_nobody_knows(
    tmp_path: Path, authority: Authority
) -> None:
    with runners(tmp_path / "runners", authority, 2) as found:
        async with pool(found, authority, wait=15.0) as mine:
            command = asyncio.ensure_future(mine.run(plan("echo begun; sleep 767")))
            await begun("sleep\x00767")
            (used,) = [one for one in found if runs(one, "sleep\x00767")]
            used.kill()
            with pytest.raises(ToolFault) as lost:
                await command
            assert (lost.value.ended, lost.value.not_started) == (Ended.UNAVAILABLE, False)
            assert alive("sleep\x00767") == [] or not AS_IN_A_POD
            # One that dies while nothing runs is not even noticed.
            assert (await mine.run(plan("echo on"))).stdout.text == "on\n"


async def _holds_no_workspace(found: Sequence[RunnerProcess], authority: Authority, workspace: Path, why: str) -> None:
    """It is said why, and the session keeps its runner."""
    async with pool(found, authority, wait=15.0) as mine:
        with pytest.raises(SetupFailed, match=why):
            await mine.run(plan("true", workspace))
        assert (await mine.run(plan("echo on"))).stdout.text == "on\n"
        assert [one.process.poll() for one in found] == [None]


async def test_a_workspace_that_no_runner_takes_costs_none(
    runner: RunnerProcess, authority: Authority, tmp_path: Path
) -> None:
    deep = tmp_path / "workspace"
    deep.joinpath(*["d"] * 140).mkdir(parents=True)
    await _holds_no_workspace([runner], authority, deep, "cannot hold the workspace: .*too long")


@in_a_pod
async def test_a_workspace_that_fits_onto_no_disk_costs_no_runner(authority: Authority, tmp_path: Path) -> None:
    (workspace := tmp_path / "workspace").mkdir()
    for number in range(12):
        (workspace / str(number)).write_bytes(os.urandom(2**20))
    with runners(tmp_path / "runners", authority, 1, disk_mib=4) as found:
        await _holds_no_workspace(found, authority, workspace, "disk is full .*scratchSize")


async def test_a_runner_that_was_let_go_of_begins_nothing(runner: RunnerProcess, authority: Authority) -> None:
    """Between the moment at which it was taken and the command's begin it may be given up."""
    async with taken(runner, authority) as remote:
        await remote.end()
        with pytest.raises(Lost) as lost:
            await remote.run(plan("true"))
        assert not lost.value.begun


async def test_sessions_come_and_go_while_idle_runners_are_let_go_of(tmp_path: Path, authority: Authority) -> None:
    with runners(tmp_path / "runners", authority, 4) as found:
        async with pool(found, authority, wait=15.0, idle=0.01, sweeps=False) as mine:
            for owner in (ANN, BOB, EVE):
                await mine.run(plan("true", owner=owner))
            await asyncio.sleep(0.02)
            # While Ann's runner is being ended Bob's session ends, and Eve's, found idle as well, goes on.
            _, _, result = await asyncio.gather(
                mine.let_go_of_idle(), mine.close_session(BOB), mine.run(plan("echo eve", owner=EVE))
            )
            assert result.stdout.text == "eve\n"


async def test_a_runner_that_becomes_idle_later_is_given_up_too(tmp_path: Path, authority: Authority) -> None:
    with runners(tmp_path / "runners", authority, 2) as found:
        listed = [found[0]]
        async with pool(listed, authority, wait=20.0) as mine:
            ann = asyncio.ensure_future(mine.run(plan("sleep 1.769; echo ann", owner=ANN)))
            await begun("sleep\x001.769")
            bob = asyncio.ensure_future(mine.run(plan("echo bob", owner=BOB)))
            assert (await ann).stdout.text == "ann\n"
            assert await found[0].over() == 0
            listed.append(found[1])  # the one that a cluster starts in its place
            assert (await bob).stdout.text == "bob\n"
