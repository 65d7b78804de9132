"""The benchmark of what Forerun costs runs to its end, on the real processes, and writes what it promises."""

from __future__ import annotations

import io
import json
from pathlib import Path

from rich.console import Console

from tests.bench.cases import CASES
from tests.bench.overhead import QUICK, measure, show
from tests.bench.results import Row, write
from tests.bench.stage import PROCESSES, staged


async def test_every_case_is_measured(tmp_path: Path) -> None:
    async with staged() as stage:
        rows = await measure(stage, QUICK, lambda _: None)
        launches = await stage.launches()
    result = json.loads(write("overhead", rows, tmp_path).read_text())
    assert {"bench", "at", "commit", "cpu", "rows"} == result.keys() and result["bench"] == "overhead"
    found = {row["name"]: row for row in result["rows"]}
    level = QUICK.sessions[0]
    for case in CASES:
        row, cpu = found[f"{case.name}, {level} sessions"], found[f"CPU of {case.name}, {level} sessions"]
        assert {"name", "value", "unit", "baseline", "ratio", "n", "spread"} <= row.keys()
        assert row["n"] > 0 and row["spread"][0] <= row["spread"][1], row
        assert row["n"] + row["answered_otherwise"] == QUICK.rounds * QUICK.steps
        assert cpu["cpu_by_process"].keys() == set(PROCESSES)
    assert {name for name in found if name.startswith("memory of")} == {
        f"memory of {name} over {QUICK.memory_minutes:g} min" for name in (*PROCESSES, "all of them")
    }
    assert launches["walk"] > 0 and launches["post"] > 0
    screen = io.StringIO()
    show(rows, Console(file=screen, width=180))
    assert "ready hit" in screen.getvalue() and "orchestrator" in screen.getvalue()


def test_a_ratio_is_known_or_null() -> None:
    assert Row(name="a", value=3.0, unit="ms", baseline=2.0).as_json()["ratio"] == 1.5
    assert Row(name="a", value=None, unit="ms", baseline=2.0).as_json()["ratio"] is None
    assert Row(name="a", value=3.0, unit="ms").as_json()["ratio"] is None
