"""Whether what was read may have been written since (case K3)."""

from __future__ import annotations

import pytest

from forerun.core.freshness import Freshness, Generations, bumps, dependencies, fresh, recorded


def test_marks_grow_with_depth_only() -> None:
    assert dependencies(["a/b"]) == ("self:a/b", "below:a/b", "self:a", "self:*")
    assert bumps(["a/b"]) == ("self:a/b", "below:a", "below:*")
    assert bumps(["*"]) == ("self:*",)
    assert dependencies(["*"]) == ("self:*", "below:*")
    assert dependencies(["a", "a"]) == ("self:a", "below:a", "self:*")
    assert dependencies([]) == ()


@pytest.mark.parametrize(
    ("read", "write", "still_fresh"),
    [
        ("orders/7", "orders/7", False),
        ("orders/7", "orders", False),
        ("orders", "orders/7", False),
        ("orders/7", "*", False),
        ("*", "orders/7", False),
        ("orders/7", "orders/8", True),
        ("orders/7", "orders/7/lines", False),
        ("orders/7/lines", "orders/70", True),
        ("orders", "users/1", True),
    ],
)
def test_a_write_is_heard_by_every_read_that_it_may_have_changed(read: str, write: str, still_fresh: bool) -> None:
    generations = Generations()
    generations.bump(["users/1", "orders/7"])
    was = recorded(generations, [read])
    generations.bump([write])
    verdict = fresh(was, generations, 0.0, None)
    assert verdict.fresh is still_fresh
    assert bool(verdict.mark) is not still_fresh


def test_a_failed_write_counts_because_it_is_counted_when_it_starts_and_ends() -> None:
    generations = Generations()
    generations.bump(["users/1"])  # update_user starts
    during = recorded(generations, ["users/1"])
    generations.bump(["users/1"])  # and ends with an error, after it changed the row
    assert fresh(during, generations, 0.0, None).state is Freshness.WRITTEN
    assert fresh(recorded(generations, ["users/1"]), generations, 0.0, None).fresh


@pytest.mark.parametrize(
    ("age", "limit", "state"),
    [
        (1e9, None, Freshness.FRESH),
        (9.99, 10.0, Freshness.FRESH),
        (10.0, 10.0, Freshness.TOO_OLD),
        (0.0, 0.0, Freshness.TOO_OLD),
        (float("nan"), 10.0, Freshness.TOO_OLD),
    ],
)
def test_age(age: float, limit: float | None, state: Freshness) -> None:
    generations = Generations()
    assert fresh(recorded(generations, ["report"]), generations, age, limit).state is state


def test_a_write_outweighs_age() -> None:
    generations = Generations()
    was = recorded(generations, ["a"])
    generations.bump(["a"])
    verdict = fresh(was, generations, 100.0, 1.0)
    assert (verdict.state, verdict.mark) == (Freshness.WRITTEN, "self:a")


def test_what_reads_nothing_is_never_written() -> None:
    generations = Generations()
    was = recorded(generations, [])
    generations.bump(["*"])
    assert fresh(was, generations, 1e9, None).fresh


def test_a_plain_mapping_serves_as_well() -> None:
    was = recorded({}, ["a/b"])
    assert fresh(was, {"self:z": 4}, 0.0, None).fresh
    assert not fresh(was, {"below:a/b": 1}, 0.0, None).fresh
    assert not fresh(recorded({"self:a": 3}, ["a/b"]), {}, 0.0, None).fresh  # lost generations are no proof


def test_memory_is_bounded_and_folding_makes_everything_stale() -> None:
    generations = Generations(max_marks=50)
    was = recorded(generations, ["quiet"])
    for number in range(1_000):
        generations.bump([f"orders/{number}"])
        assert len(generations) <= 50
    assert not fresh(was, generations, 0.0, None).fresh
    again = recorded(generations, ["quiet"])
    assert fresh(again, generations, 0.0, None).fresh
    assert generations.bump([]) == ()
