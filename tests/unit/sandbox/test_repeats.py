"""A real call that is asked for again after its stream broke takes effect once."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from forerun.runtime.clock import SystemClock
from forerun.runtime.errors import Aborted, ErrorReason
from forerun.sandbox.connectors.port import Ended
from forerun.sandbox.workspaces.store import Workspaces
from forerun.sandbox.workspaces.strategy import Strategy
from forerun.sandbox.workspaces.workspace import Workspace, WorkspaceLimits
from tests.unit.sandbox.fakes import OWNER, Call, Gate, Writing, ahead, staged, staging_engine


def workspaces(root: Path) -> Workspaces:
    return Workspaces(root, Strategy.COPY, WorkspaceLimits(), SystemClock())


def log(root: Path) -> str:
    (base,) = (root / "acme" / "s1").glob("base-*")
    return (base / "log").read_text()


@pytest.mark.parametrize(("stage", "answer"), [("fork", b"second"), ("tool", b"second"), ("merge", b"first")])
async def test_a_stream_that_breaks_at_any_stage(
    stage: str, answer: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connector = Writing(workspaces(tmp_path))
    engine = staging_engine(connector, SystemClock())
    step = {"fork": "_make_fork"}.get(stage, "_merge")
    gate = Gate(getattr(Workspace, step))
    if stage != "tool":
        monkeypatch.setattr(Workspace, step, lambda *arguments: gate(*arguments))  # noqa: PLW0108  (binds self)
        connector.go_on.set()
    first = Call(engine, staged("e1"))
    async with asyncio.timeout(20):
        await (connector.inside if stage == "tool" else gate.inside).wait()
        first.task.cancel()
        await asyncio.sleep(0)
        connector.line = "second"
        again = Call(engine, staged("e2"))
        await asyncio.sleep(0.05)
        assert not again.task.done() or stage == "tool"
        gate.go_on.set()
        connector.go_on.set()
        with contextlib.suppress(asyncio.CancelledError):
            await first.task
        end = await again.end()
        more = await Call(engine, staged("e3")).end()
    for one in (end, more):
        assert one.result is not None and one.ended is Ended.OK
        assert (one.result.content, one.result.media_type, one.result.tool_error) == (answer, "text/plain; x=1", True)
    assert log(tmp_path) == f"{answer.decode()}\n"


async def test_who_gives_up_waiting_for_the_earlier_try_does_not_say_that_nothing_ran(tmp_path: Path) -> None:
    connector = Writing(workspaces(tmp_path))
    engine = staging_engine(connector, SystemClock())
    first = Call(engine, staged("e1"))
    await connector.inside.wait()
    end = await Call(engine, staged("e2", timeout_seconds=0.05)).end()
    assert end.fault is not None and end.ended is Ended.TIMEOUT
    assert not end.fault.not_started
    connector.go_on.set()
    await first.end()


async def test_a_speculation_is_merged_as_its_call_and_the_call_is_answered_with_its_result(tmp_path: Path) -> None:
    connector = Writing(workspaces(tmp_path))
    connector.go_on.set()
    engine = staging_engine(connector, SystemClock())
    await Call(engine, ahead("S.1.1")).end()
    assert [await engine.merge(OWNER, "S.1.1", name="f") for _ in range(2)] == [1, 1]
    connector.line = "second"
    later = staging_engine(Writing(workspaces(tmp_path), line="third"), SystemClock())
    for worker in (engine, later):  # also after a restart
        end = await Call(worker, staged("e2")).end()
        assert end.result is not None and (end.ended, end.result.content) == (Ended.OK, b"first")
    assert await later.merge(OWNER, "S.1.1", name="f") == 1
    assert log(tmp_path) == "first\n"


async def test_an_owner_that_comes_late_merges_nothing(tmp_path: Path) -> None:
    """It commits a speculation for a call that another owner has executed, and whose content is still what it was."""
    connector = Writing(workspaces(tmp_path))
    connector.go_on.set()
    engine = staging_engine(connector, SystemClock())
    await Call(engine, staged("e1")).end()
    await Call(engine, ahead("S.1.1")).end()
    with pytest.raises(Aborted) as caught:
        await engine.merge(OWNER, "S.1.1", name="f")
    assert caught.value.reason is ErrorReason.STATE_CONFLICT
    await engine.drop(OWNER, "S.1.1")
    assert log(tmp_path) == "first\n"


async def test_who_gives_up_while_a_speculation_is_merged_does_not_say_that_nothing_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connector = Writing(workspaces(tmp_path))
    connector.go_on.set()
    engine = staging_engine(connector, SystemClock())
    await Call(engine, ahead("S.1.1")).end()
    gate = Gate(Workspace._merge)
    monkeypatch.setattr(Workspace, "_merge", lambda *arguments: gate(*arguments))  # noqa: PLW0108  (binds self)
    async with asyncio.timeout(20):
        merging = asyncio.ensure_future(engine.merge(OWNER, "S.1.1", name="f"))
        await gate.inside.wait()
        waiting = Call(engine, staged("e2", timeout_seconds=0.05))
        await asyncio.sleep(0.2)
        gate.go_on.set()
        end = await waiting.end()
        await merging
    assert end.fault is None or not end.fault.not_started
    assert log(tmp_path) == "first\n"


async def test_an_answer_too_long_to_keep_is_reported_as_lost(tmp_path: Path) -> None:
    connector = Writing(workspaces(tmp_path), answer_bytes=1024**2 + 1)
    connector.go_on.set()
    engine = staging_engine(connector, SystemClock())
    assert (await Call(engine, staged("e1")).end()).ended is Ended.OK
    end = await Call(engine, staged("e2")).end()
    assert end.fault is not None and end.ended is Ended.OUTCOME_UNKNOWN
    assert "lost" in end.fault.message and not end.fault.not_started
    assert log(tmp_path) == "first\n"


async def test_the_last_64_answers_are_kept_over_a_restart(tmp_path: Path) -> None:
    connector = Writing(workspaces(tmp_path))
    connector.go_on.set()
    engine = staging_engine(connector, SystemClock())
    for number in range(66):
        connector.line = str(number)
        await Call(engine, staged(f"e{number}", f"f{number}")).end()
    later = staging_engine(Writing(workspaces(tmp_path)), SystemClock())
    kept = [(await Call(later, staged("e", f"f{number}")).end()).result for number in range(66)]
    assert [None if one is None else one.content.decode() for one in kept] == [
        None, None, *(str(number) for number in range(2, 66)),
    ]  # fmt: skip
