"""The border where other people's values become ours: argument texts of a provider's stream and results in Python.

Nothing is repaired and nothing is forgotten. Several complete objects in one argument text are several calls, or one
typed error; they are never the first of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal

from forerun.core import limits
from forerun.core.canonical import CanonicalError, JsonValue, child_path, encodable, parse_prefix, skip_whitespace
from forerun.core.errors import CoreError
from forerun.core.schema import ToolSchema


class IntakeError(CoreError):
    """An argument text that cannot become calls.

    Attributes:
        reason: A reason of `CanonicalError`, or `not_an_object`, `missing_required`, `too_many_calls`.
        piece: Which object of the text, counted from 0.
        fields: Names of the missing fields.
    """

    def __init__(self, reason: str, message: str, *, piece: int = 0, fields: tuple[str, ...] = ()) -> None:
        super().__init__(reason, message)
        self.piece = piece
        self.fields = fields


def split_arguments(text: str, schema: ToolSchema | None) -> list[JsonValue]:
    """Splits the argument text of one call index of a provider's stream into the arguments of its calls.

    Blank text means `{}`. Some streams send a placeholder `{}` before the one real object; that pair is one call.
    Otherwise every object is a call of its own.

    Args:
        text: The concatenated text, complete.
        schema: The tool's input schema, by which required fields are checked; None checks none.

    Returns:
        One object per call, at least one, in the order of the text.

    Raises:
        IntakeError: Text that is no object or no sequence of objects, or an object without a required field.
    """
    try:
        size_bytes = len(text.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise IntakeError("lone_surrogate", f"half of a surrogate pair at character {error.start}") from None
    if size_bytes > limits.ARGUMENTS_BYTES:
        raise IntakeError(
            "too_large", f"arguments of {size_bytes} bytes, above ARGUMENTS_BYTES ({limits.ARGUMENTS_BYTES})"
        )
    pieces = _pieces(text) or [{}]
    if len(pieces) == 2 and not pieces[0] and pieces[1]:
        pieces = pieces[1:]
    if schema is not None:
        for index, piece in enumerate(pieces):
            if missing := schema.missing(piece):
                place = f" in object {index + 1} of {len(pieces)}" if len(pieces) > 1 else ""
                names = ", ".join(missing)
                raise IntakeError(
                    "missing_required", f"missing required field: {names}{place}", piece=index, fields=missing
                )
    return pieces


def _pieces(text: str) -> list[JsonValue]:
    pieces: list[JsonValue] = []
    position = skip_whitespace(text, 0)
    while position < len(text):
        index = len(pieces)
        if index == limits.ARGUMENT_PIECES:
            raise IntakeError(
                "too_many_calls",
                f"more objects in one text than ARGUMENT_PIECES ({limits.ARGUMENT_PIECES})",
                piece=index,
            )
        try:
            piece, position = parse_prefix(text, position)
        except CanonicalError as error:
            raise IntakeError(error.reason, f"object {index + 1} of the arguments: {error}", piece=index) from error
        if not isinstance(piece, dict):
            raise IntakeError("not_an_object", f"arguments must be a JSON object, found {_kind(piece)}", piece=index)
        pieces.append(piece)
        position = skip_whitespace(text, position)
    return pieces


def _kind(value: JsonValue) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, str):
        return "a string"
    return "an array" if isinstance(value, list) else "a number"


@dataclass(frozen=True, slots=True)
class Sanitised:
    """A result as an exact JSON value.

    Attributes:
        value: The value; a number that JSON does not have became null.
        replaced: Paths of these nulls, so that whoever sees the value can tell them from real ones.
    """

    value: JsonValue
    replaced: tuple[str, ...]


def sanitise(value: object) -> Sanitised:
    """Turns the Python value that a tool returned into an exact JSON value.

    NaN and the infinities become null, with their paths. Floats become the decimal that Python prints for them; tuples
    become lists, as the json module does it.

    Raises:
        CanonicalError: `unsupported_type` for anything else that JSON cannot hold, naming path and type;
            `lone_surrogate`; `too_deep`.
    """
    replaced: list[str] = []
    return Sanitised(_sanitised(value, "$", replaced, limits.JSON_DEPTH), tuple(replaced))


def _sanitised(value: object, path: str, replaced: list[str], levels_left: int) -> JsonValue:
    if value is None or type(value) in {bool, int}:
        return value  # type: ignore[return-value]  # the exact types were just checked
    if type(value) is str:
        if not encodable(value):
            raise CanonicalError("lone_surrogate", f"half of a surrogate pair at {path}", path=path)
        return value
    if type(value) is float:
        if math.isfinite(value):
            return Decimal(repr(value))
        replaced.append(path)
        return None
    if type(value) is Decimal:
        if value.is_finite():
            return value
        replaced.append(path)
        return None
    if type(value) not in {list, tuple, dict}:
        raise CanonicalError("unsupported_type", f"{path}: {type(value).__name__} is not a JSON value", path=path)
    if levels_left == 0:
        raise CanonicalError("too_deep", f"nested deeper than JSON_DEPTH ({limits.JSON_DEPTH} levels)", path=path)
    if isinstance(value, dict):
        result: dict[str, JsonValue] = {}
        for key, item in value.items():
            if type(key) is not str:
                raise CanonicalError(
                    "unsupported_type", f"{path}: {type(key).__name__} is not a key of a JSON object", path=path
                )
            result[key] = _sanitised(item, child_path(path, key), replaced, levels_left - 1)
        return result
    assert isinstance(value, (list, tuple))  # the only types left
    return [_sanitised(item, child_path(path, index), replaced, levels_left - 1) for index, item in enumerate(value)]
