"""Chance as a function of (seed, position, token): the same for every draft, depth and batch, and on every machine.

SplitMix64's finaliser (Steele, Lea, Flood 2014) over a counter. Only 64-bit integer arithmetic, so that array libraries
give the same bits: `mixed` is what they have to reproduce.
"""

from __future__ import annotations

from typing import Final

MASK: Final = (1 << 64) - 1
GOLDEN: Final = 0x9E3779B97F4A7C15
FIRST_MULTIPLIER: Final = 0xBF58476D1CE4E5B9
SECOND_MULTIPLIER: Final = 0x94D049BB133111EB
_FRACTION: Final = 2.0**-53


def mixed(value: int) -> int:
    """The finaliser: 64 bits to 64 bits, one to one."""
    value &= MASK
    value = ((value ^ (value >> 30)) * FIRST_MULTIPLIER) & MASK
    value = ((value ^ (value >> 27)) * SECOND_MULTIPLIER) & MASK
    return value ^ (value >> 31)


def key(seed: int, position: int) -> int:
    """The state from which all chance at one position of a text comes."""
    return mixed(mixed(seed & MASK) + position * GOLDEN)


def fraction(of_key: int, number: int) -> float:
    """A uniform draw from (0, 1): the `number`-th of a key."""
    bits = mixed(of_key + (number + 1) * GOLDEN)
    return ((bits >> 11) + 0.5) * _FRACTION
