"""Strict JSON in, canonical JSON out, exact to the last digit.

Arguments and results travel as the bytes that were sent. This module serves matching only: it parses without
repairing anything and writes one spelling for each value. No binary floating point is involved: integers are exact at
any size, every number with a fraction or an exponent is a `Decimal`, and 1 and 1.0 stay distinct (a schema may say
otherwise, see `schema.py`).
"""

from __future__ import annotations

import json
import re
from decimal import Decimal
from json.encoder import encode_basestring
from typing import NoReturn, TypeAlias

from forerun.core import limits
from forerun.core.errors import CoreError

JsonValue: TypeAlias = "bool | int | Decimal | str | list[JsonValue] | dict[str, JsonValue] | None"

_WHITESPACE = " \t\n\r"
_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*\Z")
# Up to here `int()` and `str()` never meet the interpreter's own limit on digits, which is 640 at its lowest.
_QUICK_DIGITS = 600
_QUICK_INTEGER = 10**_QUICK_DIGITS
# Room for sign, point and exponent beside the digits of a number.
_NUMBER_SIGNS = 32


class CanonicalError(CoreError):
    """JSON text or a value that is not exact JSON.

    Attributes:
        reason: `syntax`, `trailing_text`, `empty`, `invalid_utf8`, `lone_surrogate`, `duplicate_key`, `not_a_number`,
            `number_out_of_range`, `too_deep`, `too_large` or `unsupported_type`.
        path: Where in the value, such as `$.a.b[1]`; empty where only the text is known.
        offset: Position in the text in characters (bytes for `invalid_utf8`), or None.
    """

    def __init__(self, reason: str, message: str, *, path: str = "", offset: int | None = None) -> None:
        super().__init__(reason, message)
        self.path = path
        self.offset = offset


def child_path(path: str, key: str | int) -> str:
    """Appends a key or an index to a path that starts with `$`. Unusual keys are quoted, so paths are unambiguous."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    if _PLAIN_KEY.match(key):
        return f"{path}.{key}"
    return f"{path}[{json.dumps(key)}]"


# ---------------------------------------------------------------- parsing


def _integer(text: str) -> int | Decimal:
    if len(text) <= _QUICK_DIGITS:
        # Some readers keep the sign of a zero, so it is not the same value as 0.
        return int(text) if text != "-0" else Decimal(text)
    # Exact, and free of the interpreter's limit on the digits of int().
    return int(_bounded(text))


def _decimal(text: str) -> Decimal:
    number = _bounded(text)
    if number:
        return number
    # "-0.0" is told apart from "-0", which is an integer to some readers.
    return Decimal("-0.0") if number.is_signed() else Decimal("0.0")


def _bounded(text: str) -> Decimal:
    if len(text) > limits.NUMBER_DIGITS + _NUMBER_SIGNS or len(text.lower().partition("e")[2]) > _NUMBER_SIGNS // 2:
        raise CanonicalError(
            "number_out_of_range", f"number of {len(text)} characters, above NUMBER_DIGITS ({limits.NUMBER_DIGITS})"
        )
    number = Decimal(text)
    if len(text) > limits.NUMBER_DIGITS and len(number.as_tuple().digits) > limits.NUMBER_DIGITS:
        raise CanonicalError(
            "number_out_of_range", f"number of more digits than NUMBER_DIGITS ({limits.NUMBER_DIGITS})"
        )
    if number and abs(number.adjusted()) > limits.NUMBER_EXPONENT:
        raise CanonicalError("number_out_of_range", f"exponent beyond NUMBER_EXPONENT ({limits.NUMBER_EXPONENT})")
    return number


def _constant(text: str) -> NoReturn:
    raise CanonicalError("not_a_number", f"{text} is not JSON")


def _object(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise CanonicalError("duplicate_key", f"key {json.dumps(key)} occurs twice in one object")
            seen.add(key)
    return found


# Holds no state between calls; building one costs more than parsing usual arguments.
_DECODER = json.JSONDecoder(
    parse_int=_integer, parse_float=_decimal, parse_constant=_constant, object_pairs_hook=_object
)


def parse_strict(data: bytes, *, max_depth: int = limits.JSON_DEPTH, max_bytes: int = limits.RESULT_BYTES) -> JsonValue:
    """Parses one JSON text and nothing else.

    Raises:
        CanonicalError: Duplicate keys, NaN or Infinity, invalid UTF-8, lone surrogates, a byte order mark, text after
            the value, numbers or nesting beyond the limits.
    """
    if len(data) > max_bytes:
        raise CanonicalError("too_large", f"{len(data)} bytes, limit {max_bytes}")
    text = decode_utf8(data)
    value, end = parse_prefix(text, max_depth=max_depth)
    end = skip_whitespace(text, end)
    if end != len(text):
        raise CanonicalError("trailing_text", f"text after the value at character {end}", offset=end)
    return value


def decode_utf8(data: bytes) -> str:
    """Decodes UTF-8, with a typed error that names the byte."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CanonicalError(
            "invalid_utf8", f"invalid UTF-8 at byte {error.start}: {error.reason}", offset=error.start
        ) from None


def skip_whitespace(text: str, start: int) -> int:
    """Returns the position of the next character that is not JSON white space."""
    while start < len(text) and text[start] in _WHITESPACE:
        start += 1
    return start


def parse_prefix(text: str, start: int = 0, *, max_depth: int = limits.JSON_DEPTH) -> tuple[JsonValue, int]:
    """Parses the JSON value that begins at `start` (after white space); returns it and the position behind it."""
    start = skip_whitespace(text, start)
    if start == len(text):
        raise CanonicalError("empty", "no JSON value", offset=start)
    value: JsonValue
    try:
        value, end = _DECODER.raw_decode(text, start)
    except CanonicalError:
        raise
    except json.JSONDecodeError as error:
        raise CanonicalError("syntax", f"{error.msg} at character {error.pos}", offset=error.pos) from None
    except RecursionError:
        raise CanonicalError("too_deep", f"nested deeper than JSON_DEPTH ({max_depth} levels)") from None
    # The walk is needed only where the text could hold what it looks for.
    brackets = text.count("[", start, end) + text.count("{", start, end)
    if brackets > max_depth or text.find("\\u", start, end) >= 0:
        _check(value, "$", max_depth)
    return value, end


def _check(value: JsonValue, path: str, levels_left: int) -> None:
    """Refuses lone surrogates (only an escape can bring one) and too many levels."""
    if isinstance(value, str):
        _check_text(value, path)
    elif isinstance(value, list):
        if levels_left == 0:
            raise CanonicalError("too_deep", "nested deeper than JSON_DEPTH allows", path=path[:200])
        for index, item in enumerate(value):
            _check(item, child_path(path, index), levels_left - 1)
    elif isinstance(value, dict):
        if levels_left == 0:
            raise CanonicalError("too_deep", "nested deeper than JSON_DEPTH allows", path=path[:200])
        for key, item in value.items():
            _check_text(key, path)
            _check(item, child_path(path, key), levels_left - 1)


def _check_text(text: str, path: str) -> None:
    if not encodable(text):
        raise CanonicalError("lone_surrogate", f"half of a surrogate pair at {path}", path=path)


def encodable(text: str) -> bool:
    """Whether a text can be sent as UTF-8, which half of a surrogate pair cannot."""
    if text.isascii():
        return True
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


# ---------------------------------------------------------------- writing


def canonical(value: JsonValue) -> bytes:
    """Writes the one canonical spelling of a value.

    Keys are ordered as RFC 8785 says (by UTF-16 code units), strings are escaped as it says, and numbers are exact:
    unlike RFC 8785 they are not rounded to doubles, and a number written with a fraction keeps one (`1.0`).

    Raises:
        CanonicalError: `unsupported_type` for anything that is no exact JSON value (floats, tuples, sub-classes,
            keys that are no strings), naming path and type; `too_deep`; `lone_surrogate`; `not_a_number`.
    """
    parts: list[str] = []
    try:
        _write(value, parts, limits.JSON_DEPTH)
        return "".join(parts).encode("utf-8")
    except _UnsupportedError as error:
        raise error.located(value) from None
    except UnicodeEncodeError:
        _check(value, "$", limits.JSON_DEPTH)
        raise


class _UnsupportedError(Exception):
    """Something in the value cannot be written. The path is found afterwards, so that writing stays fast."""

    def __init__(self, found: object, reason: str, message: str) -> None:
        super().__init__(message)
        self.found = found
        self.reason = reason

    def located(self, root: object) -> CanonicalError:
        path = _path_of(root, self.found, "$", limits.JSON_DEPTH) or "$"
        return CanonicalError(self.reason, f"{path}: {self}", path=path)


def _path_of(value: object, found: object, path: str, levels_left: int) -> str | None:
    if value is found:
        return path
    if levels_left == 0:
        return None
    children: list[tuple[str, object]] = []
    if type(value) is list:
        children = [(child_path(path, index), item) for index, item in enumerate(value)]
    elif type(value) is dict:
        children = [
            (child_path(path, key if isinstance(key, str) else repr(key)[:40]), item) for key, item in value.items()
        ]
    for below, item in children:
        if (located := _path_of(item, found, below, levels_left - 1)) is not None:
            return located
    return None


def _write(value: JsonValue, parts: list[str], levels_left: int) -> None:
    # Exact types only: a sub-class may carry more than JSON can hold.
    kind = type(value)
    if kind is str:
        parts.append(encode_basestring(value))  # type: ignore[arg-type]  # `kind` says that it is a str
    elif value is None:
        parts.append("null")
    elif value is True:
        parts.append("true")
    elif value is False:
        parts.append("false")
    elif kind is int:
        parts.append(_integer_text(value))  # type: ignore[arg-type]  # `kind` says that it is an int
    elif kind is dict:
        _write_object(value, parts, levels_left)  # type: ignore[arg-type]  # `kind` says that it is a dict
    elif kind is list:
        if levels_left == 0:
            raise _UnsupportedError(value, "too_deep", f"nested deeper than JSON_DEPTH ({limits.JSON_DEPTH} levels)")
        separator = "["
        for item in value:  # type: ignore[union-attr]  # `kind` says that it is a list
            parts.append(separator)
            _write(item, parts, levels_left - 1)
            separator = ","
        parts.append("]" if separator == "," else "[]")
    elif kind is Decimal:
        parts.append(_decimal_text(value))  # type: ignore[arg-type]  # `kind` says that it is a Decimal
    else:
        raise _UnsupportedError(value, "unsupported_type", f"{kind.__name__} is not a JSON value")


def _write_object(value: dict[str, JsonValue], parts: list[str], levels_left: int) -> None:
    if levels_left == 0:
        raise _UnsupportedError(value, "too_deep", f"nested deeper than JSON_DEPTH ({limits.JSON_DEPTH} levels)")
    separator = "{"
    for key in _ordered_keys(value):
        parts.append(separator)
        parts.append(encode_basestring(key))
        parts.append(":")
        _write(value[key], parts, levels_left - 1)
        separator = ","
    parts.append("}" if separator == "," else "{}")


def _ordered_keys(value: dict[str, JsonValue]) -> list[str]:
    ascii_only = True
    for key in value:
        if type(key) is not str:
            raise _UnsupportedError(value, "unsupported_type", f"{type(key).__name__} is not a key of a JSON object")
        ascii_only = ascii_only and key.isascii()
    if ascii_only:
        return sorted(value)
    # Surrogates sort below U+E000 to U+FFFF in UTF-16, unlike their code points. A lone one is refused at the end.
    return sorted(value, key=lambda key: key.encode("utf-16-be", "surrogatepass"))


def _integer_text(value: int) -> str:
    if -_QUICK_INTEGER < value < _QUICK_INTEGER:
        return int.__repr__(value)
    # Measured in bits first: writing a huge number only to refuse it would be quadratic.
    if value.bit_length() <= limits.NUMBER_DIGITS * 4:
        text = format(Decimal(value), "f")
        if len(text) - (value < 0) <= limits.NUMBER_DIGITS:
            return text
    raise _UnsupportedError(
        value, "number_out_of_range", f"number of more digits than NUMBER_DIGITS ({limits.NUMBER_DIGITS})"
    )


def _decimal_text(value: Decimal) -> str:
    """One spelling for each numeric value and sign, always with a fraction, so that it stays apart from integers."""
    sign, digit_tuple, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        raise _UnsupportedError(value, "not_a_number", f"{value} is not JSON")
    if not value:
        if sign and exponent == 0:
            return "-0"
        return "-0.0" if sign else "0.0"
    digits = "".join(map(str, digit_tuple)).lstrip("0")
    significant = digits.rstrip("0")
    exponent += len(digits) - len(significant)
    point = len(significant) + exponent  # position of the decimal point, relative to the first digit
    if len(significant) > limits.NUMBER_DIGITS or abs(point - 1) > limits.NUMBER_EXPONENT:
        raise _UnsupportedError(value, "number_out_of_range", "more digits or a larger exponent than the limits allow")
    minus = "-" if sign else ""
    if 0 < point <= 21:
        if exponent >= 0:
            return f"{minus}{significant}{'0' * exponent}.0"
        return f"{minus}{significant[:point]}.{significant[point:]}"
    if -7 < point <= 0:
        return f"{minus}0.{'0' * -point}{significant}"
    return f"{minus}{significant[0]}.{significant[1:] or '0'}e{point - 1:+d}"
