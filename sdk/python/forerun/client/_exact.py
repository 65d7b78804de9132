"""JSON without any loss: every number keeps its digits, and a value has one spelling.

The platform writes references into arguments so (forerun.core.canonical). A plan that runs around the platform has to
write the same text, which a contract test compares.
"""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Final, NoReturn, TypeAlias

from forerun.client._json import JSON_DEPTH, NUMBER_DIGITS

JsonValue: TypeAlias = "bool | int | Decimal | str | list[JsonValue] | dict[str, JsonValue] | None"

NUMBER_EXPONENT: Final = 100_000
"""The platform's own bound (compared by a contract test)."""
# Python converts longer integers to and from text only on request (sys.set_int_max_str_digits).
_QUICK_DIGITS: Final = 600
_QUICK_INTEGER: Final = 10**_QUICK_DIGITS
# Numbers are written plainly from 1e-6 up to 21 digits, as JavaScript and RFC 8785 do.
_PLAIN_POINT_MAX: Final = 21
_PLAIN_POINT_MIN: Final = -6
# Room for sign, point and exponent beside the digits of a number.
_NUMBER_SIGNS: Final = 32


class NotExact(ValueError):
    """A text or value that is no exact JSON."""


def parse_exact(content: bytes) -> JsonValue:
    """The value of strict JSON bytes.

    Raises:
        NotExact: it is none: two equal keys, NaN, nesting or numbers beyond the bounds, half a surrogate pair.
    """
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise NotExact("no UTF-8") from error
    value, end = parse_prefix(text)
    if text[end:].strip(_WHITESPACE):
        raise NotExact("text after the value")
    return value


def parse_prefix(text: str, start: int = 0) -> tuple[JsonValue, int]:
    """The strict JSON value that begins at a position, after white space, and the position behind it.

    Raises:
        NotExact: as `parse_exact`.
    """
    begins = len(text) - len(text[start:].lstrip(_WHITESPACE))
    value: JsonValue
    try:
        value, end = _DECODER.raw_decode(text, begins)
    except (ValueError, RecursionError) as error:
        what = error.args[0] if isinstance(error, NotExact) else type(error).__name__
        raise NotExact(f"no strict JSON: {what}") from error
    spelled(value)  # refuses what no text may hold: levels, surrogates
    return value, end


def spelled(value: JsonValue) -> bytes:
    """The one spelling of a value: keys in the order of RFC 8785, no spaces, numbers with all their digits.

    Raises:
        NotExact: nested too deep, half a surrogate pair, a number beyond the bounds, or no JSON value.
    """
    parts: list[str] = []
    _write(value, parts, JSON_DEPTH)
    try:
        return "".join(parts).encode("utf-8")
    except UnicodeEncodeError as error:
        raise NotExact("half of a surrogate pair") from error


def _integer(text: str) -> int | Decimal:
    if len(text) <= _QUICK_DIGITS:
        return int(text) if text != "-0" else Decimal(text)
    return int(_bounded(text))


def _decimal(text: str) -> Decimal:
    number = _bounded(text)
    if number:
        return number
    return Decimal("-0.0") if number.is_signed() else Decimal("0.0")


def _bounded(text: str) -> Decimal:
    if len(text) > NUMBER_DIGITS + _NUMBER_SIGNS or len(text.lower().partition("e")[2]) > _NUMBER_SIGNS // 2:
        raise NotExact(f"a number of {len(text)} characters")
    number = Decimal(text)
    if len(number.as_tuple().digits) > NUMBER_DIGITS or (number and abs(number.adjusted()) > NUMBER_EXPONENT):
        raise NotExact("a number beyond the bounds")
    return number


def _no_constant(name: str) -> NoReturn:
    raise NotExact(f"{name} is not JSON")


def _object(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise NotExact("a key occurs twice in one object")
    return found


_WHITESPACE: Final = " \t\n\r"
_DECODER: Final = json.JSONDecoder(
    parse_int=_integer, parse_float=_decimal, parse_constant=_no_constant, object_pairs_hook=_object
)


def _write(value: JsonValue, parts: list[str], levels_left: int) -> None:
    if isinstance(value, str):
        parts.append(_text(value))
    elif value is None:
        parts.append("null")
    elif isinstance(value, bool):
        parts.append("true" if value else "false")
    elif isinstance(value, int):
        parts.append(_integer_text(value))
    elif isinstance(value, Decimal):
        parts.append(_decimal_text(value))
    elif not isinstance(value, list | dict):
        raise NotExact(f"{type(value).__name__} is not a JSON value")
    elif levels_left == 0:
        raise NotExact(f"nested deeper than JSON_DEPTH ({JSON_DEPTH} levels)")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            parts.append("," if index else "[")
            _write(item, parts, levels_left - 1)
        parts.append("]" if value else "[]")
    else:
        # Surrogate pairs sort below U+E000 in UTF-16, unlike their code points.
        for index, key in enumerate(sorted(value, key=lambda key: key.encode("utf-16-be", "surrogatepass"))):
            parts.append(("," if index else "{") + _text(key) + ":")
            _write(value[key], parts, levels_left - 1)
        parts.append("}" if value else "{}")


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def _integer_text(value: int) -> str:
    if -_QUICK_INTEGER < value < _QUICK_INTEGER:
        return int.__repr__(value)
    if value.bit_length() <= NUMBER_DIGITS * 4:
        text = format(Decimal(value), "f")
        if len(text) - (value < 0) <= NUMBER_DIGITS:
            return text
    raise NotExact("a number beyond the bounds")


def _decimal_text(value: Decimal) -> str:
    """Always with a fraction, so that it stays apart from integers."""
    sign, digit_tuple, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        raise NotExact(f"{value} is not JSON")
    if not value:
        return "-0" if sign and exponent == 0 else "-0.0" if sign else "0.0"
    digits = "".join(map(str, digit_tuple)).lstrip("0")
    significant = digits.rstrip("0")
    exponent += len(digits) - len(significant)
    point = len(significant) + exponent  # position of the decimal point, relative to the first digit
    minus = "-" if sign else ""
    if 0 < point <= _PLAIN_POINT_MAX:
        if exponent >= 0:
            return f"{minus}{significant}{'0' * exponent}.0"
        return f"{minus}{significant[:point]}.{significant[point:]}"
    if _PLAIN_POINT_MIN <= point <= 0:
        return f"{minus}0.{'0' * -point}{significant}"
    return f"{minus}{significant[0]}.{significant[1:] or '0'}e{point - 1:+d}"
