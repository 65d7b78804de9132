"""Measures docs/results.md: `make results DATA=FOLDER` replays every file of recorded runs and writes its tables.

Each row of a table is one `forerun replay --json`; what the commands printed is kept in build/results. The tables stand
between markers, the text around them is written by people.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
PAGE = REPOSITORY / "docs" / "results.md"
KEPT = REPOSITORY / "build" / "results"

Figures = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Row:
    """One replay.

    Attributes:
        name: How the tables call it.
        stem: The trace file, without its endings.
        options: What the command gets beside the file, which it learns from and scores in halves.
        table: `sets` or `controls`.
    """

    name: str
    stem: str
    options: tuple[str, ...] = ()
    table: str = "sets"


TAU2 = "tau2_agents"
ROWS = (
    Row("tau2_agents", TAU2),
    Row("tau2_agents, tools 2 s", TAU2, ("--tool-seconds", "2")),
    Row("tau2_agents, tools 5 s", TAU2, ("--tool-seconds", "5")),
    Row("tau2_agents by entity cluster, tools 2 s", TAU2, ("--tool-seconds", "2", "--split", "cluster")),
    Row("tau_airline_gpt4o", "tau_airline_gpt4o"),
    Row("mcpbench_agents", "mcpbench_agents"),
    Row("livemcpbench_sonnet4", "livemcpbench_sonnet4"),
    Row("swebench_agents", "swebench_agents"),
    Row("coding_real_sessions", "coding_real_sessions"),
    Row("off", TAU2, ("--tool-seconds", "2", "--control", "off"), "controls"),
    Row("all-wrong", TAU2, ("--tool-seconds", "2", "--control", "all-wrong"), "controls"),
    Row("aa", TAU2, ("--tool-seconds", "2", "--control", "aa"), "controls"),
    Row("harm", TAU2, ("--tool-seconds", "2", "--control", "harm"), "controls"),
)

SECONDS = ("sequential_s", "parallel_s", "forerun_s", "oracle_s")
TIME_HEAD = (
    "| set | sessions (learned on) | calls | sequential, s | ordered parallel, s | Forerun, s | perfect prediction, s "
    "| Forerun saved, s | % [95 %] | perfect prediction saved, % |\n"
    "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
)
WORK_HEAD = (
    "| set | launched | outcomes | memo | hit rate | coverage | amplification | waste, s | diverged | charged, ms "
    "| imputed times | nondeterministic |\n"
    "| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
)


def measure(row: Row, data: Path) -> Figures:
    """Runs one replay and keeps what it printed.

    Raises:
        SystemExit: The replay failed; a divergence is a failure.
    """
    file = data / "traces" / f"{row.stem}.jsonl.gz"
    command = [str(Path(sys.executable).with_name("forerun")), "replay", str(file), "--train", str(file)]
    command += [*row.options, "--json"]
    print(f"results: {row.name}", file=sys.stderr)
    run = subprocess.run(command, cwd=REPOSITORY, stdout=subprocess.PIPE, check=False)
    if run.returncode != 0:
        sys.exit(f"results: {' '.join(command)} ended with {run.returncode}")
    KEPT.mkdir(parents=True, exist_ok=True)
    name = "-".join([row.stem, *(option.lstrip("-") for option in row.options)])
    (KEPT / f"{name}.json").write_bytes(run.stdout)
    figures: Figures = json.loads(run.stdout)
    return figures


def time_line(row: Row, one: Figures) -> str:
    """The line of a set in the table of times."""
    low, high = one["saved_pct_ci95"]
    saved = one["parallel_s"] - one["forerun_s"]
    oracle = one["oracle_s"]
    ceiling = "" if oracle is None else f"{100 * (one['parallel_s'] - oracle) / one['parallel_s']:.2f}"
    cells = [
        row.name,
        f"{one['sessions']:,} ({one['trained_on']:,})",
        f"{one['calls']:,}",
        *("" if one[key] is None else f"{one[key]:,.1f}" for key in SECONDS),
        f"{saved:,.1f}",
        f"{one['saved_pct']:.2f} [{low:.2f}, {high:.2f}]",
        ceiling,
    ]
    return f"| {' | '.join(cells)} |"


def work_line(row: Row, one: Figures) -> str:
    """The line of a set in the table of what was done."""
    outcomes = ", ".join(f"{name} {count}" for name, count in one["outcomes"].items() if count)
    cells = [
        row.name,
        f"{one['launched']:,}",
        outcomes or "none",
        f"{one['memo_hits']:,}",
        number(one["hit_rate"]),
        number(one["coverage"]),
        number(one["amplification"]),
        f"{one['waste_s']:,.1f}",
        str(one["diverged"]),
        "" if one["charged_ms"] is None else f"{one['charged_ms']:.1f}",
        f"{one['imputed_times']:,}",
        str(one["nondeterministic"]),
    ]
    return f"| {' | '.join(cells)} |"


def number(value: float | None) -> str:
    """Two decimals; what is not known says so."""
    return "unknown" if value is None else f"{value:.2f}"


def replaced(page: str, name: str, table: str) -> str:
    """The page with another table between the markers of that name."""
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    before, rest = page.split(begin, 1)
    return f"{before}{begin}\n{table}\n{end}{rest.split(end, 1)[1]}"


def main() -> None:
    """Measures what is asked for and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with traces/ and policies/")
    data: Path = parser.parse_args().data.resolve()
    if not (data / "traces").is_dir():
        sys.exit(f"results: {data} has no folder traces; give the folder of recorded runs: make results DATA=FOLDER")
    figures = [(row, measure(row, data)) for row in ROWS]
    page = PAGE.read_text()
    sets = [(row, one) for row, one in figures if row.table == "sets"]
    page = replaced(page, "time", "\n".join([TIME_HEAD, *(time_line(*pair) for pair in sets)]))
    page = replaced(page, "work", "\n".join([WORK_HEAD, *(work_line(*pair) for pair in figures)]))
    controls = [pair for pair in figures if pair[0].table == "controls"]
    page = replaced(page, "controls", "\n".join([TIME_HEAD, *(time_line(*pair) for pair in controls)]))
    PAGE.write_text(page)


if __name__ == "__main__":
    main()
