"""Workspaces that are opened, closed and swept at the same time: nobody loses what he was just given."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from forerun.runtime.clock import SystemClock
from forerun.runtime.errors import FailedPrecondition, NotFound
from forerun.sandbox.owner import Owner
from forerun.sandbox.workspaces import disk, store, workspace
from forerun.sandbox.workspaces.store import Workspaces
from forerun.sandbox.workspaces.strategy import Strategy
from forerun.sandbox.workspaces.workspace import Workspace, WorkspaceLimits
from tests.unit.sandbox.fakes import OWNER, Gate

OTHER = Owner("acme", "s2")


class Time(SystemClock):
    """A clock that goes on when it is told to."""

    def __init__(self) -> None:
        self.at = 2_000_000_000.0  # after the times that the test's files get

    def now(self) -> float:
        return self.at


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def kept(tmp_path: Path, time: Time) -> Workspaces:
    return Workspaces(tmp_path, Strategy.COPY, WorkspaceLimits(), time)


def held_removal(monkeypatch: pytest.MonkeyPatch) -> Gate:
    """Stops the next removal of a directory until the gate opens."""
    gate = Gate(disk.remove)
    for module in (store, workspace):
        monkeypatch.setattr(module, "remove", gate)
    return gate


def present(root: Path, pattern: str = "*/*") -> list[str]:
    """What lies there."""
    return sorted(str(one.relative_to(root)) for one in root.glob(pattern))


async def some_turns() -> None:
    """Whoever waits for nothing but the event loop gets on."""
    for _ in range(20):
        await asyncio.sleep(0)


async def works(one: Workspace, root: Path, owner: Owner = OWNER) -> None:
    """Something can be done in it, and it is on disk."""
    async with one.read():
        pass
    await one.fork("f")
    assert await one.merge("f") == 1
    assert (root / owner.tenant / owner.session / "state.json").exists()


async def test_what_is_asked_for_while_it_closes_is_made_anew_after_it(
    kept: Workspaces, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await kept.of(OWNER, None)
    gate = held_removal(monkeypatch)
    begun: list[Workspace] = []

    def made(root: Path, strategy: Strategy, limits: WorkspaceLimits) -> Workspace:
        begun.append(Workspace(root, strategy, limits))
        return begun[-1]

    monkeypatch.setattr(store, "Workspace", made)
    closing = asyncio.ensure_future(kept.close(OWNER))
    await gate.inside.wait()
    opening = asyncio.ensure_future(kept.of(OWNER, None))
    await some_turns()
    assert not begun, "it would be removed under whoever works in it"
    gate.go_on.set()
    await closing
    await works(await opening, tmp_path)


async def test_closing_and_opening_in_turn_come_to_an_end_in_order(
    kept: Workspaces, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await kept.of(OWNER, None)
    gate = held_removal(monkeypatch)
    first = asyncio.ensure_future(kept.close(OWNER))
    await gate.inside.wait()
    opening = asyncio.ensure_future(kept.of(OWNER, None))
    await some_turns()
    second = asyncio.ensure_future(kept.close(OWNER))
    await some_turns()
    third = asyncio.ensure_future(kept.of(OWNER, None))
    await some_turns()
    gate.go_on.set()
    await asyncio.gather(first, second)
    with pytest.raises(NotFound):
        await (await opening).fork("f")
    await works(await third, tmp_path)


async def test_closing_twice_removes_one_after_the_other(kept: Workspaces, monkeypatch: pytest.MonkeyPatch) -> None:
    await kept.of(OWNER, None)
    gate = held_removal(monkeypatch)
    begun: list[object] = []

    async def recorded(work: Callable[..., object], *arguments: object) -> object:
        begun.append(work)
        return await disk.in_thread(work, *arguments)

    monkeypatch.setattr(store, "in_thread", recorded)
    first = asyncio.ensure_future(kept.close(OWNER))
    await gate.inside.wait()
    second = asyncio.ensure_future(kept.close(OWNER))
    await some_turns()
    assert not begun, "it would be done first, and whoever came then would not know of the other one"
    gate.go_on.set()
    await asyncio.gather(first, second)
    assert begun == [gate, gate]


async def test_closing_waits_for_a_command_and_lets_none_begin(kept: Workspaces, tmp_path: Path) -> None:
    one = await kept.of(OWNER, None)
    async with one.read():
        closing = asyncio.ensure_future(kept.close(OWNER))
        await some_turns()
        late = asyncio.ensure_future(one.fork("late"))
        await some_turns()
        assert present(tmp_path, "acme/s1/base-*"), "the command would read a half-removed tree"
        assert not late.done()
    await closing
    with pytest.raises(NotFound):
        await late
    assert not present(tmp_path)


async def test_a_sweep_spares_who_came_back_meanwhile(
    kept: Workspaces, time: Time, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await kept.of(OWNER, None)
    other = await kept.of(OTHER, None)
    time.at += 100.0
    gate = held_removal(monkeypatch)
    sweeping = asyncio.ensure_future(kept.sweep(50.0))
    await gate.inside.wait()
    assert await kept.of(OTHER, None) is other
    gate.go_on.set()
    await sweeping
    await works(other, tmp_path, OTHER)
    assert not (tmp_path / "acme" / "s1").exists()


async def test_a_sweep_spares_what_was_left_and_is_taken_up_meanwhile(
    kept: Workspaces, time: Time, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a-left", OTHER.session):
        (tmp_path / "acme" / name).mkdir(parents=True)
    gate = held_removal(monkeypatch)
    sweeping = asyncio.ensure_future(kept.sweep(50.0))
    await gate.inside.wait()
    other = await kept.of(OTHER, None)
    time.at += 100.0
    gate.go_on.set()
    await sweeping
    await works(other, tmp_path, OTHER)
    assert not (tmp_path / "acme" / "a-left").exists()


async def test_what_a_sweep_removes_is_made_anew_after_it(
    kept: Workspaces, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "acme" / OWNER.session).mkdir(parents=True)
    gate = held_removal(monkeypatch)
    sweeping = asyncio.ensure_future(kept.sweep(50.0))
    await gate.inside.wait()
    opening = asyncio.ensure_future(kept.of(OWNER, None))
    await some_turns()
    assert not present(tmp_path, "acme/s1/*")
    gate.go_on.set()
    await sweeping
    await works(await opening, tmp_path)


async def test_idle_time_begins_when_the_last_command_was_seen(kept: Workspaces, time: Time, tmp_path: Path) -> None:
    one = await kept.of(OWNER, None)
    async with one.read():
        time.at += 100.0
        await kept.sweep(50.0)
    time.at += 40.0
    await kept.sweep(50.0)
    await works(one, tmp_path)
    time.at += 11.0
    await kept.sweep(50.0)
    assert kept.known(OWNER) is None


async def test_an_opening_that_failed_with_nobody_there_does_not_stop_a_sweep(
    kept: Workspaces, time: Time, tmp_path: Path
) -> None:
    asking = asyncio.ensure_future(kept.of(OWNER, tmp_path / "no-such-seed"))
    await asyncio.sleep(0)
    asking.cancel()
    failed = kept.known(OWNER)
    assert failed is not None
    with pytest.raises(FailedPrecondition):
        await failed
    await kept.of(OTHER, None)
    time.at += 100.0
    await kept.sweep(50.0)
    assert kept.known(OWNER) is None
    assert not present(tmp_path)


async def test_a_command_whose_clean_up_fails_keeps_nobody_from_closing_and_opening(
    kept: Workspaces, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await kept.of(OWNER, None)

    def refused(_: Path) -> None:
        raise OSError("the disk")

    with pytest.raises(OSError, match="the disk"):
        async with one.read():
            await one.fork("f")
            await one.merge("f")  # what the command reads is an earlier version now
            closing = asyncio.ensure_future(kept.close(OWNER))
            await some_turns()
            monkeypatch.setattr(workspace, "remove", refused)
    monkeypatch.setattr(workspace, "remove", disk.remove)
    done, _ = await asyncio.wait([closing], timeout=10.0)
    assert done, "nobody would be given this session's workspace any more"
    await works(await kept.of(OWNER, None), tmp_path)


async def test_closing_waits_until_what_a_command_has_read_is_removed(
    kept: Workspaces, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await kept.of(OWNER, None)
    entered, leave = asyncio.Event(), asyncio.Event()

    async def command() -> None:
        async with one.read():
            entered.set()
            await leave.wait()

    reading = asyncio.ensure_future(command())
    await entered.wait()
    await one.fork("f")
    await one.merge("f")  # what the command reads is an earlier version now
    gate = Gate(disk.remove)
    monkeypatch.setattr(workspace, "remove", gate)
    leave.set()
    await gate.inside.wait()
    monkeypatch.setattr(workspace, "remove", disk.remove)
    closing = asyncio.ensure_future(kept.close(OWNER))
    opening = asyncio.ensure_future(kept.of(OWNER, None))
    await asyncio.wait([closing], timeout=0.5)
    assert not closing.done(), "the removal would take a part of the workspace that is made next"
    gate.go_on.set()
    await asyncio.gather(reading, closing)
    await works(await opening, tmp_path)
