"""The figures of a replay, for people and for scripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.table import Table

from forerun.cli.replay import scoring
from forerun.cli.replay.agent import SessionRun
from forerun.cli.replay.controls import HarmStudy, WrongStudy
from forerun.cli.replay.divergence import Difference
from forerun.cli.replay.scoring import Counts, Overhead, ToolRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """What all arms gave.

    Attributes:
        files: Names of the scored files.
        sequential, parallel, forerun: The runs of each arm, in the same order. `forerun` is what the control replaces.
        oracle: The runs with perfect prediction; None where a control made them meaningless.
        counts: What the platform says of the Forerun arm.
        tool_rows: The same by tool.
        executions: Executions of the Forerun arm, from the tool server's log.
        differences: Observations and writes of the Forerun and oracle arms that differ from the sequential arm.
        trained_on: Sessions learned from.
        overhead: What the platform adds to a call.
        charged_ms: What each authoritative call was charged under the virtual clock; None with the real one.
        clock, scale, tool_seconds, control: What was asked for.
        imputed_times, nondeterministic: Of the data.
        seed: Of the interval.
        harm: Of the control `harm`.
        wrong: Of the control `all-wrong`.
    """

    files: Sequence[str]
    sequential: Sequence[SessionRun]
    parallel: Sequence[SessionRun]
    forerun: Sequence[SessionRun]
    oracle: Sequence[SessionRun] | None
    counts: Counts
    tool_rows: Mapping[str, ToolRow]
    executions: int
    differences: Sequence[Difference]
    trained_on: int
    overhead: Overhead
    charged_ms: float | None
    clock: str
    scale: float
    tool_seconds: float | None
    control: str | None
    imputed_times: int
    nondeterministic: int
    seed: int
    harm: HarmStudy | None = None
    wrong: WrongStudy | None = None

    @property
    def holds(self) -> bool:
        """Nothing diverged, and what the control must show is shown."""
        studies = (self.harm, self.wrong)
        return not self.differences and all(study.holds for study in studies if study is not None)


def as_json(results: Results) -> dict[str, object]:
    """The object that `--json` prints. Unknown is None."""
    parallel, forerun = scoring.seconds_of(results.parallel), scoring.seconds_of(results.forerun)
    oracle = None if results.oracle is None else scoring.seconds_of(results.oracle)
    calls = sum(run.session.calls for run in results.forerun)
    counts = results.counts
    return {
        "files": list(results.files),
        "sessions": len(results.forerun),
        "calls": calls,
        "sequential_s": scoring.seconds_of(results.sequential),
        "parallel_s": parallel,
        "forerun_s": forerun,
        "oracle_s": oracle,
        "saved_pct": scoring.saved(parallel, forerun),
        "saved_pct_ci95": scoring.interval_by_task(results.parallel, results.forerun, results.seed),
        "oracle_share": None if oracle is None else scoring.oracle_share(parallel, forerun, oracle),
        "launched": counts.launched,
        "outcomes": dict(counts.outcomes),
        "memo_hits": counts.memo_hits,
        "hit_rate": scoring.ratio(counts.hits, counts.launched),
        "coverage": scoring.ratio(counts.hits, counts.speculable_calls),
        "amplification": scoring.ratio(results.executions, calls),
        "waste_s": counts.wasted_seconds,
        "diverged": len(results.differences),
        "speculable_calls": counts.speculable_calls,
        "trained_on": results.trained_on,
        "overhead_ms": results.overhead.row(),
        "charged_ms": results.charged_ms,
        "clock": results.clock,
        "scale": results.scale,
        "tool_seconds": results.tool_seconds,
        "control": results.control,
        "imputed_times": results.imputed_times,
        "nondeterministic": results.nondeterministic,
        "per_tool": {tool: asdict(row) for tool, row in results.tool_rows.items()},
        "holdout": {"share": 0.0, "sessions": 0} if results.harm is None else results.harm.row(),
    } | ({} if results.wrong is None else {"all_wrong": results.wrong.row()})


def print_table(results: Results, console: Console) -> None:
    """Prints what people want to know: absolute seconds beside per cents."""
    figures = as_json(results)
    console.print(_times(results, figures))
    console.print(_counts(results, figures))
    if results.tool_rows:
        console.print(_tools(results.tool_rows))
    for difference in results.differences[:_SHOWN_DIFFERENCES]:
        place = "" if difference.place is None else f" at call {difference.place + 1}"
        console.print(f"[red]diverged:[/] {difference.session}{place}: {difference.what} of {difference.tool}")


_SHOWN_DIFFERENCES = 20
_SHOWN_TOOLS = 25


def _times(results: Results, figures: Mapping[str, object]) -> Table:
    parallel = scoring.seconds_of(results.parallel)
    table = Table(title=f"{', '.join(results.files)}: {figures['sessions']} sessions, {figures['calls']} calls")
    for column in ("", "seconds", "saved against parallel, s", "%"):
        table.add_column(column, justify="left" if not column else "right")
    arms = [("sequential", results.sequential), ("ordered parallel", results.parallel)]
    arms.append((results.control or "Forerun", results.forerun))
    if results.oracle is not None:
        arms.append(("perfect prediction", results.oracle))
    for name, runs in arms:
        seconds = scoring.seconds_of(runs)
        percent = scoring.saved(parallel, seconds)
        text = "" if percent is None else f"{percent:.3f}{_interval(figures) if runs is results.forerun else ''}"
        table.add_row(name, f"{seconds:.2f}", f"{parallel - seconds:.2f}", text)
    return table


def _interval(figures: Mapping[str, object]) -> str:
    interval = figures["saved_pct_ci95"]
    return f" [{interval[0]:.3f}, {interval[1]:.3f}]" if isinstance(interval, list) else ""


def _counts(results: Results, figures: Mapping[str, object]) -> Table:
    table = Table(show_header=False)
    outcomes = figures["outcomes"]
    shown = (
        ("trained on", f"{figures['trained_on']} sessions"),
        ("share of perfect prediction", _number(figures["oracle_share"])),
        ("saved on first sessions of tasks, %", _number(_on_first_sessions(results))),
        ("launched", str(figures["launched"])),
        (
            "outcomes",
            ", ".join(f"{name} {n}" for name, n in outcomes.items() if n) if isinstance(outcomes, dict) else "",
        ),
        ("memo hits", str(figures["memo_hits"])),
        ("hit rate / coverage", f"{_number(figures['hit_rate'])} / {_number(figures['coverage'])}"),
        ("amplification", _number(figures["amplification"])),
        ("waste", f"{_number(figures['waste_s'])} s"),
        ("diverged", str(figures["diverged"])),
        ("overhead per call, ms", _overhead(figures["overhead_ms"])),
        ("charged per call, ms", _number(figures["charged_ms"])),
        ("imputed times / nondeterministic reads", f"{figures['imputed_times']} / {figures['nondeterministic']}"),
        (
            "clock, scale, median tool seconds",
            f"{figures['clock']}, {figures['scale']}, {_set(figures['tool_seconds'])}",
        ),
    )
    for name, value in (*shown, *_studies(results)):
        table.add_row(name, value)
    return table


def _studies(results: Results) -> list[tuple[str, str]]:
    """What the control found, for people."""
    harm, wrong = results.harm, results.wrong
    lines = []
    if harm is not None:
        lines += [
            ("planted harm found", f"{harm.found} of {harm.seeds} assignments (at least 80 needed)"),
            ("nothing found in equal pairs", f"{harm.quiet} of {harm.pairs} (930 to 970 needed)"),
        ]
        if harm.effect is not None:
            one = harm.effect
            lines.append(("one hold-out report", f"{one.saved_pct:.2f} % [{one.low:.2f}, {one.high:.2f}]"))
    if wrong is not None:
        lines += [
            ("with speculation off", f"{wrong.off_seconds:.2f} s (at most 2 % more is allowed)"),
            ("call sites", f"{wrong.sites} with launches, {wrong.off} turned off"),
            ("calls until off", f"at most {wrong.slowest} (50 are allowed)"),
        ]
    return lines


def _on_first_sessions(results: Results) -> float | None:
    return scoring.saved_on_first_sessions(results.parallel, results.forerun)


def _tools(rows: Mapping[str, ToolRow]) -> Table:
    table = Table(title="by tool, most calls first")
    for column in ("tool", "calls", "launched", "hits", "waste, s"):
        table.add_column(column, justify="left" if column == "tool" else "right")
    for tool, row in sorted(rows.items(), key=lambda item: -item[1].calls)[:_SHOWN_TOOLS]:
        table.add_row(tool, str(row.calls), str(row.launched), str(row.hits), f"{row.waste_s:.2f}")
    return table


def _number(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, (int, float)) else "unknown"


def _set(value: object) -> str:
    return "as recorded" if value is None else str(value)


def _overhead(row: object) -> str:
    if not isinstance(row, dict):
        return ""
    return f"p50 {_number(row['p50'])}, p99 {_number(row['p99'])}, n {row['n']}"
