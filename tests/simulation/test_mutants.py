"""A few planted bugs; `make sim-mutants` plants all."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulation import hunt as hunting
from tests.simulation.mutants import BY_NAME, MUTANTS, Mutant, planted


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_place_of_each_planted_bug_is_there_and_whole_again_afterwards(mutant: Mutant) -> None:
    module, _, path = mutant.place.partition(":")
    before = _at(module, path)
    with planted(mutant):
        assert _at(module, path) is not before
    assert _at(module, path) is before


@pytest.mark.parametrize(
    ("name", "invariant"), [("intent-not-journalled", "3"), ("line-doubled", "2"), ("principal-not-in-identity", "9")]
)
def test_a_planted_bug_is_caught(name: str, invariant: str) -> None:
    catch = hunting.hunt(name, first=1, seeds=12)
    assert catch.seed is not None
    assert catch.text.startswith(f"{invariant}: ")


def test_where_nothing_is_planted_nothing_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    place = "forerun.core.session.lookup:fresh"
    monkeypatch.setitem(BY_NAME, "harmless", Mutant("harmless", place, _unchanged))
    assert hunting.hunt("harmless", first=1, seeds=2).seed is None


def _at(module: str, path: str) -> object:
    found: object = __import__(module, fromlist=["_"])
    for part in path.split("."):
        found = vars(found)[part]
    return found


def _unchanged(function: Callable[..., object]) -> Callable[..., object]:
    def planted_one(*given: object, **named: object) -> object:
        return function(*given, **named)

    return planted_one
