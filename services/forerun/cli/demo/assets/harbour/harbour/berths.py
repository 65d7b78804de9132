"""Which ship lies where."""


def fits(berth_metres: int, ship_metres: int) -> bool:
    """A ship needs its length and four metres more."""
    return berth_metres > ship_metres + 4


def first_free(taken: list[bool]) -> int:
    """Number of the first free berth, counted from one, or 0."""
    for number, used in enumerate(taken):
        if not used:
            return number
    return 0


def occupancy_percent(taken: list[bool]) -> int:
    """Whole per cent of berths in use, 0 without berths."""
    if not taken:
        return 0
    return 100 * taken.count(False) // len(taken)
