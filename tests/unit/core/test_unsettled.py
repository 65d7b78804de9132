"""The index of shared resources whose last write may still take effect."""

from __future__ import annotations

import pytest

from forerun.core import limits
from forerun.core.freshness import dependencies
from forerun.core.resources import ROOT
from forerun.core.unsettled import Unsettled


def test_a_resource_is_not_trusted_for_as_long_as_the_longest_call() -> None:
    index = Unsettled().adding(["orders/7"], 100.0)
    marks = index.marks(100.0)
    for read, touched in (
        ("orders/7", True),
        ("orders", True),
        (ROOT, True),
        ("orders/7/lines", True),
        ("users/1", False),
    ):
        assert bool(marks & set(dependencies([read]))) is touched
    assert index.marks(99.9 + limits.UNSETTLED_SECONDS)
    assert not index.marks(100.0 + limits.UNSETTLED_SECONDS)


def test_a_second_write_extends_it_and_what_is_over_is_left_out() -> None:
    index = Unsettled().adding(["a", "b"], 0.0).adding(["a"], 100.0).adding(["c"], limits.UNSETTLED_SECONDS)
    assert set(index.until) == {"a", "c"}


def test_it_says_until_when_its_marks_are_right() -> None:
    index = Unsettled().adding(["a"], 0.0).adding(["b"], 100.0)
    ends = [limits.UNSETTLED_SECONDS, 100.0 + limits.UNSETTLED_SECONDS]
    assert [index.next_end(now) for now in (0.0, ends[0], ends[1])] == [*ends, float("inf")]
    assert index.marks(ends[0]) < index.marks(ends[0] - 1.0)


def test_it_survives_its_encoding() -> None:
    index = Unsettled().adding(["orders/7", "Straße/ü", ROOT], 1_700_000_000.25)
    assert Unsettled.decode(index.encode(), 0.0) == index


@pytest.mark.parametrize(
    "keys", [[f"o/{n}" for n in range(limits.UNSETTLED_KEYS + 1)], ["x" * 1_000 + str(n) for n in range(40)]]
)
def test_above_its_bounds_it_is_everything(keys: list[str]) -> None:
    index = Unsettled()
    for number, key in enumerate(keys):
        index = index.adding([key], float(number))
        assert len(index.encode()) <= limits.UNSETTLED_BYTES
    assert index.marks(100.0) & set(dependencies(["users/1"]))
    assert index.until[ROOT] >= limits.UNSETTLED_SECONDS


@pytest.mark.parametrize("damaged", [b"", b"[]", b"null", b"\xff", b'{"a": "soon"}', b'{"a": null}'])
def test_what_cannot_be_read_means_everything(damaged: bytes) -> None:
    assert Unsettled.decode(damaged, 100.0).until == {ROOT: 100.0 + limits.UNSETTLED_SECONDS}
