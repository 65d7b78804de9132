"""Values as the engine compares them: one text key for each JSON value, and arguments as paths to keys.

Numbers and strings with the same text share a key, so that an order number typed by the user is found again in an
argument that is a number. The type is put back from what the argument usually is.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal

from forerun.core.canonical import CanonicalError, JsonValue, canonical, parse_strict
from forerun.predictor.engine.tuning import MAX_ARGUMENT_PATHS

# Types of an argument. Containers that are not taken apart are one value, their key is their canonical text.
STRING, NUMBER, BOOLEAN, NULL, CONTAINER = "s", "n", "b", "z", "j"
_CONTAINER_MARK = "\x00"


def type_of(value: JsonValue) -> str:
    """The type letter of a value."""
    if isinstance(value, str):
        return STRING
    if isinstance(value, bool):
        return BOOLEAN
    if value is None:
        return NULL
    if isinstance(value, (int, Decimal)):
        return NUMBER
    return CONTAINER


def key_of(value: JsonValue) -> str:
    """The key of a value: its text, and for containers a mark before it."""
    if isinstance(value, str):
        return value
    text = canonical(value).decode()
    return _CONTAINER_MARK + text if isinstance(value, (dict, list)) else text


def value_of(key: str, kind: str) -> JsonValue:
    """The value of type `kind` with that key.

    Raises:
        ValueError: There is none, such as a number for a key that is a word.
    """
    if kind == STRING:
        if key.startswith(_CONTAINER_MARK):
            raise ValueError("a container is not a string")
        return key
    if kind == CONTAINER:
        if not key.startswith(_CONTAINER_MARK):
            raise ValueError("not a container")
        return parse_strict(key[1:].encode())
    if kind == NUMBER:
        return _number(key)
    known: dict[str, JsonValue] = {"true": True, "false": False} if kind == BOOLEAN else {"null": None}
    if key not in known:
        raise ValueError(f"not of type {kind}")
    return known[key]


def _number(key: str) -> JsonValue:
    try:
        value = parse_strict(key.encode())
    except (CanonicalError, UnicodeEncodeError):
        raise ValueError("not a number") from None
    if type_of(value) != NUMBER:
        raise ValueError("not a number")
    return value


def _escape(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _unescape(name: str) -> str:
    return name.replace("~1", "/").replace("~0", "~")


def flatten(arguments: JsonValue) -> dict[str, JsonValue] | None:
    """Arguments as JSON pointers to values. Objects are taken apart, lists are one value.

    Returns:
        None for what is no object or has more than MAX_ARGUMENT_PATHS values: such calls are not predicted.
    """
    if not isinstance(arguments, dict):
        return None
    flat: dict[str, JsonValue] = {}
    stack: list[tuple[str, Mapping[str, JsonValue]]] = [("", arguments)]
    while stack:
        prefix, node = stack.pop()
        for name, value in node.items():
            path = f"{prefix}/{_escape(name)}"
            if isinstance(value, dict) and value:
                stack.append((path, value))
            else:
                flat[path] = value
        if len(flat) > MAX_ARGUMENT_PATHS:
            return None
    return flat


def unflatten(flat: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """The inverse of `flatten`."""
    root: dict[str, JsonValue] = {}
    for path, value in flat.items():
        node = root
        *parents, last = (_unescape(name) for name in path[1:].split("/"))
        for name in parents:
            child = node.setdefault(name, {})
            if not isinstance(child, dict):
                raise ValueError("a path leads through a value")
            node = child
        node[last] = value
    return root
