"""What a plan looks like before it runs."""

from __future__ import annotations

import pytest

from forerun.core.plan import PlanError
from forerun.core.plan.analysis import Conflict, analyse
from tests.unit.plan.driver import Driver, contract_of, ok, task


def test_waves_longest_chain_and_conflicts() -> None:
    found = analyse(
        [
            task("1", q="a"),
            task("2", "write", path="$1.path"),
            task("3", "read", path="f"),
            task("4", "calc", x="$3"),
            task("5", q="a"),
            task("6", "mystery"),
            task("7", q="b"),
        ],
        contract_of,
    )
    assert found.waves == ((0, 4), (1,), (2,), (3,), (5,), (6,))
    assert found.critical_path == (0, 1, 2, 3, 5, 6)
    assert found.steps[4].same_as == 0 and found.steps[3].refers == (2,)
    assert found.conflicts[0] == Conflict(1, 2, ("notes/f",)), "what 2 writes is not known yet"
    assert {(one.first, one.second, one.keys) for one in found.conflicts[1:]} >= {(0, 5, ("*",)), (5, 6, ("*",))}
    assert [step.alone for step in found.steps].index(True) == 5


def test_nothing_and_no_plan() -> None:
    assert analyse([], contract_of).waves == () and analyse([], contract_of).critical_path == ()
    with pytest.raises(PlanError):
        analyse([task("1", q="$1")], contract_of)


def test_waves_are_those_of_a_run() -> None:
    tasks = [task("1", q="a"), *(task(str(n), "write", path=f"{n % 3}", text=f"${n // 2}") for n in range(2, 15))]
    driver = Driver()
    wave, waves = driver.add(*tasks, complete=True), []
    while wave:
        waves.append(wave)
        wave = sorted((one for ended in wave for one in driver.end(ended, ok(1))), key=int)
    assert [[tasks[index].id for index in indexes] for indexes in analyse(tasks, contract_of).waves] == waves
