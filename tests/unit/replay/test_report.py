"""Figures of a replay."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from forerun.cli.replay.agent import Observed, SessionRun
from forerun.cli.replay.controls import HarmStudy, WrongStudy
from forerun.cli.replay.divergence import Difference
from forerun.cli.replay.report import Results, as_json, print_table
from forerun.cli.replay.scoring import OUTCOMES, Counts, Overhead, paired_overhead, saved_on_first_sessions, tool_rows
from forerun.cli.replay.traces import RecordedCall, Session, Step
from forerun.client import Totals
from forerun.v1 import common_pb2, ledger_pb2

KEYS = {
    "files", "sessions", "calls", "sequential_s", "parallel_s", "forerun_s", "oracle_s", "saved_pct", "saved_pct_ci95",
    "oracle_share", "launched", "outcomes", "memo_hits", "hit_rate", "coverage", "amplification", "waste_s", "diverged",
    "speculable_calls", "trained_on", "overhead_ms", "charged_ms", "clock", "scale", "tool_seconds", "control",
    "imputed_times", "nondeterministic", "per_tool", "holdout",
}  # fmt: skip


def session(task: str, tools: tuple[str, ...] = ("look",)) -> Session:
    calls = tuple(RecordedCall(tool, b"{}", "", False, 1.0, "c") for tool in tools)
    return Session(f"f/{task}", "f", task, (Step(1, (), 1.0, "", calls),))


def run(task: str, wall_seconds: float, *seconds: float, served: str = "direct") -> SessionRun:
    observed = tuple(Observed(b"", False, "ok", served, one, one) for one in seconds)
    return SessionRun(session(task, ("look",) * len(seconds)), wall_seconds, (observed,))


def results(**changes: object) -> Results:
    counts = Counts()
    counts.add(Totals(calls=2, launched=4, outcomes={"ready": 1, "miss": 3}, speculable_calls=2, memo_hits=1))
    given: dict[str, object] = {
        "files": ("f",),
        "sequential": (run("a", 12.0, 1.0), run("b", 12.0, 1.0)),
        "parallel": (run("a", 10.0, 1.0), run("b", 10.0, 1.0)),
        "forerun": (run("a", 9.0, 1.0), run("b", 7.0, 1.0)),
        "oracle": (run("a", 6.0, 1.0), run("b", 6.0, 1.0)),
        "counts": counts,
        "tool_rows": {},
        "executions": 5,
        "differences": (),
        "trained_on": 3,
        "overhead": Overhead((1.0, 2.0, 3.0)),
        "charged_ms": 2.0,
        "clock": "virtual",
        "scale": 1.0,
        "tool_seconds": None,
        "control": None,
        "imputed_times": 1,
        "nondeterministic": 0,
        "seed": 1,
    } | changes
    return Results(**given)  # type: ignore[arg-type]  # fields by name, checked by the dataclass


def test_a_control_says_in_keys_of_its_own_whether_it_holds() -> None:
    wrong = WrongStudy(off_seconds=16.0, wrong_seconds=16.0, sites=3, off=2, slowest=50)
    one = results(wrong=wrong)
    assert as_json(one)["all_wrong"] == {
        "off_s": 16.0,
        "sites": 3,
        "sites_off": 2,
        "calls_until_off": 50,
        "holds": True,
    }
    assert one.holds
    assert not results(wrong=replace(wrong, slowest=51)).holds
    assert not results(wrong=replace(wrong, wrong_seconds=16.4)).holds
    assert not results(harm=HarmStudy(None, 79, 950)).holds
    assert not results(harm=HarmStudy(None, 100, 929)).holds
    assert results(harm=HarmStudy(None, 80, 970)).holds


def test_the_object_has_the_agreed_keys_and_its_ratios() -> None:
    figures = as_json(results())
    assert set(figures) == KEYS
    assert figures["saved_pct"] == pytest.approx(20.0)
    assert figures["oracle_share"] == pytest.approx(0.5)
    assert figures["hit_rate"] == pytest.approx(0.25)
    assert figures["coverage"] == pytest.approx(0.5)
    assert figures["amplification"] == pytest.approx(2.5)
    assert figures["overhead_ms"] == {"p50": 2.0, "p99": pytest.approx(2.98), "n": 3}
    assert set(figures["outcomes"]) == set(OUTCOMES)  # type: ignore[call-overload]
    interval = figures["saved_pct_ci95"]
    assert isinstance(interval, list)
    assert 10.0 <= interval[0] <= 20.0 <= interval[1] <= 30.0
    json.dumps(figures)


def test_unknown_is_none_never_zero() -> None:
    alone = (run("a", 10.0, 1.0),)
    figures = as_json(
        results(sequential=alone, parallel=alone, forerun=alone, oracle=alone, counts=Counts(), overhead=Overhead(()))
    )
    assert figures["oracle_share"] is None
    assert figures["saved_pct_ci95"] is None
    assert figures["hit_rate"] is None
    assert figures["overhead_ms"] == {"p50": None, "p99": None, "n": 0}
    assert as_json(results(oracle=None))["oracle_s"] is None


def test_sessions_of_one_task_are_resampled_together() -> None:
    sessions = [run("same", float(n), 1.0) for n in range(1, 9)]
    assert as_json(results(parallel=sessions, forerun=sessions))["saved_pct_ci95"] is None


def test_first_sessions_of_tasks_are_told_apart_from_repeats() -> None:
    parallel = [run("a", 10.0, 1.0), run("a", 10.0, 1.0), run("b", 10.0, 1.0)]
    forerun = [run("a", 9.0, 1.0), run("a", 2.0, 1.0), run("b", 8.0, 1.0)]
    assert saved_on_first_sessions(parallel, forerun) == pytest.approx(15.0)


def test_per_tool_rows_come_from_runs_and_ledger_lines() -> None:
    def line(tool: str, outcome: common_pb2.Outcome.ValueType, wasted: float) -> ledger_pb2.LedgerLine:
        kind = ledger_pb2.LEDGER_KIND_SPECULATION
        return ledger_pb2.LedgerLine(kind=kind, tool=tool, outcome=outcome, wasted_seconds=wasted)

    lines = [
        line("look", common_pb2.OUTCOME_READY, 0.0),
        line("look", common_pb2.OUTCOME_MISS, 1.5),
        line("other", common_pb2.OUTCOME_JOINED, 0.0),
        ledger_pb2.LedgerLine(kind=ledger_pb2.LEDGER_KIND_CALL, tool="look"),
    ]
    rows = tool_rows([run("a", 1.0, 1.0, 1.0)], lines)
    assert {tool: (row.calls, row.launched, row.hits, row.waste_s) for tool, row in rows.items()} == {
        "look": (2, 2, 1, 1.5),
        "other": (0, 1, 1, 0.0),
    }


def test_overhead_of_a_hit_is_its_whole_time_and_of_a_miss_what_was_added() -> None:
    direct = [run("a", 1.0, 1.0), run("b", 1.0, 1.0), run("c", 1.0, 1.0), run("d", 1.0, 1.0, 2.0)]
    mine = [
        run("a", 1.0, 1.003),
        run("b", 1.0, 0.002, served="ready"),
        run("c", 1.0, 0.4, served="joined"),
        run("d", 1.0, 1.0, 2.0),
    ]
    assert paired_overhead(mine, direct).milliseconds == pytest.approx((3.0, 2.0))


def test_the_table_shows_seconds_beside_per_cents_and_what_diverged() -> None:
    console = Console(file=io.StringIO(), width=160, color_system=None)
    print_table(results(differences=(Difference("f/a", "observation", "look", 2),)), console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    for expected in ("ordered parallel", "20.00", "4.00", "20.000", "perfect prediction", "f/a at call 3"):
        assert expected in text
