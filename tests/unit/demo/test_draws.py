"""Drawn times: the measured quantiles, the same for the same key everywhere."""

import math

import pytest

from forerun.cli.demo.draws import FAST_SCALE, KIND_OF_TOOL, Draws, Kind, drawn_seconds, fraction, logical_session


def test_fraction_is_pinned_so_that_every_machine_draws_the_same() -> None:
    assert fraction(1, "R01", "model", 1) == 0.02271120078897554
    assert fraction("ä") == 0.6536290313894837


def test_fractions_spread_evenly_over_similar_keys() -> None:
    values = sorted(fraction(7, f"R{index:02d}") for index in range(2000))
    largest_gap = max(abs(value - (index + 0.5) / 2000) for index, value in enumerate(values))
    assert largest_gap < 1.63 / math.sqrt(2000)  # Kolmogorov and Smirnov's bound at 1 %


@pytest.mark.parametrize("kind", list(Kind))
def test_draws_have_the_measured_quantiles_and_are_cut_at_p90(kind: Kind) -> None:
    values = sorted(drawn_seconds(kind, 3, "session", index) for index in range(4000))
    assert values[2000] == pytest.approx(kind.p50_seconds, rel=0.08)
    assert values[-1] == kind.p90_seconds
    cut = sum(value == kind.p90_seconds for value in values) / len(values)
    assert cut == pytest.approx(0.1, abs=0.02)


def test_the_same_action_takes_the_same_time_whatever_the_order_of_its_arguments() -> None:
    draws = Draws(1, 1.0)
    one = draws.tool_seconds("K01", "edit_file", {"path": "a", "old": "b", "new": "c"})
    assert one == draws.tool_seconds("K01", "edit_file", {"new": "c", "old": "b", "path": "a"})


def test_another_seed_session_tool_or_argument_is_another_draw() -> None:
    draws = Draws(1, 1.0)
    base = draws.tool_seconds("R01", "fetch", {"id": "a"})
    assert base != Draws(2, 1.0).tool_seconds("R01", "fetch", {"id": "a"})
    assert base != draws.tool_seconds("R02", "fetch", {"id": "a"})
    assert base != draws.tool_seconds("R01", "search", {"id": "a"})
    assert base != draws.tool_seconds("R01", "fetch", {"id": "b"})
    assert draws.model_seconds(Kind.RESEARCH_MODEL, "R01", 1) != draws.model_seconds(Kind.RESEARCH_MODEL, "R01", 2)


def test_fast_is_a_twentieth_of_every_time() -> None:
    slow, fast = Draws(5, 1.0), Draws(5, FAST_SCALE)
    for tool in KIND_OF_TOOL:
        assert fast.tool_seconds("K01", tool, {}) * 20 == pytest.approx(slow.tool_seconds("K01", tool, {}))
    model = Kind.CODING_MODEL
    assert fast.model_seconds(model, "K01", 1) * 20 == pytest.approx(slow.model_seconds(model, "K01", 1))


def test_runs_share_the_logical_session() -> None:
    assert logical_session("forerun.R07") == logical_session("sequential.R07") == logical_session("R07") == "R07"
