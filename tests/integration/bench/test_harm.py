"""The benchmark of harm finds what it looks for: speculations that hold up the calls of others."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from forerun.cli.replay.traces import RecordedCall, Session, Step
from forerun.cli.replay.workload import Selection, Workload, load
from forerun.runtime.clock import LoopClock
from forerun.runtime.ids import SeededIds
from forerun.runtime.virtual import run_virtual
from tests.bench.harm import EXACT, LIMIT_PCT, OFF, QUICK, WRONG, Core, Costs, beginning, compared, in_virtual_time
from tests.bench.results import Row

TRACES = Path(__file__).resolve().parents[2] / "data" / "traces" / "orders_agents.jsonl"


@pytest.fixture(scope="module")
def workload() -> Workload:
    return load(Selection(files=(TRACES,), train=(TRACES,), sessions=12, tool_seconds=2.0))


def test_a_core_serves_one_after_the_other() -> None:
    async def main(_clock: LoopClock, _ids: SeededIds) -> tuple[list[float], float]:
        loop, core, done = asyncio.get_running_loop(), Core(), list[float]()
        began_at = loop.time()

        async def work(seconds: float) -> None:
            await core.serve(seconds)
            done.append(loop.time() - began_at)

        await asyncio.gather(work(3.0), work(1.0), work(2.0))
        await asyncio.sleep(10.0)
        await work(0.5)
        return done, core.busy_seconds

    done, busy = run_virtual(main, seed=1)
    assert done == pytest.approx([3.0, 4.0, 6.0, 16.5]) and busy == pytest.approx(6.5)


def test_costs_are_what_each_way_of_a_call_adds() -> None:
    rows = [
        Row(name=f"CPU of {name}, 4 sessions", value=sum(both.values()), unit="ms", more={"cpu_by_process": both})
        for name, both in (
            ("event", {"a": 1.0, "b": 8.0}), ("memo hit", {"a": 2.0, "b": 0.0}),
            ("miss", {"a": 5.0, "b": 3.0}), ("ready hit", {"a": 9.0, "b": 6.0}),
        )
    ]  # fmt: skip
    costs = Costs.of(rows, 4, ("a",))
    assert (costs.event, costs.answer, costs.execution, costs.speculation) == pytest.approx(
        (0.001, 0.002, 0.003, 0.006)
    )
    assert Costs.of(rows, 4, ("a", "b")).execution == pytest.approx(0.006)


def test_a_window_has_the_first_steps_of_a_session_that_fit() -> None:
    call = RecordedCall("look", b"{}", "", False, 2.0, "")
    steps = tuple(Step(turn, (), 3.0, "", (call,)) for turn in range(1, 6))
    session = Session("one", "agents", "task", steps)
    assert [step.turn for step in beginning(session, 11.0).steps] == [1, 2]
    assert [step.turn for step in beginning(session, 0.1).steps] == [1]


@pytest.mark.parametrize("milliseconds", [1.0, 4_000.0])
@pytest.mark.timeout(300)
def test_dear_speculations_on_a_shared_core_are_found(workload: Workload, milliseconds: float) -> None:
    costs = Costs(event=0.001, answer=0.002, execution=0.003, speculation=milliseconds / 1_000.0)
    arms = in_virtual_time(workload, QUICK, costs, lambda _: None)
    assert arms[OFF].ahead == 0 < min(arms[EXACT].ahead, arms[WRONG].ahead)
    harm = {name: compared(name, arms[OFF].runs, arms[name].runs, {}).value for name in (EXACT, WRONG)}
    assert all(value is not None for value in harm.values())
    assert (harm[WRONG] > LIMIT_PCT) is (milliseconds > 1_000.0)  # type: ignore[operator]
    if milliseconds < 1_000.0:
        assert harm[EXACT] < 0.0  # type: ignore[operator]
