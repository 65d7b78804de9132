"""Strict parsing and the one canonical spelling."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import cast

import pytest

from forerun.core import limits
from forerun.core.canonical import CanonicalError, JsonValue, canonical, parse_strict


class MoneyDict(dict[str, object]):
    """A sub-class of dict, as a stand-in for values that carry more than JSON holds."""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b'{"a":1,"a":2}', "duplicate_key"),
        (b'[{"x":{"k":1,"j":0,"k":1}}]', "duplicate_key"),
        (b"[NaN]", "not_a_number"),
        (b"-Infinity", "not_a_number"),
        (b'"\xff"', "invalid_utf8"),
        (b'"\xed\xa0\x80"', "invalid_utf8"),
        (b'"\\ud800"', "lone_surrogate"),
        (b'{"a":["\\udc00x"]}', "lone_surrogate"),
        (b'{"\\ud800":1}', "lone_surrogate"),
        (b'{} {"a":1}', "trailing_text"),
        (b"01", "trailing_text"),
        (b"", "empty"),
        (b" \n", "empty"),
        (b'{"a":1,}', "syntax"),
        (b"{'a':1}", "syntax"),
        (b'"\x01"', "syntax"),
        (b"\xef\xbb\xbf{}", "syntax"),
        (b"1e999999999999999999999", "number_out_of_range"),
        (b"1e-100001", "number_out_of_range"),
        pytest.param(b"7" * (limits.NUMBER_DIGITS + 1), "number_out_of_range", id="too many digits"),
        pytest.param(b"[" * 65 + b"]" * 65, "too_deep", id="65 levels"),
        pytest.param(b"[" * 200_000, "too_deep", id="200,000 levels"),
    ],
)
def test_what_is_not_strict_json_is_refused(text: bytes, reason: str) -> None:
    with pytest.raises(CanonicalError) as caught:
        parse_strict(text)
    assert caught.value.reason == reason


def test_nesting_up_to_the_limit_is_accepted_and_brackets_in_strings_do_not_count() -> None:
    assert parse_strict(b"[" * 64 + b"]" * 64) is not None
    assert parse_strict(b'"' + b"[{" * 500 + b'"') == "[{" * 500


def test_size_is_bounded() -> None:
    with pytest.raises(CanonicalError, match="limit 4"):
        parse_strict(b'"long"', max_bytes=4)


def test_an_integer_of_5000_digits_is_exact() -> None:
    text = b"9" * 5_000
    value = parse_strict(b'{"n":-' + text + b"}")
    assert value == {"n": -(10**5_000 - 1)}
    assert canonical(value) == b'{"n":-' + text + b"}"


@pytest.mark.parametrize(
    ("text", "spelling"),
    [
        (b"9007199254740993", b"9007199254740993"),
        (b"18446744073709551616", b"18446744073709551616"),
        (b"1.0", b"1.0"),
        (b"1", b"1"),
        (b"1.50", b"1.5"),
        (b"1e2", b"100.0"),
        (b"100.00", b"100.0"),
        (b"0.1e1", b"1.0"),
        (b"-0", b"-0"),
        (b"-0.00", b"-0.0"),
        (b"0e7", b"0.0"),
        (b"1E+400", b"1.0e+400"),
        (b"12e-10", b"1.2e-9"),
        (b"0.1234567890123456789012345678901234567890", b"0.123456789012345678901234567890123456789"),
        (b'"\\u00e9\\/\\u0007\\n\\ud83d\\ude00"', '"é/\\u0007\\n😀"'.encode()),
        (b" [ ] ", b"[]"),
        (b'{"b":{},"a":[{"z":1,"y":2}]}', b'{"a":[{"y":2,"z":1}],"b":{}}'),
    ],
)
def test_each_value_has_one_spelling(text: bytes, spelling: bytes) -> None:
    value = parse_strict(text)
    assert canonical(value) == spelling
    assert canonical(parse_strict(spelling)) == spelling


def test_keys_are_ordered_by_utf16_code_units() -> None:
    value = parse_strict('{"\ue000":1,"😀":2,"a":3}'.encode())
    assert canonical(value) == '{"a":3,"😀":2,"\ue000":1}'.encode()


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (1.5, "float"),
        ((1, 2), "tuple"),
        ({1}, "set"),
        (b"x", "bytes"),
        (MoneyDict(a=1), "MoneyDict"),
        (datetime(2024, 1, 1, tzinfo=UTC), "datetime"),
    ],
)
def test_values_that_cannot_be_stored_are_named_with_their_path(value: object, name: str) -> None:
    with pytest.raises(CanonicalError) as caught:
        canonical(cast("JsonValue", {"a": {"b": [1, value]}}))
    assert caught.value.reason == "unsupported_type"
    assert caught.value.path == "$.a.b[1]"
    assert name in str(caught.value)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (Decimal("NaN"), "not_a_number"),
        (Decimal("-Infinity"), "not_a_number"),
        ({"a": "\ud800"}, "lone_surrogate"),
        ({"\ud800": 1}, "lone_surrogate"),
        ({1: 2}, "unsupported_type"),
        pytest.param(10**limits.NUMBER_DIGITS, "number_out_of_range", id="too many digits"),
        pytest.param(1 << 1_000_000, "number_out_of_range", id="far too many digits"),
        (Decimal("1e200000"), "number_out_of_range"),
    ],
)
def test_values_without_a_spelling_are_refused(value: object, reason: str) -> None:
    with pytest.raises(CanonicalError) as caught:
        canonical(cast("JsonValue", value))
    assert caught.value.reason == reason


def test_a_value_that_contains_itself_is_too_deep() -> None:
    value: list[JsonValue] = []
    value.append(value)
    with pytest.raises(CanonicalError) as caught:
        canonical(value)
    assert caught.value.reason == "too_deep"


def test_the_largest_accepted_numbers_survive() -> None:
    for text in (b"8" * limits.NUMBER_DIGITS, b"-1.5e100000", b"0." + b"7" * limits.NUMBER_DIGITS):
        value = parse_strict(text)
        assert parse_strict(canonical(value)) == value
