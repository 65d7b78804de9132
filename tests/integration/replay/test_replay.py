"""`forerun replay` of the synthetic set, as a person calls it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forerun.cli.main import main

DATA = Path(__file__).resolve().parents[2] / "data"
TRACES = DATA / "traces" / "orders_agents.jsonl"

Replay = Callable[..., dict[str, Any]]


@pytest.fixture
def replay(capsys: pytest.CaptureFixture[str]) -> Replay:
    def run(*arguments: str, files: tuple[Path, ...] = (TRACES,), code: int = 0) -> dict[str, Any]:
        names = [str(path) for path in files]
        assert main(["replay", *names, *arguments, "--json"]) == code
        figures = json.loads(capsys.readouterr().out)
        assert isinstance(figures, dict)
        return figures

    return run


@pytest.mark.timeout(300)
def test_with_half_of_the_tasks_learned_forerun_saves_what_can_be_saved_and_nothing_differs(replay: Replay) -> None:
    figures = replay("--train", str(TRACES))
    assert figures["diverged"] == 0
    assert figures["sessions"] + figures["trained_on"] == 48
    assert figures["oracle_s"] < figures["parallel_s"] < figures["sequential_s"]
    assert figures["saved_pct"] > 5.0
    assert figures["saved_pct_ci95"][0] > 0.0
    assert 0.5 < figures["oracle_share"] <= 1.01
    assert sum(figures["outcomes"].values()) == figures["launched"]
    assert figures["hit_rate"] > 0.5
    assert sum(row["launched"] for row in figures["per_tool"].values()) == figures["launched"]
    assert sum(row["calls"] for row in figures["per_tool"].values()) == figures["calls"]
    assert figures["per_tool"]["cancel_order"]["launched"] == 0
    assert figures["overhead_ms"]["n"] > 0
    assert figures["charged_ms"] > 0.0


@pytest.mark.timeout(300)
def test_untrained_and_switched_off_it_costs_next_to_nothing(replay: Replay) -> None:
    figures = replay("--control", "off", "--sessions", "8")
    assert (figures["diverged"], figures["launched"], figures["memo_hits"]) == (0, 0, 0)
    assert figures["sessions"] == 8
    assert figures["oracle_s"] is None
    # What is charged for each call is all that is lost.
    lost = figures["forerun_s"] - figures["parallel_s"]
    assert lost == pytest.approx(figures["charged_ms"] / 1000.0 * figures["calls"], abs=1e-3 * figures["calls"])


@pytest.mark.timeout(300)
def test_a_predictor_that_turns_wrong_is_paid_from_the_budget_until_its_sites_are_off(replay: Replay) -> None:
    figures = replay("--control", "all-wrong")
    assert figures["diverged"] == 0
    assert figures["hit_rate"] == 0.0
    wrong = figures["all_wrong"]
    assert wrong["holds"]
    assert figures["forerun_s"] <= wrong["off_s"] * 1.02
    assert 0 < wrong["sites_off"] <= wrong["sites"]
    assert wrong["calls_until_off"] <= 50
    # Two credits at the start of a session, and 0.3 for each call.
    assert 10 <= figures["launched"] <= 2 * figures["sessions"] + 0.3 * figures["calls"]


@pytest.mark.timeout(300)
def test_a_planted_harm_is_found_by_the_hold_out_and_nothing_where_nothing_is(replay: Replay) -> None:
    figures = replay("--control", "harm")
    assert figures["saved_pct"] == pytest.approx(-5.0, abs=0.1)
    holdout = figures["holdout"]
    assert holdout["holds"]
    assert holdout["found"] >= 80
    assert 930 <= holdout["quiet"] <= 970


@pytest.mark.timeout(300)
def test_an_a_a_comparison_finds_no_difference(replay: Replay) -> None:
    figures = replay("--control", "aa")
    assert figures["saved_pct"] == pytest.approx(0.0, abs=1e-9)
    assert figures["diverged"] == 0


@pytest.mark.timeout(300)
def test_the_bound_on_amplification_holds(replay: Replay) -> None:
    figures = replay("--control", "all-wrong", "--max-amplification", "1.1", "--sessions", "8")
    assert figures["amplification"] <= 1.1


@pytest.mark.timeout(300)
def test_the_same_seed_gives_the_same_figures(replay: Replay) -> None:
    arguments = ("--train", str(TRACES), "--sessions", "3", "--seed", "3")
    first, again = replay(*arguments), replay(*arguments)
    for measured in (
        "overhead_ms",
        "charged_ms",
        "forerun_s",
        "oracle_s",
        "saved_pct",
        "saved_pct_ci95",
        "oracle_share",
    ):
        del first[measured], again[measured]  # they hold the measured overhead
    assert first == again


@pytest.mark.timeout(300)
def test_an_answer_that_depends_on_more_than_the_contract_says_is_found(replay: Replay, tmp_path: Path) -> None:
    """A policy that calls a write a read lets it be answered from memory: the world notices."""
    rules = json.loads((DATA / "policies" / "orders_agents.json").read_text())
    rules["tools"]["cancel_order"] = {"effect": "read", "resource": "orders"}
    wrong = tmp_path / "wrong.json"
    wrong.write_text(json.dumps(rules))
    figures = replay("--policy", str(wrong), "--sessions", "8")
    # Judge and platform follow the same contracts, so the only difference is in what is recorded at one position.
    assert figures["nondeterministic"] > 0
    assert figures["diverged"] == 0


@pytest.mark.timeout(300)
def test_without_a_policy_every_call_is_a_write(replay: Replay, tmp_path: Path) -> None:
    lonely = tmp_path / "runs" / "orders_agents.jsonl.gz"
    lonely.parent.mkdir()
    lonely.write_bytes(gzip.compress(TRACES.read_bytes()))
    figures = replay("--sessions", "4", files=(lonely,))
    assert (figures["speculable_calls"], figures["launched"], figures["diverged"]) == (0, 0, 0)
    assert figures["oracle_share"] is None


@pytest.mark.timeout(300)
def test_in_real_time_the_real_processes_give_the_same_observations(replay: Replay) -> None:
    figures = replay("--train", str(TRACES), "--clock", "real", "--scale", "0.05", "--sessions", "4")
    assert figures["clock"] == "real"
    assert figures["scale"] == 0.05
    assert figures["charged_ms"] is None
    assert figures["diverged"] == 0
    assert figures["sessions"] == 4
    assert sum(figures["outcomes"].values()) == figures["launched"]


def test_what_is_missing_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["replay", str(tmp_path / "nowhere.jsonl.gz")]) == 3
    assert "nowhere.jsonl.gz" in capsys.readouterr().err.replace("\n", "")


def test_what_is_no_trace_is_wrong_use(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    broken = tmp_path / "broken.jsonl"
    broken.write_text("nothing\n")
    assert main(["replay", str(broken)]) == 2
    assert "broken.jsonl" in capsys.readouterr().err.replace("\n", "")


@pytest.mark.parametrize(
    "arguments", [["--scale", "0"], ["--sessions", "0"], ["--max-amplification", "0.5"], ["--clock", "x"]]
)
def test_wrong_options_are_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["replay", str(TRACES), *arguments])
    assert ended.value.code == 2
