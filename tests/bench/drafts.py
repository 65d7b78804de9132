"""Tokens per verification pass on recorded messages, of drafts that cost no model.

    python -m tests.bench.drafts [--data DIR] [--tokens N] [--sets NAME...]

Recorded messages are taken for the target's output. Each fold of tasks is scored with a history of the other folds'
outputs; the weights of the evidence start from nothing that was learned, warm up on a sample of the last fold, and then
learn on from fold to fold, always after the pass that is counted. Text and calls are counted apart by where a pass
begins. Prompt look-up and SuffixDecoding run on the same messages.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from forerun.core.tokens.evidence import UNTAUGHT, EvidenceWeights
from forerun.core.tokens.history import History, merge
from tests.bench.drafts_data import FOLDS, SETS, Message, Run, Tokens, load
from tests.bench.drafts_passes import DEPTHS, Passes, Past, contestants, measure
from tests.bench.drafts_ramp import DEPTHS as RAMP_DEPTHS
from tests.bench.drafts_ramp import MACHINES, ramp, steady
from tests.bench.results import REPOSITORY, RESULTS, Row, write

_OURS: Final = 2 * len(DEPTHS)
_TAUGHT: Final = 2  # the chain with 15 drafted tokens: its weights are shown
_CONTEXT_TOKENS: Final = 700_000  # of the runs of a set that are scored; all others are history only
_SECONDS: Final = 540.0
_LEAST_SECONDS: Final = 30.0  # for scoring a set, however long its histories took to sort
_WARM_UP_SHARE: Final = 0.5  # of the tokens that a fold is scored on
_RAMP_RATES: Final = (0.3, 0.6, 0.8)
_GOALS: Final = {  # shared targets: at most 7 and at most 15 drafted
    "tau2": (2.4, 2.7),
    "airline": (3.0, 3.5),
    "MCP": (2.2, 2.4),
    "LiveMCP": (2.0, 2.2),
    "coding": (3.1, 3.5),
    "SWE": (3.7, 4.2),
}


def score_set(name: str, runs: Sequence[Run], tokens: Tokens, wanted: int, until: float) -> list[Row]:
    """All contestants on one set.

    Args:
        name: Of the set.
        runs: Its runs.
        tokens: The tokenizer.
        wanted: Output tokens to be scored; messages are drawn at random from runs that are drawn at random.
        until: Monotonic time after which no further run begins.
    """
    chance = random.Random(0)
    kept = _CONTEXT_TOKENS / max(1, sum(run.context for run in runs))
    scored = [run for run in runs if chance.random() < kept]
    share = min(1.0, wanted / max(1, sum(run.output for run in scored)))
    pasts = [Past([run for run in runs if run.fold != fold], tokens) for fold in range(FOLDS)]
    learned = [EvidenceWeights(UNTAUGHT) for _ in range(_OURS)]
    last = FOLDS - 1
    ours = [one for one in contestants(pasts[last], learned) if one.name.startswith("Forerun")]
    began = time.monotonic()
    until = max(until, began + _LEAST_SECONDS)
    slices = (until - began) / (FOLDS + _WARM_UP_SHARE)
    warmed = began + _WARM_UP_SHARE * slices
    of_last = [run for run in scored if run.fold == last]
    measure(of_last, _WARM_UP_SHARE * share, tokens, ours, seed=FOLDS, until=warmed)
    results: list[list[Passes]] = []
    for fold in range(FOLDS):
        contenders = contestants(pasts[fold], learned)
        of_fold = [run for run in scored if run.fold == fold]
        end = warmed + (fold + 1) * slices
        results.append(measure(of_fold, share, tokens, contenders, seed=fold, until=end))
    labels = [(one.name, one.depth) for one in contestants(pasts[0], learned)]
    rows = [_row(name, label, [one[at] for one in results]) for at, label in enumerate(labels)]
    logs = learned[_TAUGHT].as_json()["logs"]
    return [
        *rows,
        Row(name=f"{name}, weights", value=None, unit="log", n=len(results), more={"set": name, "logs": logs}),
    ]


def _row(name: str, label: tuple[str, int], folds: Sequence[Passes]) -> Row:
    together = Passes()
    for one in folds:
        for part in together.tokens:
            together.tokens[part] += one.tokens[part]
            together.passes[part] += one.passes[part]
        together.microseconds.extend(one.microseconds)
        together.expected += one.expected
    times = sorted(together.microseconds)
    passes = sum(together.passes.values())
    by_fold = [value for one in folds if (value := one.per_pass()) is not None]
    contender, depth = label
    goal = _GOALS[name][DEPTHS.index(depth)] if contender.startswith("Forerun") and name in _GOALS else None
    return Row(
        name=f"{name}, {contender}, {depth} drafted",
        value=together.per_pass(),
        unit="tokens/pass",
        n=sum(together.tokens.values()),
        spread=(min(by_fold), max(by_fold)) if by_fold else None,
        more={
            "set": name,
            "drafter": contender,
            "drafted": depth,
            "text": together.per_pass("text"),
            "calls": together.per_pass("calls"),
            "promised": together.expected / passes if passes else None,
            "goal": goal,
            "proposal_us_p50": times[len(times) // 2] if times else None,
            "proposal_us_p99": times[int(len(times) * 0.99)] if times else None,
        },
    )


def random_target(tokens: Tokens, *, wanted: int = 10_000, seed: int = 1) -> list[Row]:
    """A target whose tokens nobody can know gives exactly one token per pass, or something of the future leaked."""
    chance = random.Random(seed)

    def output(size: int) -> list[int]:
        return [chance.randrange(tokens.end) for _ in range(size)]

    runs = [Run(f"task {number}", "random", [output(50), Message(output(80), output(80))] * 4) for number in range(24)]
    runs = [Run(run.task, run.agent, [_again(event, output) for event in run.events]) for run in runs]
    return score_set("random", runs, tokens, wanted, time.monotonic() + _SECONDS)


def _again(event: Sequence[int] | Message, output: Any) -> Sequence[int] | Message:
    return Message(output(80), output(80)) if isinstance(event, Message) else output(50)


def history_bytes(runs: Sequence[Run], most: int = 100_000) -> Row:
    """Memory of a sorted history."""
    outputs = [one for run in runs for one in run.events if isinstance(one, Message)]
    history = History("tokens", 1 << 22)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for one in outputs:
        if len(history) > most:
            break
        history.append((), [*one.text, *one.calls])
        if history.merge_is_due:
            run, fresh, limit = history.to_merge()
            history.install(merge(run, fresh, limit), len(fresh))
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return Row(name="history", value=used / len(history), unit="B/token", n=len(history))


def ramp_rows() -> list[Row]:
    """Goodput over the ramp of batches with declared step times."""
    rows = []
    for machine in MACHINES:
        for rate in _RAMP_RATES:
            for stretch, level in enumerate(ramp(machine, steady(rate), passes=300)):
                rows.append(
                    Row(
                        name=f"ramp, {machine.name}, acceptance {rate}, stretch {stretch}, batch {level.batch}",
                        value=level.controller,
                        unit="tokens/s",
                        baseline=level.off,
                        more={
                            "machine": machine.name,
                            "acceptance": rate,
                            "stretch": stretch,
                            "batch": level.batch,
                            "of_best_fixed": level.controller / level.best,
                            "fixed": {str(depth): level.fixed[depth] for depth in RAMP_DEPTHS},
                        },
                    )
                )
    return rows


def show(rows: Sequence[Row], console: Console) -> None:
    """Tables for people."""
    table = Table(title="tokens per verification pass (text / calls)")
    for head in (
        "set",
        "drafter",
        *(f"{depth} drafted" for depth in DEPTHS),
        "goal",
        "proposal p50 / p99, us CPU",
        "n",
    ):
        table.add_column(head)
    by_drafter: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if "drafter" in row.more:
            by_drafter.setdefault((row.more["set"], row.more["drafter"]), []).append(row)
    for (name, drafter), found in by_drafter.items():
        goals = [f"{row.more['goal']}" for row in found if row.more["goal"]]
        speeds = "  ".join(
            f"{row.more['proposal_us_p50']:.0f} / {row.more['proposal_us_p99']:.0f}" for row in found if row.n
        )
        table.add_row(name, drafter, *(_figure(row) for row in found), " / ".join(goals), speeds, f"{found[0].n}")
    console.print(table)
    ramps = [row for row in rows if "of_best_fixed" in row.more]
    if ramps:
        off = min(row.value / row.baseline for row in ramps if row.value and row.baseline)
        best = min(row.more["of_best_fixed"] for row in ramps)
        console.print(f"controller on the ramp: at least {off:.3f} of off, at least {best:.3f} of the best fixed depth")
    for row in rows:
        if row.name == "history":
            console.print(f"history: {row.value:.0f} B a token ({row.n} tokens)")


def _figure(row: Row) -> str:
    def of(value: float | None) -> str:
        return "-" if value is None else f"{value:.2f}"

    return f"{of(row.value)} ({of(row.more['text'])} / {of(row.more['calls'])})"


def main() -> int:
    """Measures, prints and writes build/bench/drafts.json; 2 where the recorded runs are absent."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.drafts", description=__doc__)
    # `make bench-drafts DATA=...` hands it on as a variable.
    data = Path(os.environ.get("DATA") or REPOSITORY.parent / "shared" / "data")
    parser.add_argument("--data", type=Path, default=data, help="folder with traces/")
    parser.add_argument("--tokens", type=int, default=30_000, help="output tokens of each set that are scored")
    parser.add_argument("--sets", nargs="+", choices=list(SETS), default=list(SETS))
    parser.add_argument("--seconds", type=float, default=_SECONDS, help="wall time: a slow machine scores fewer tokens")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    if not (options.data / "traces").is_dir():
        print(f"drafts: no recorded runs in {options.data}: name their folder with --data", file=sys.stderr)
        return 2
    console, began = Console(), time.monotonic()
    tokens = Tokens.load()
    rows = random_target(tokens)
    for number, name in enumerate(options.sets):
        runs = load(options.data, name, tokens)
        until = began + options.seconds * (number + 1) / len(options.sets)
        console.print(f"{time.monotonic() - began:.0f} s: {name}, {len(runs)} runs", highlight=False)
        rows += score_set(name, runs, tokens, options.tokens, until)
        if number == 0:
            rows.append(history_bytes(runs))
    rows += ramp_rows()
    file = write("drafts", rows, options.out)
    show(rows, console)
    console.print(f"{time.monotonic() - began:.0f} s; {file}", highlight=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
