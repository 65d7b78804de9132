"""Slots, preemption, promotion, deadlines and results, under virtual time. Cases K5, K8, A2, A19."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from forerun.runtime.clock import LoopClock
from forerun.runtime.errors import AlreadyExists, ErrorReason, NotFound, ResourceExhausted, Unavailable, never_started
from forerun.runtime.ids import SeededIds
from forerun.runtime.virtual import run_virtual
from forerun.sandbox.connectors.port import Ended, ToolFault
from forerun.sandbox.owner import Owner
from forerun.sandbox.worker.execution import Request
from forerun.sandbox.worker.slots import Priority
from forerun.sandbox.workspaces.store import Workspaces
from forerun.sandbox.workspaces.strategy import Strategy
from forerun.sandbox.workspaces.workspace import WorkspaceLimits
from tests.unit.sandbox.fakes import Rig, Scripted, invocation, python_tool

_AHEAD = Priority.SPECULATIVE
Scenario = Callable[[Rig], Awaitable[None]]


def run(scenario: Scenario, tmp_path: Path, connector: Scripted | None = None, **slots: int) -> Rig:
    rigs: list[Rig] = []

    async def main(clock: LoopClock, _: SeededIds) -> None:
        rig = Rig(clock, Workspaces(tmp_path, Strategy.COPY, WorkspaceLimits(), clock), connector, **slots)
        rigs.append(rig)
        await scenario(rig)
        assert rig.slots.taken(speculative=True) == rig.slots.taken(speculative=False) == rig.slots.waiting == 0
        assert rig.connector.running == 0

    run_virtual(main)
    return rigs[0]


def now() -> float:
    return asyncio.get_running_loop().time()


def test_a_call_runs_and_is_accounted_for(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        finished = await rig.ask().end()
        assert (finished.ended, finished.seconds, finished.queued_seconds) == (Ended.OK, 1.0, 0.0)
        assert finished.result is not None and finished.result.content == b"done"
        assert finished.digest == f"sha256:{hashlib.sha256(b'done').hexdigest()}"

    assert len(run(scenario, tmp_path).ends) == 1


def test_speculation_gets_a_free_slot_at_once_or_none(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        ahead = [rig.ask("t", _AHEAD) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(ResourceExhausted) as refused:
            rig.engine.execute(Request("late", invocation(speculative=True), _AHEAD))
        assert refused.value.reason is ErrorReason.NO_FREE_SLOT
        assert now() == 0.0
        assert rig.slots.authoritative_free == 4
        await asyncio.gather(*(call.end() for call in ahead))

    run(scenario, tmp_path)


def test_speculation_never_takes_the_slots_of_real_work(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        real = [rig.ask() for _ in range(4)]
        await asyncio.sleep(0.5)
        assert rig.slots.speculative_free == 0
        with pytest.raises(ResourceExhausted):
            rig.engine.execute(Request("late", invocation(speculative=True), _AHEAD))
        await asyncio.gather(*(call.end() for call in real))
        assert rig.connector.peak == 4

    run(scenario, tmp_path)


def test_a_full_worker_sends_the_youngest_speculation_away_at_once(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        old, young = rig.ask("old", _AHEAD), rig.ask("young", _AHEAD)
        first = [rig.ask(), rig.ask()]
        await asyncio.sleep(0.5)
        # The victim takes three seconds to die; the real call does not wait for that.
        real = rig.ask("real")
        await asyncio.sleep(0.1)
        assert real.started_at == 0.5
        gone = await young.end()
        assert (gone.ended, gone.preempted) == (Ended.CANCELLED, True)
        assert gone.fault is not None and gone.fault.reason is ErrorReason.PREEMPTED
        assert rig.connector.cancelled == ["young"]
        assert (await old.end()).ended is Ended.OK
        await asyncio.gather(*(call.end() for call in first), real.end())

    run(scenario, tmp_path, Scripted(unkillable_seconds=3.0))


def test_audits_leave_before_speculations(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        audit, ahead = rig.ask("audit", Priority.AUDIT), rig.ask("ahead", _AHEAD)
        real = [rig.ask() for _ in range(3)]
        assert (await audit.end()).preempted
        assert not (await ahead.end()).preempted
        await asyncio.gather(*(call.end() for call in real))

    run(scenario, tmp_path)


def test_real_work_waits_only_when_all_slots_do_real_work(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        calls = [rig.ask() for _ in range(6)]
        await asyncio.sleep(0.5)
        assert rig.slots.waiting == 2
        ends = await asyncio.gather(*(call.end() for call in calls))
        assert [end.queued_seconds for end in ends] == [0.0] * 4 + [1.0] * 2

    run(scenario, tmp_path)


def test_the_queue_is_bounded_and_a_taken_back_wait_leaves_it(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        running = [rig.ask() for _ in range(4)]
        waiting = rig.ask("waiting")
        refused = rig.ask("refused")
        end = await refused.end()
        assert end.fault is not None
        assert (end.ended, end.fault.reason, end.fault.not_started) == (Ended.REJECTED, ErrorReason.QUEUE_FULL, True)
        waiting.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting.task
        taken_back = rig.ends[-1].fault
        assert taken_back is not None and taken_back.not_started
        assert rig.slots.waiting == 0
        await asyncio.gather(*(call.end() for call in running))
        assert "waiting" not in rig.connector.started

    run(scenario, tmp_path, queue=1)


def test_a_tool_has_its_own_limit_and_real_calls_send_its_speculations_away(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        ahead = rig.ask("one", _AHEAD, limit=1)
        await asyncio.sleep(0.1)
        with pytest.raises(ResourceExhausted):
            rig.engine.execute(Request("x", invocation(python_tool("one"), speculative=True), _AHEAD, 1))
        real, second, other = rig.ask("one", limit=1), rig.ask("one", limit=1), rig.ask("other", limit=1)
        ends = await asyncio.gather(real.end(), second.end(), other.end())
        assert (await ahead.end()).preempted
        assert [end.queued_seconds for end in ends] == [0.0, 1.0, 0.0]

    run(scenario, tmp_path)


def test_800_calls_with_a_limit_of_16_are_all_answered(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        ends = await asyncio.gather(*(rig.ask(limit=16).end() for _ in range(800)))
        assert all(end.ended is Ended.OK for end in ends)
        assert rig.connector.peak == 16

    run(scenario, tmp_path, authoritative=32, queue=800)


def test_a_promoted_speculation_is_safe_from_preemption_and_gets_its_deadline(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        joined = rig.ask("joined", _AHEAD, timeout_seconds=1.2)
        await asyncio.sleep(1.0)
        assert rig.engine.promote("acme", joined.id, 10.0) == 1.0
        assert rig.engine.promote("acme", joined.id, 10.0) == 1.0
        assert rig.slots.speculative_free == 2
        real = [rig.ask() for _ in range(4)]
        end = await joined.end()
        assert (end.ended, end.promoted, end.preempted, end.seconds) == (Ended.OK, True, False, 2.0)
        assert rig.slots.waiting == 0
        await asyncio.gather(*(call.end() for call in real))

    run(scenario, tmp_path, Scripted(seconds=2.0))


def test_promotion_comes_too_late_for_what_has_ended_or_is_leaving(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        done = rig.ask("done", _AHEAD)
        await done.end()
        leaving = rig.ask("leaving", _AHEAD)
        await asyncio.sleep(0.1)
        real = [rig.ask() for _ in range(4)]
        await asyncio.sleep(0.1)
        for call in (done, leaving):
            with pytest.raises(NotFound):
                rig.engine.promote("acme", call.id, 5.0)
        await asyncio.gather(leaving.end(), *(call.end() for call in real))

    run(scenario, tmp_path, Scripted(unkillable_seconds=1.0), speculative=1, authoritative=3)


def test_the_deadline_stops_the_tool(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        end = await rig.ask(timeout_seconds=0.25).end()
        assert end.fault is not None
        assert (end.ended, end.fault.reason, end.seconds) == (Ended.TIMEOUT, ErrorReason.TOOL_TIMEOUT, 0.25)
        assert not end.fault.not_started
        assert rig.connector.cancelled == ["t"]

    run(scenario, tmp_path)


@pytest.mark.parametrize("certain", [True, False])
def test_an_end_without_an_answer_is_certain_only_where_the_connector_says_so(tmp_path: Path, certain: bool) -> None:
    async def scenario(rig: Rig) -> None:
        end = await rig.ask(timeout_seconds=0.25).end()
        assert end.may_continue is not certain
        stopped = rig.ask()
        await asyncio.sleep(0.1)
        await rig.engine.end("acme", stopped.id)
        assert (await stopped.end()).may_continue is not certain
        assert not (await rig.ask().end()).may_continue, "an answer is an end"

    run(scenario, tmp_path, Scripted(certain=certain))


def test_what_never_reached_its_tool_cannot_go_on(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        running = [rig.ask() for _ in range(4)]
        waiting = rig.ask("waiting")
        await asyncio.sleep(0.1)
        await rig.engine.end("acme", waiting.id)
        end = await waiting.end()
        assert end.fault is not None and end.fault.not_started and not end.may_continue
        await asyncio.gather(*(call.end() for call in running))

    run(scenario, tmp_path, Scripted(certain=False))


def test_an_answer_that_names_no_end_and_a_defect_of_ours_are_no_ends(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        rig.connector.fail = RuntimeError("a defect")
        assert (await rig.ask().end()).may_continue
        rig.connector.fail, rig.connector.accepted_only = None, True
        end = await rig.ask().end()
        assert (end.ended, end.may_continue) == (Ended.OK, True)

    run(scenario, tmp_path)


def test_whoever_stops_an_execution_hears_when_its_tool_has_ended(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        loop = asyncio.get_running_loop()
        call = rig.ask()
        await asyncio.sleep(0.5)
        first = asyncio.ensure_future(rig.engine.end("acme", call.id))
        await asyncio.sleep(0.5)
        await rig.engine.end("acme", call.id)
        await first
        assert (loop.time(), rig.connector.running) == (2.5, 0)
        assert (await call.end()).ended is Ended.CANCELLED
        for tenant in ("acme", "globex"):
            with pytest.raises(NotFound):
                await rig.engine.end(tenant, call.id)

    run(scenario, tmp_path, Scripted(seconds=5.0, unkillable_seconds=2.0))


def test_a_tool_that_ignores_its_end_is_not_called_ended(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        call = rig.ask()
        await asyncio.sleep(0.5)
        with pytest.raises(Unavailable):
            await rig.engine.end("acme", call.id)
        assert rig.connector.running == 1
        await call.end()

    run(scenario, tmp_path, Scripted(seconds=5.0, unkillable_seconds=60.0))


def test_a_deadline_in_the_queue_says_that_nothing_ran(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        running = [rig.ask() for _ in range(4)]
        end = await rig.ask("late", timeout_seconds=0.5).end()
        assert end.fault is not None and end.fault.not_started and end.seconds == 0.0
        await asyncio.gather(*(call.end() for call in running))

    run(scenario, tmp_path)


def test_a_caller_who_hangs_up_stops_the_tool_before_it_is_gone(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        call = rig.ask()
        await asyncio.sleep(0.3)
        call.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call.task
        assert rig.connector.cancelled == ["t"]
        assert now() == pytest.approx(0.8)  # the half second that the tool took to stop was waited for

    run(scenario, tmp_path, Scripted(unkillable_seconds=0.5))


def test_a_connector_sees_that_an_agent_began_to_wait(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        request = Request("e", invocation(speculative=True), _AHEAD)
        steps = rig.engine.execute(request)
        await asyncio.sleep(0.5)
        seen = [request.invocation.speculative]
        rig.engine.promote("acme", "e", 10.0)
        assert [*seen, request.invocation.speculative] == [True, False]
        assert [type(step).__name__ async for step in steps] == ["Started", "Finished"]

    run(scenario, tmp_path)


def test_a_call_that_is_taken_back_before_its_first_step_gives_its_slot_back(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        steps = rig.engine.execute(Request("e", invocation(speculative=True), _AHEAD))
        await rig.engine.close_session(Owner("acme", "s1"))
        kinds = [type(step).__name__ async for step in steps]
        assert kinds == ["Finished"]
        assert rig.connector.started == []

    run(scenario, tmp_path)


def test_long_answers_of_real_calls_come_as_they_are_made(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        call = rig.ask()
        end = await call.end()
        assert b"".join(data for _, data in call.chunks) == b"aaaaaabbbbbbcccccc"
        assert [at for at, _ in call.chunks] == [2.0, 2.0, 3.0]
        assert end.result is not None and end.result.content == b""
        assert end.size_bytes == 18

    run(scenario, tmp_path, Scripted(seconds=3.0, chunks=(b"aaaaaa", b"bbbbbb", b"cccccc")))


def test_chunks_of_a_speculation_are_held_back_until_its_end(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        call = rig.ask("t", _AHEAD)
        await call.end()
        assert {at for at, _ in call.chunks} == {3.0}
        assert b"".join(data for _, data in call.chunks) == b"aaaaaabbbbbbcccccc"

    run(scenario, tmp_path, Scripted(seconds=3.0, chunks=(b"aaaaaa", b"bbbbbb", b"cccccc")))


def test_promotion_lets_the_held_chunks_go(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        call = rig.ask("t", _AHEAD)
        await asyncio.sleep(2.5)
        assert call.chunks == []
        rig.engine.promote("acme", call.id, 10.0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert b"".join(data for _, data in call.chunks) == b"aaaaaabbbbbb"
        await call.end()
        assert b"".join(data for _, data in call.chunks) == b"aaaaaabbbbbbcccccc"

    run(scenario, tmp_path, Scripted(seconds=3.0, chunks=(b"aaaaaa", b"bbbbbb", b"cccccc")))


def test_the_cap_of_a_contract_cuts_in_the_middle(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        call = rig.ask(output_cap_bytes=8)
        await call.end()
        whole = b"".join(data for _, data in call.chunks)
        assert whole == b"HEAD\n[... 92 bytes omitted ...]\nTAIL"

    run(scenario, tmp_path, Scripted(answer=b"HEAD" + b"x" * 92 + b"TAIL"))


def test_faults_keep_their_meaning_and_defects_are_not_claimed_to_be_harmless(tmp_path: Path) -> None:
    fault = ToolFault(
        Ended.UNAVAILABLE, ErrorReason.RATE_LIMITED, "slow down", retry_after_seconds=7.0, not_started=True
    )

    async def limited(rig: Rig) -> None:
        assert (await rig.ask().end()).fault is fault

    async def defect(rig: Rig) -> None:
        end = await rig.ask().end()
        assert end.fault is not None
        assert (end.ended, end.fault.reason) == (Ended.OUTCOME_UNKNOWN, ErrorReason.INTERNAL)
        assert "boom" not in end.fault.message

    run(limited, tmp_path, Scripted(fail=fault))
    run(defect, tmp_path, Scripted(fail=RuntimeError("boom")))


def test_a_failure_of_our_own_after_the_tool_was_reached_does_not_say_that_nothing_ran(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        end = await rig.ask().end()
        assert end.fault is not None and end.fault.reason is ErrorReason.LIMIT_DISK
        assert not end.fault.not_started

    run(scenario, tmp_path, Scripted(fail=ResourceExhausted(ErrorReason.LIMIT_DISK, "full")))


def test_ids_are_used_once_at_a_time(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        call = rig.ask()
        await asyncio.sleep(0.1)
        with pytest.raises(AlreadyExists):
            rig.engine.execute(Request(call.id, invocation(), Priority.AUTHORITATIVE))
        await call.end()

    run(scenario, tmp_path)


def test_stopping_ends_speculation_at_once_and_lets_real_work_finish(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        ahead, real, slow = rig.ask("ahead", _AHEAD), rig.ask("real"), rig.ask("slow")
        await asyncio.sleep(0.2)
        stopping = asyncio.ensure_future(rig.engine.stop(5.0))
        await asyncio.sleep(0.1)
        assert (await ahead.end()).ended is Ended.CANCELLED
        with pytest.raises(Unavailable) as refused:
            rig.engine.execute(Request("new", invocation(), Priority.AUTHORITATIVE))
        assert never_started(refused.value)  # so that a call that may not be repeated goes elsewhere
        assert (await real.end()).ended is (await slow.end()).ended is Ended.OK
        await stopping

    run(scenario, tmp_path)
