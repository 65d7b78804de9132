"""Reading persisted state: plain JSON values, checked on the way in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

State = str | float | int | bool | None | Mapping[str, "State"] | Sequence["State"]


class MalformedState(ValueError):
    """Persisted state that this engine did not write."""


def number(value: State) -> float:
    """A number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise MalformedState("a number is missing")
    return float(value)


def text(value: State) -> str:
    """A string."""
    if not isinstance(value, str):
        raise MalformedState("a string is missing")
    return value


def table(value: State) -> Mapping[str, State]:
    """An object."""
    if not isinstance(value, Mapping):
        raise MalformedState("an object is missing")
    return value


def items(value: State) -> Sequence[State]:
    """An array."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise MalformedState("an array is missing")
    return value


def numbers(value: State) -> dict[str, float]:
    """An object of numbers."""
    return {name: number(entry) for name, entry in table(value).items()}


def texts(value: State) -> list[str]:
    """An array of strings."""
    return [text(entry) for entry in items(value)]


def number_pairs(value: State) -> dict[str, list[float]]:
    """An object of arrays of numbers."""
    return {name: [number(part) for part in items(entry)] for name, entry in table(value).items()}
