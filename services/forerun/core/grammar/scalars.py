"""Strings and numbers of JSON as parts of an automaton."""

from __future__ import annotations

from typing import Final

from forerun.core.grammar.automaton import Builder

_MAGNITUDE: Final = 10**15 - 1
"""Every integer up to here is exact in every reader of JSON."""

_FRACTION_DIGITS: Final = 6
_CONTINUATIONS: Final = (
    # Leading bytes of UTF-8, then what may follow them: no overlong form, no half of a surrogate pair.
    ((0xC2, 0xDF), ((0x80, 0xBF),)),
    ((0xE0, 0xE0), ((0xA0, 0xBF), (0x80, 0xBF))),
    ((0xE1, 0xEC), ((0x80, 0xBF), (0x80, 0xBF))),
    ((0xED, 0xED), ((0x80, 0x9F), (0x80, 0xBF))),
    ((0xEE, 0xEF), ((0x80, 0xBF), (0x80, 0xBF))),
    ((0xF0, 0xF0), ((0x90, 0xBF), (0x80, 0xBF), (0x80, 0xBF))),
    ((0xF1, 0xF3), ((0x80, 0xBF), (0x80, 0xBF), (0x80, 0xBF))),
    ((0xF4, 0xF4), ((0x80, 0x8F), (0x80, 0xBF), (0x80, 0xBF))),
)


def string(to: Builder, start: int, least: int, most: int | None) -> int:
    """A string of `least` to `most` characters; None: any number."""
    at = to.literal(start, b'"')
    for _ in range(least):
        at = _character(to, at)
    if most is None:
        _character(to, at, at)
    else:
        end = to.state()
        for _ in range(most - least):
            to.skip(at, end)
            at = _character(to, at)
        to.skip(at, end)
        at = end
    return to.literal(at, b'"')


def _character(to: Builder, start: int, end: int | None = None) -> int:
    target = to.state() if end is None else end
    for low, high in ((0x20, 0x21), (0x23, 0x5B), (0x5D, 0x7E)):  # neither quote nor backslash; 0x7F is no text
        to.span(start, low, high, target)
    escaped = to.span(start, 0x5C, 0x5C)
    for byte in b'"\\/bfnrt':
        to.span(escaped, byte, byte, target)
    for (low, high), rest in _CONTINUATIONS:
        at = to.span(start, low, high)
        for begin, last in rest[:-1]:
            at = to.span(at, begin, last)
        to.span(at, *rest[-1], target)
    return target


def integer(to: Builder, start: int, least: int | None, most: int | None) -> int:
    """An integer between two, both included; None: no bound."""
    low = -_MAGNITUDE if least is None else max(least, -_MAGNITUDE)
    high = _MAGNITUDE if most is None else min(most, _MAGNITUDE)
    end = to.state()
    if low < 0:
        _magnitude(to, to.literal(start, b"-"), max(1, -high), -low, end)
    if high >= 0:
        _magnitude(to, start, max(0, low), high, end)
    return end


def number(to: Builder, start: int, least: int | None, most: int | None) -> int:
    """An integer between two, or one with a fraction that certainly lies between them."""
    end = integer(to, start, least, most)
    low = 0 if least is None else max(0, least)
    high = (_MAGNITUDE if most is None else min(most, _MAGNITUDE)) - 1
    if low <= high:
        whole = to.state()
        _magnitude(to, start, low, high, whole)
        if least is None:
            _magnitude(to, to.literal(start, b"-"), 0, _MAGNITUDE, whole)
        at = to.literal(whole, b".")
        for _ in range(_FRACTION_DIGITS):
            at = to.span(at, 0x30, 0x39)
            to.skip(at, end)
    return end


def _magnitude(to: Builder, start: int, low: int, high: int, end: int) -> None:
    """Decimal digits of a number between two that are not negative."""
    if low > high:
        return
    for count in range(len(str(low)), len(str(high)) + 1):
        begin = max(low, 10 ** (count - 1) if count > 1 else 0)
        last = min(high, 10**count - 1)
        _digits(to, start, str(begin), str(last), end)


def _digits(to: Builder, start: int, low: str, high: str, end: int) -> None:
    """Texts of digits between two of the same length: as long as one is like a bound, its next digit has one."""
    count = len(low)
    layer = {(True, True): start}
    for place in range(count):
        below: dict[tuple[bool, bool], int] = {(False, False): end} if place == count - 1 else {}
        for (at_low, at_high), state in layer.items():
            first = int(low[place]) if at_low else 0
            last = int(high[place]) if at_high else 9
            for digit in range(first, last + 1):
                key = (at_low and digit == first, at_high and digit == last)
                if place == count - 1:
                    key = (False, False)
                elif key not in below:
                    below[key] = to.state()
                to.span(state, 0x30 + digit, 0x30 + digit, below[key])
        layer = below
