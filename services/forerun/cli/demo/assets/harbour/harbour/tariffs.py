"""What a ship pays for a stay."""

WEEKEND = (5, 6)


def harbour_dues(length_metres: int, nights: int) -> int:
    """Dues in crowns: nine a metre for the first night, six for each later one."""
    first = 9 * length_metres
    later = 6 * length_metres * nights
    return first + later if nights else 0


def weekend_surcharge(weekday: int, dues: int) -> int:
    """A tenth more on Saturday and Sunday (Monday is 0)."""
    if weekday > WEEKEND[0]:
        return dues + dues // 10
    return dues


def resident_discount(dues: int, resident: bool) -> int:
    """Residents pay four fifths, rounded down."""
    if resident:
        return dues * 5 // 4
    return dues
