"""What a model server is told while it runs, and that damaged orders change nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from forerun.core.tokens.ceiling import Ceiling, CeilingSource, ceiling
from forerun.serving.backend.orders import BOUNDS, ERASURES, LOOK_SECONDS, Bounds, Orders, known_erasures
from forerun.serving.orders import OrderFolder


@pytest.mark.parametrize(
    ("pool", "off", "silent", "expected"),
    [
        (None, False, 0.0, Ceiling(None, CeilingSource.PROFILE)),
        (3, False, 0.0, Ceiling(3, CeilingSource.POOL)),
        (3, True, 0.0, Ceiling(0, CeilingSource.SWITCH)),
        (3, False, 10.0, Ceiling(3, CeilingSource.POOL)),
        (3, False, 10.1, Ceiling(3, CeilingSource.UNHEARD)),
        (3, True, 10.1, Ceiling(0, CeilingSource.UNHEARD)),
        (None, False, 10.1, Ceiling(None, CeilingSource.UNHEARD)),
    ],
)
def test_what_was_said_last_holds_and_a_long_silence_is_said(
    pool: int | None, off: bool, silent: float, expected: Ceiling
) -> None:
    assert ceiling(pool, off=off, silent_seconds=silent, bound_seconds=10.0) == expected


def test_bounds_never_raise_what_a_profile_allows() -> None:
    assert Bounds(Ceiling(3, CeilingSource.POOL)).most("t", 7) == 3
    assert Bounds(Ceiling(9, CeilingSource.POOL)).most("t", 7) == 7
    assert Bounds(Ceiling(-1, CeilingSource.POOL)).most("t", 7) == 0
    assert Bounds().most("t", 7) == 7
    assert Bounds(off=frozenset({"t"})).most("t", 7) == 0
    assert Bounds(off=frozenset({"t"})).most("u", 7) == 7


class Loop:
    """A loop that is told."""

    def __init__(self, folder: Path | None) -> None:
        self.now = 0.0
        self.bounds: list[Bounds] = []
        self.erased: list[Mapping[str, str]] = []
        self.orders = Orders(folder, lambda: self.now, bounded=self.bounds.append, erased=self.erased.append)

    def pass_after(self, seconds: float) -> Bounds:
        self.now += seconds
        return self.orders.look()


def test_what_is_ordered_holds_from_the_next_look_on(tmp_path: Path) -> None:
    folder, loop = OrderFolder(tmp_path / "orders"), Loop(tmp_path / "orders")
    assert loop.pass_after(LOOK_SECONDS) == Bounds(), "nobody has ordered anything"
    wanted = Bounds(Ceiling(2, CeilingSource.POOL), frozenset({"acme"}))
    folder.bound(wanted)
    folder.erased({"acme": "first"})
    assert loop.pass_after(LOOK_SECONDS / 2) == Bounds(), "not with every pass"
    assert loop.pass_after(LOOK_SECONDS) == wanted
    folder.bound(Bounds())
    assert loop.orders.look(at_once=True) == Bounds()
    assert (loop.bounds, loop.erased) == ([wanted, Bounds()], [{"acme": "first"}]), "each is told once"


def test_what_cannot_be_read_leaves_what_held_and_is_said_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, loop = OrderFolder(tmp_path), Loop(tmp_path)
    wanted = Bounds(Ceiling(2, CeilingSource.POOL))
    folder.bound(wanted)
    assert loop.pass_after(1.0) == wanted
    (tmp_path / BOUNDS).write_text('{"depth": "')
    (tmp_path / ERASURES).write_text("[1]")
    for _ in range(3):
        assert loop.pass_after(1.0) == wanted
    assert capsys.readouterr().err.count("cannot be read") == 2
    (tmp_path / BOUNDS).unlink()
    assert loop.pass_after(1.0) == wanted


def test_what_was_erased_is_known_unknown_or_nobodys_business(tmp_path: Path) -> None:
    assert known_erasures(None) == {}
    assert known_erasures(tmp_path) is None
    folder = OrderFolder(tmp_path)
    folder.erased(None)
    assert known_erasures(tmp_path) is None
    folder.erased({"acme": "first"})
    assert known_erasures(tmp_path) == {"acme": "first"}
    (tmp_path / ERASURES).write_text("{")
    assert known_erasures(tmp_path) is None
