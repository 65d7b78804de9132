"""From runs of all arms to the figures of `forerun replay`."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from forerun.cli.replay.agent import Observed, SessionRun
from forerun.client import Totals
from forerun.core.statistics import Pair, percentile, saved_pct, saved_pct_interval
from forerun.v1 import common_pb2, ledger_pb2

OUTCOMES = ("ready", "joined", "miss", "stale", "preempted", "expired", "failed", "cancelled")
HITS = ("ready", "joined")
_SERVED_AT_ONCE = ("ready", "memo")


@dataclass(slots=True)
class ToolRow:
    """One tool in the Forerun arm."""

    calls: int = 0
    launched: int = 0
    hits: int = 0
    waste_s: float = 0.0


@dataclass(slots=True)
class Counts:
    """What the platform says of the Forerun arm: the sum of its sessions' totals."""

    calls: int = 0
    launched: int = 0
    outcomes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(OUTCOMES, 0))
    memo_hits: int = 0
    speculable_calls: int = 0
    wasted_seconds: float = 0.0

    def add(self, totals: Totals) -> None:
        """Adds the totals of one session."""
        self.calls += totals.calls
        self.launched += totals.launched
        self.memo_hits += totals.memo_hits
        self.speculable_calls += totals.speculable_calls
        self.wasted_seconds += totals.wasted_seconds
        for outcome, count in totals.outcomes.items():
            self.outcomes[outcome] = self.outcomes.get(outcome, 0) + count

    @property
    def hits(self) -> int:
        """Speculations that a call was answered from."""
        return sum(self.outcomes[outcome] for outcome in HITS)


@dataclass(frozen=True, slots=True)
class Overhead:
    """Milliseconds that the platform adds to calls."""

    milliseconds: tuple[float, ...]

    def row(self) -> dict[str, float | int | None]:
        """p50, p99 and how many calls they are from."""
        values = self.milliseconds
        return {"p50": percentile(values, 0.5), "p99": percentile(values, 0.99), "n": len(values)}


def seconds_of(runs: Sequence[SessionRun]) -> float:
    """Sum over sessions of their wall time."""
    return sum(run.wall_seconds for run in runs)


def ratio(numerator: float, denominator: float) -> float | None:
    """None where there is nothing to divide by."""
    return numerator / denominator if denominator else None


def interval_by_task(parallel: Sequence[SessionRun], forerun: Sequence[SessionRun], seed: int) -> list[float] | None:
    """95 % interval of the saving, resampling tasks."""
    without: dict[str, float] = defaultdict(float)
    with_it: dict[str, float] = defaultdict(float)
    for run in parallel:
        without[run.session.task] += run.wall_seconds
    for run in forerun:
        with_it[run.session.task] += run.wall_seconds
    pairs = [Pair(without[task], with_it[task]) for task in without]
    interval = saved_pct_interval(pairs, random.Random(f"bootstrap:{seed}").random)
    return None if interval is None else list(interval)


def saved(parallel_seconds: float, forerun_seconds: float) -> float | None:
    """Percent of the time of ordinary ordered parallel execution that was saved."""
    return saved_pct([Pair(parallel_seconds, forerun_seconds)])


def saved_on_first_sessions(parallel: Sequence[SessionRun], forerun: Sequence[SessionRun]) -> float | None:
    """Percent saved on the first session of each task alone.

    Several models may have worked on one task. As in production the predictor goes on learning while it is scored, so
    the later sessions of a task come after it has seen the earlier ones; the first sessions are free of that.
    """
    first: dict[str, Pair] = {}
    for without, with_it in zip(parallel, forerun, strict=True):
        first.setdefault(without.session.task, Pair(without.wall_seconds, with_it.wall_seconds))
    return saved_pct(list(first.values()))


def oracle_share(parallel_seconds: float, forerun_seconds: float, oracle_seconds: float) -> float | None:
    """Share of what perfect prediction saves; None where it saves nothing."""
    ceiling = parallel_seconds - oracle_seconds
    return (parallel_seconds - forerun_seconds) / ceiling if ceiling > 1e-6 * max(1.0, parallel_seconds) else None


def tool_rows(runs: Sequence[SessionRun], lines: Iterable[ledger_pb2.LedgerLine]) -> Mapping[str, ToolRow]:
    """Calls, speculations, hits and waste of each tool, from the runs and the ledger lines of their sessions."""
    rows: dict[str, ToolRow] = defaultdict(ToolRow)
    for call in (call for run in runs for step in run.session.steps for call in step.calls):
        rows[call.tool].calls += 1
    for line in lines:
        if line.kind == ledger_pb2.LEDGER_KIND_SPECULATION:
            row = rows[line.tool]
            row.launched += 1
            row.hits += outcome_name(line.outcome) in HITS
            row.waste_s += line.wasted_seconds
    return dict(sorted(rows.items()))


def outcome_name(outcome: common_pb2.Outcome.ValueType) -> str:
    """Lower-case name of an outcome without its prefix."""
    return common_pb2.Outcome.Name(outcome).removeprefix("OUTCOME_").lower()


def paired_overhead(forerun: Sequence[SessionRun], direct: Sequence[SessionRun]) -> Overhead:
    """What the platform added to each call: the whole client time of a hit, else client time minus the direct call.

    Joined calls are left out: they wait for an execution that began earlier, which has no direct counterpart. So are
    calls of messages with several calls, which wait for each other.
    """
    added: list[float] = []
    for mine, theirs in zip(forerun, direct, strict=True):
        for step, other in zip(mine.observed, theirs.observed, strict=True):
            if len(step) == 1:
                value = _added_milliseconds(step[0], other[0])
                if value is not None:
                    added.append(value)
    return Overhead(tuple(added))


def _added_milliseconds(mine: Observed, direct: Observed) -> float | None:
    if mine.served in _SERVED_AT_ONCE:
        return mine.seconds * 1000.0
    return (mine.seconds - direct.seconds) * 1000.0 if mine.served == "direct" else None
