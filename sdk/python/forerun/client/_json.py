"""Exact JSON at the border: what goes out is what was given, what comes in loses nothing, and nothing is repaired."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

from forerun.client._errors import InvalidRequest, ResultNotJson

# The platform's own bound (forerun.core.limits, compared by a contract test): deeper arguments are refused there.
JSON_DEPTH: Final = 64
NUMBER_DIGITS: Final = 20_000

# Python converts longer integers to and from text only on request (sys.set_int_max_str_digits); below, it is exact.
_PLAIN_DIGITS: Final = 4_000
_PLAIN_BITS: Final = 13_000

Arguments = Mapping[str, object] | bytes | str
"""Arguments of a call: a mapping, or the JSON text of one as a model's provider gave it."""


def encode_arguments(arguments: Arguments) -> bytes:
    """The exact JSON bytes to send. Text is passed through as it is; the platform checks it.

    Raises:
        InvalidRequest: `ARGUMENTS_NOT_JSON` for a value that JSON cannot hold exactly (NaN, infinities, other types,
            keys that are no strings, half surrogate pairs); metadata `path` names where it is.
    """
    if isinstance(arguments, bytes):
        return arguments
    if isinstance(arguments, str):
        try:
            return arguments.encode("utf-8")
        except UnicodeEncodeError as error:
            raise _refused("$", "half of a surrogate pair") from error
    if not isinstance(arguments, Mapping):
        raise _refused("$", f"arguments are a mapping or JSON text, not {type(arguments).__name__}")
    return encode(arguments)


def encode(value: object) -> bytes:
    """A value as compact JSON bytes, exactly.

    Raises:
        InvalidRequest: as `encode_arguments`.
    """
    plain = _plain(value, "$", JSON_DEPTH)
    return json.dumps(plain, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8")


def decode(content: bytes) -> Any:
    """The value of strict JSON bytes; integers are exact, whatever their size.

    Raises:
        ResultNotJson: it is none, or holds NaN or an infinity.
    """
    try:
        return json.loads(content, parse_int=_integer, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise ResultNotJson(
            "RESULT_NOT_JSON", f"the content ({len(content)} bytes) is not strict JSON; use .text or .content"
        ) from error


def _plain(value: object, path: str, depth: int) -> object:
    if depth == 0:
        raise _refused(path, f"nested deeper than JSON_DEPTH ({JSON_DEPTH} levels)")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise _refused(path, "half of a surrogate pair") from error
        return value
    if isinstance(value, int):
        if value.bit_length() > _PLAIN_BITS:
            raise _refused(path, f"an integer of more than {_PLAIN_DIGITS} digits; pass JSON text instead")
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise _refused(path, f"{value} is not a JSON number")
        return value
    if isinstance(value, Mapping):
        return {_key(key, path): _plain(item, f"{path}.{key}", depth - 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, f"{path}[{index}]", depth - 1) for index, item in enumerate(value)]
    raise _refused(path, f"{type(value).__name__} has no exact JSON form; convert it, or pass JSON text")


def _key(key: object, path: str) -> str:
    if not isinstance(key, str):
        raise _refused(path, f"keys are strings, not {type(key).__name__}")
    try:
        key.encode("utf-8")
    except UnicodeEncodeError as error:
        raise _refused(path, "half of a surrogate pair in a key") from error
    return key


def _integer(text: str) -> int:
    if len(text) <= _PLAIN_DIGITS:
        return int(text)
    if len(text) > NUMBER_DIGITS:
        raise ValueError(f"a number of more digits than NUMBER_DIGITS ({NUMBER_DIGITS})")
    return int(Decimal(text))


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _refused(path: str, what: str) -> InvalidRequest:
    # A path may end in a key of the arguments, but never holds a value.
    return InvalidRequest("ARGUMENTS_NOT_JSON", f"{what}, at {path}", metadata={"path": path})
