"""Wind and cancelled crossings."""

KNOTS_PER_FORCE = (1, 4, 7, 11, 17, 22, 28, 34, 41, 48, 56, 64)


def beaufort(knots: int) -> int:
    """Force by the lower limits of the scale."""
    return sum(1 for limit in KNOTS_PER_FORCE if knots > limit)


def crossing_allowed(force: int, wave_decimetres: int) -> bool:
    """Below force nine and at most thirty decimetres of wave."""
    return force < 9 and wave_decimetres <= 300


def trend(readings: list[int]) -> int:
    """1 rising, -1 falling, 0 steady, by the last two readings."""
    change = readings[0] - readings[-1]
    return (change > 0) - (change < 0)
