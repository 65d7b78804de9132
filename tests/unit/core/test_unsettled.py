"""The index of shared resources that a write may be changing."""

from __future__ import annotations

import math

import pytest

from forerun.core import limits
from forerun.core.freshness import dependencies
from forerun.core.resources import ROOT
from forerun.core.unsettled import OwnWrites, Unsettled

NOW = 1_700_000_000.0
AFTER = limits.UNSETTLED_SECONDS + limits.CLOCK_SKEW_SECONDS
"""How long nothing is trusted after the last moment of a write."""


def touched(index: Unsettled, read: str, now: float) -> bool:
    """Whether a read is not trusted."""
    return bool(index.marks(now) & set(dependencies([read])))


@pytest.mark.parametrize(
    ("read", "expected"),
    [("orders/7", True), ("orders", True), (ROOT, True), ("orders/7/lines", True), ("users/1", False)],
)
def test_what_conflicts_with_a_registered_resource_is_not_trusted(read: str, expected: bool) -> None:
    assert touched(Unsettled({"a": {"orders/7": NOW + 1.0}}), read, NOW) is expected
    assert not touched(Unsettled({"a": {"orders/7": NOW}}), read, NOW)


def test_a_write_is_registered_for_its_time_and_as_long_as_it_could_be_late() -> None:
    own = OwnWrites()
    own.begin("1", ["orders/7"], 30.0, NOW)
    assert own.part(NOW) == {"orders/7": NOW + 30.0 + AFTER}
    assert own.part(NOW + 29.9 + AFTER) and not own.part(NOW + 30.0 + AFTER)


def test_a_write_that_has_ended_is_taken_off_and_others_of_its_resource_stay() -> None:
    own = OwnWrites()
    own.begin("1", ["a", "b"], 30.0, NOW)
    own.begin("2", ["b"], 10.0, NOW)
    assert own.end("1") and not own.end("1")
    assert own.part(NOW) == {"b": NOW + 10.0 + AFTER}
    own.linger(["b"], NOW + 1.0)
    assert own.end("2")
    assert own.part(NOW + 1.0) == {"b": NOW + 1.0 + AFTER}


def test_a_second_late_write_extends_it() -> None:
    own = OwnWrites()
    own.linger(["a", "b"], NOW)
    own.linger(["a"], NOW + 100.0)
    assert set(own.part(NOW + AFTER)) == {"a"}


def test_late_writes_above_the_bound_are_everything() -> None:
    own = OwnWrites()
    for number in range(limits.UNSETTLED_KEYS + 1):
        own.linger([f"orders/{number}"], NOW + number)
    assert own.part(NOW) == {ROOT: NOW + limits.UNSETTLED_KEYS + AFTER}


def test_clocks_that_differ_do_not_end_it_early() -> None:
    own = OwnWrites()
    own.linger(["a"], NOW)
    index = Unsettled().with_part("one", own.part(NOW), NOW)
    last_effect = NOW + limits.UNSETTLED_SECONDS
    fast = last_effect + limits.CLOCK_SKEW_SECONDS - 0.1
    assert touched(index, "a", fast)
    assert touched(index.with_part("other", {"b": fast + 1.0}, fast), "a", fast), "nor does one that writes"


def test_owners_do_not_touch_each_others_parts_and_what_is_over_is_left_out() -> None:
    index = Unsettled().with_part("one", {"a": NOW + 1.0, "b": NOW + 2.0}, NOW).with_part("two", {"a": NOW + 3.0}, NOW)
    assert index.parts == {"one": {"a": NOW + 1.0, "b": NOW + 2.0}, "two": {"a": NOW + 3.0}}
    assert index.with_part("two", {}, NOW + 1.0).parts == {"one": {"b": NOW + 2.0}}
    assert index.with_part("one", {"c": NOW}, NOW + 2.5).parts == {"two": {"a": NOW + 3.0}}


def test_it_says_until_when_its_marks_are_right() -> None:
    index = Unsettled({"one": {"a": NOW + 1.0}, "two": {"b": NOW + 2.0}})
    assert [index.next_end(NOW + after) for after in (0.0, 1.0, 2.0)] == [NOW + 1.0, NOW + 2.0, math.inf]
    assert index.marks(NOW + 1.0) < index.marks(NOW + 0.9)


def test_it_survives_its_encoding() -> None:
    index = Unsettled({"one": {"orders/7": NOW + 0.25, "Straße/ü": NOW}, "two": {ROOT: NOW + 1.0}})
    assert Unsettled.decode(index.encode(), 0.0) == index


MANY = {f"o/{number}": NOW + number + 1.0 for number in range(limits.UNSETTLED_KEYS + 1)}
LONG = {"x" * 1_000 + str(number): NOW + number + 1.0 for number in range(40)}


@pytest.mark.parametrize("part", [MANY, LONG], ids=["keys", "bytes"])
def test_above_its_bounds_it_is_everything(part: dict[str, float]) -> None:
    others = Unsettled({"other": {"a": NOW + 5.0}})
    index = others.with_part("one", part, NOW)
    assert index.parts == {"other": {"a": NOW + 5.0}, "one": {ROOT: max(part.values())}}
    assert touched(index, "users/1", NOW)
    assert index.with_part("one", {"b": NOW + 1.0}, NOW).parts["one"] == {"b": NOW + 1.0}, "and less again"


def test_others_are_everything_only_where_that_is_not_enough() -> None:
    full = dict(list(MANY.items())[:-1])
    others = Unsettled({"other": full, "small": {"a": NOW + 5.0}})
    index = others.with_part("one", {"b": NOW + 5.0, "c": NOW + 6.0}, NOW)
    assert index.parts == {
        "other": {ROOT: max(full.values())},
        "small": {"a": NOW + 5.0},
        "one": {ROOT: NOW + 6.0},
    }


def test_more_owners_than_keys_are_one() -> None:
    parts = {f"replica-{number}": {"a": NOW + number + 1.0} for number in range(limits.UNSETTLED_KEYS)}
    index = Unsettled(parts).with_part("one", {"b": NOW + 1.0}, NOW)
    assert index.parts == {"": {ROOT: NOW + limits.UNSETTLED_KEYS}}


@pytest.mark.parametrize(
    "damaged", [b"", b"[]", b"null", b"\xff", b'{"a": 1.0}', b'{"a": {"b": "soon"}}', b'{"a": {"b": null}}']
)
def test_what_cannot_be_read_means_everything(damaged: bytes) -> None:
    assert Unsettled.decode(damaged, NOW).parts == {"": {ROOT: NOW + limits.UNSETTLED_SECONDS}}
