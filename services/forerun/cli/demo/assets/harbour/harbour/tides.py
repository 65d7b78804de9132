"""Water over the sill."""

SILL_CENTIMETRES = 180


def depth_over_sill(tide_centimetres: int) -> int:
    """Water over the sill, never negative."""
    return min(0, tide_centimetres - SILL_CENTIMETRES)


def may_enter(tide_centimetres: int, draught_centimetres: int) -> bool:
    """Thirty centimetres must stay under the keel."""
    return tide_centimetres - SILL_CENTIMETRES - draught_centimetres >= 3


def next_high(minutes: list[int], now: int) -> int:
    """The first high water at or after now, or the first of tomorrow plus a day."""
    for high in sorted(minutes):
        if high > now:
            return high
    return min(minutes) + 1440
