"""Argument texts of provider streams (case A7) and Python results (case A11)."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest

from forerun.core import limits
from forerun.core.canonical import CanonicalError, canonical, parse_strict
from forerun.core.intake import IntakeError, sanitise, split_arguments
from forerun.core.schema import parse_schema

ANYTHING = parse_schema(b'{"type":"object"}')
QUOTE = parse_schema(b'{"type":"object","properties":{"ticker":{"type":"string"}},"required":["ticker"]}')
LOOKUP = parse_schema(b'{"type":"object","properties":{"id":{"type":"string"}},"required":["id"]}')


def test_a_placeholder_before_the_real_object_is_one_call() -> None:
    assert split_arguments('{}{"ticker":"ACME"}', QUOTE) == [{"ticker": "ACME"}]
    assert split_arguments('{} {"ticker":"ACME"}', None) == [{"ticker": "ACME"}]


def test_glued_objects_are_all_kept_in_order() -> None:
    assert split_arguments('{"p":"a"}{"p":"b"}\n{"p":"c"}', ANYTHING) == [{"p": "a"}, {"p": "b"}, {"p": "c"}]
    assert split_arguments("{}{}", ANYTHING) == [{}, {}]
    assert split_arguments('{}{"p":1}{"p":2}', ANYTHING) == [{}, {"p": 1}, {"p": 2}]


def test_a_brace_in_a_string_does_not_split() -> None:
    assert split_arguments('{"code":"}{"}', ANYTHING) == [{"code": "}{"}]


@pytest.mark.parametrize("text", ["", " ", "\n", "{}"])
def test_blank_means_no_arguments_and_is_then_validated(text: str) -> None:
    assert split_arguments(text, ANYTHING) == [{}]
    with pytest.raises(IntakeError) as caught:
        split_arguments(text, LOOKUP)
    assert caught.value.reason == "missing_required"
    assert caught.value.fields == ("id",)
    assert "id" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "reason", "piece"),
    [
        ('{"p":"a"}{"p":', "syntax", 1),
        ('{"p":"a"}, {"p":"b"}', "syntax", 1),
        ('{"p":"a"}x', "syntax", 1),
        ('{"p":1,"p":2}', "duplicate_key", 0),
        ('{"p":NaN}', "not_a_number", 0),
        ("[1]", "not_an_object", 0),
        ('{"p":1}"x"', "not_an_object", 1),
        ("null", "not_an_object", 0),
        ("3", "not_an_object", 0),
        ('{"p":"\ud800"}', "lone_surrogate", 0),
        pytest.param(
            "{}" * (limits.ARGUMENT_PIECES + 1), "too_many_calls", limits.ARGUMENT_PIECES, id="too many objects"
        ),
        pytest.param('{"p":"' + "x" * limits.ARGUMENTS_BYTES + '"}', "too_large", 0, id="too large"),
    ],
)
def test_what_cannot_be_split_without_loss_is_one_error(text: str, reason: str, piece: int) -> None:
    with pytest.raises(IntakeError) as caught:
        split_arguments(text, ANYTHING)
    assert (caught.value.reason, caught.value.piece) == (reason, piece)


def test_one_invalid_piece_refuses_all() -> None:
    with pytest.raises(IntakeError) as caught:
        split_arguments('{"ticker":"A"}{"tick":"B"}', QUOTE)
    assert caught.value.piece == 1
    assert "object 2 of 2" in str(caught.value)


def test_numbers_that_json_does_not_have_become_null_with_their_paths() -> None:
    result = sanitise({"mean": float("nan"), "rows": [1, float("inf"), {"a b": Decimal("-Infinity")}], "ok": 0.1})
    assert result.value == {"mean": None, "rows": [1, None, {"a b": None}], "ok": Decimal("0.1")}
    assert result.replaced == ("$.mean", "$.rows[1]", '$.rows[2]["a b"]')
    assert json.loads(canonical(result.value), parse_constant=pytest.fail) is not None


def test_results_keep_their_values() -> None:
    value = {"n": 2**70, "f": 2.5, "t": (1, "x"), "b": True, "z": None, "e": {}}
    result = sanitise(value)
    assert result.replaced == ()
    assert parse_strict(canonical(result.value)) == {**value, "t": [1, "x"]}


@pytest.mark.parametrize(
    ("value", "reason", "path"),
    [
        ({"a": [object()]}, "unsupported_type", "$.a[0]"),
        ({"a": {3: 1}}, "unsupported_type", "$.a"),
        ([b"x"], "unsupported_type", "$[0]"),
        ({"a": "\udc80"}, "lone_surrogate", "$.a"),
    ],
)
def test_results_that_json_cannot_hold_are_named(value: object, reason: str, path: str) -> None:
    with pytest.raises(CanonicalError) as caught:
        sanitise(value)
    assert (caught.value.reason, caught.value.path) == (reason, path)
